//! Copies of few bytes, which most names and values of headers are.

/// So many bytes are copied without a call into a library.
const SHORT: usize = 32;

/// Copies `from` to `to`, which has as many bytes: by words where they are few, the last of which overlap.
///
/// # Panics
/// The lengths differ.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(place), Some(first)) = (to.first_chunk_mut::<N>(), from.first_chunk()) {
            *place = *first;
        }
        if let (Some(place), Some(last)) = (to.last_chunk_mut::<N>(), from.last_chunk()) {
            *place = *last;
        }
    }
    assert_eq!(to.len(), from.len(), "as many bytes");
    match from.len() {
        4..=8 => ends::<4>(to, from),
        9..=16 => ends::<8>(to, from),
        17..=SHORT => ends::<16>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Lets `to` hold `from`, and nothing else.
#[inline]
pub fn replace(to: &mut Vec<u8>, from: &[u8]) {
    to.clear();
    if from.len() > SHORT {
        to.extend_from_slice(from);
        return;
    }
    to.extend_from_slice(&[0; SHORT]);
    if let Some(place) = to.get_mut(..from.len()) {
        copy(place, from);
    }
    to.truncate(from.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_is_touched() {
        let from: Vec<u8> = (1..=100).collect();
        let mut kept = b"what was there before".to_vec();
        for length in 0..=from.len() {
            let from = &from[..length];
            let mut to = [0; 102];
            copy(&mut to[1..=length], from);
            assert_eq!(to[1..=length], *from);
            assert!(to[0] == 0 && to[length + 1..].iter().all(|byte| *byte == 0));
            replace(&mut kept, from);
            assert_eq!(kept, from);
        }
    }

    #[test]
    #[should_panic(expected = "as many bytes")]
    fn lengths_that_differ_are_a_mistake() {
        copy(&mut [0; 4], &[1; 5]);
    }
}
