//! As much of protobuf's encoding as the arguments of host functions need: fields that are texts or numbers.

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn fixed<const LENGTH: usize>(bytes: &mut &[u8]) -> Option<[u8; LENGTH]> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*value)
}

/// Fields of a message that is read; those of host functions have five.
const MOST_FIELDS: usize = 64;

/// The fields of a message, in order. None: these bytes are none.
pub(crate) fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)?),
            1 => Value::Number(u64::from_le_bytes(fixed(&mut bytes)?)),
            5 => Value::Number(u32::from_le_bytes(fixed(&mut bytes)?).into()),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Value::Bytes(value)
            }
            _ => return None,
        };
        if key >> 3 == 0 {
            return None;
        }
        if fields.len() >= MOST_FIELDS {
            return None;
        }
        fields.push((key >> 3, value));
    }
    Some(fields)
}

/// The last value of a field that is a text or a message.
pub(crate) fn bytes<'a>(fields: &[(u64, Value<'a>)], number: u64) -> Option<&'a [u8]> {
    fields.iter().rev().find_map(|(known, value)| match value {
        Value::Bytes(bytes) if *known == number => Some(*bytes),
        _ => None,
    })
}

fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// Writes a field that is a number or a truth value.
pub(crate) fn put_number(into: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(into, number << 3);
    put_varint(into, value);
}

/// Writes a field that is a text or bytes.
pub(crate) fn put_bytes(into: &mut Vec<u8>, number: u64, value: &[u8]) {
    put_varint(into, number << 3 | 2);
    put_varint(into, value.len() as u64);
    into.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_read() {
        let message = [0x0a, 2, b'a', b'b', 0x18, 0xac, 0x02];
        let read = fields(&message).unwrap();
        assert_eq!(read, [(1, Value::Bytes(b"ab")), (3, Value::Number(300))]);
        assert_eq!(bytes(&read, 1), Some(&b"ab"[..]));
        assert_eq!(bytes(&read, 3), None);
        let fixed = [0x09, 1, 0, 0, 0, 0, 0, 0, 0, 0x15, 0, 1, 0, 0];
        let numbers = [(1, Value::Number(1)), (2, Value::Number(256))];
        assert_eq!(fields(&fixed).unwrap(), numbers);
        assert_eq!(fields(&fixed[..13]), None);
        assert_eq!(fields(&[0x0a, 3, b'a']), None);
        assert_eq!(fields(&[0x0b]), None);
        assert_eq!(fields(&[0x02, 0]), None);
        assert_eq!(fields(b""), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in 1..1000_u64, value: u64, text: Vec<u8>) {
            let mut message = Vec::new();
            put_number(&mut message, number, value);
            put_bytes(&mut message, number, &text);
            let expected = vec![(number, Value::Number(value)), (number, Value::Bytes(&text))];
            prop_assert_eq!(fields(&message), Some(expected));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in any::<Vec<u8>>()) {
            let _ = fields(&bytes);
        }
    }
}
