//! `google.protobuf.Struct` in its wire format, for metadata that is more than one text or number: the
//! only message that Envoy takes from this module, so no library.

use outrider_plugin_api::MetadataTree;

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LENGTH: u8 = 2;

/// A `Struct` with one member.
pub(crate) fn structure(name: &[u8], value: &MetadataTree) -> Vec<u8> {
    let mut out = Vec::new();
    member(name, value, &mut out);
    out
}

fn key(field: u8, kind: u8, out: &mut Vec<u8>) {
    out.push(field << 3 | kind);
}

fn varint(mut number: usize, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    key(field, LENGTH, out);
    varint(bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// An entry of `Struct.fields`.
fn member(name: &[u8], of: &MetadataTree, out: &mut Vec<u8>) {
    let mut entry = Vec::new();
    bytes(1, name, &mut entry);
    bytes(2, &value(of), &mut entry);
    bytes(1, &entry, out);
}

/// A `Value`.
fn value(of: &MetadataTree) -> Vec<u8> {
    let mut out = Vec::new();
    match of {
        MetadataTree::Null => out.extend([1 << 3 | VARINT, 0]),
        MetadataTree::Number(number) => {
            key(2, FIXED64, &mut out);
            out.extend(number.to_le_bytes());
        }
        MetadataTree::String(text) => bytes(3, text, &mut out),
        MetadataTree::Bool(truth) => out.extend([4 << 3 | VARINT, u8::from(*truth)]),
        MetadataTree::Map(members) => {
            let mut inner = Vec::new();
            for (name, of) in members {
                member(name, of, &mut inner);
            }
            bytes(5, &inner, &mut out);
        }
        MetadataTree::List(values) => {
            let mut inner = Vec::new();
            for of in values {
                bytes(1, &value(of), &mut inner);
            }
            bytes(6, &inner, &mut out);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_as_protobuf_writes_it() {
        // As Google's library for Python writes {"a": {"b": [true, "x", null]}}
        let tree = MetadataTree::Map(vec![(
            b"b".to_vec(),
            MetadataTree::List(vec![true.into(), "x".into(), MetadataTree::Null]),
        )]);
        let expected: &[u8] = &[
            0x0a, 0x1d, 0x0a, 0x01, b'a', 0x12, 0x18, 0x2a, 0x16, 0x0a, 0x14, 0x0a, 0x01, b'b',
            0x12, 0x0f, 0x32, 0x0d, 0x0a, 0x02, 0x20, 0x01, 0x0a, 0x03, 0x1a, 0x01, b'x', 0x0a,
            0x02, 0x08, 0x00,
        ];
        assert_eq!(
            structure(b"a", &tree).escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        let long = "y".repeat(300);
        let made = structure(b"n", &long.as_str().into());
        assert_eq!(made.len(), 300 + 3 + 3 + 3 + 3);
        assert_eq!(
            structure(b"n", &1.5.into())[..7],
            [0x0a, 0x0e, 0x0a, 1, b'n', 0x12, 9]
        );
    }
}
