//! What plugins make the proxy keep for one stream is bounded.

use super::wire::{Wire, link, streaming};
use crate::{
    Decision, Direction, FailureAction, FilterStateError, FilterStateKind, MOST_STATE_BYTES,
    MetadataTree, Scalar,
};

#[test]
fn metadata_and_filter_state_of_a_stream_are_bounded() {
    let plugin = link(FailureAction::Closed, streaming(), |_, stream| {
        let text = vec![b'x'; 10_000];
        for number in 0..200_u32 {
            let key = number.to_le_bytes();
            stream
                .set_metadata(b"p", &key, Scalar::String(&text))
                .unwrap();
            let tree = MetadataTree::List(vec![MetadataTree::Null; 1000]);
            stream.set_metadata_tree(b"p", &key, &tree).unwrap();
        }
        let refused = stream.set_filter_state(b"key", &text, FilterStateKind::Bytes);
        assert_eq!(refused, Err(FilterStateError::TooLarge));
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    let headers = [(":method", "GET"), (":path", "/"), (":authority", "a")];
    wire.headers(Direction::Request, &headers, true);
    assert!(wire.sent(Direction::Request).ended);
    assert!(wire.host.metadata.len() <= MOST_STATE_BYTES / 10_000);
    assert!(!wire.host.logs.borrow().is_empty());
}
