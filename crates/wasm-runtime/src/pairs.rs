//! Names and values in a row of bytes, as guests send and get header maps: how many, the lengths, then each
//! name and value with a NUL after it; numbers are little-endian, 32 bits wide.
//!
//! The trap: nothing at all is an empty map, and so is one or four NULs, by which different SDKs say so.

/// More than this many pairs are not taken from a guest.
const MOST_PAIRS: usize = 1024;
/// More bytes than this are not taken from a guest.
const MOST_BYTES: usize = 1024 * 1024;

/// Collects pairs, and writes them.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    count: u32,
    lengths: Vec<u8>,
    contents: Vec<u8>,
}

impl Writer {
    /// Forgets what was collected; the room for it stays.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.lengths.clear();
        self.contents.clear();
    }

    /// Adds a pair.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.count += 1;
        for part in [name, value] {
            self.lengths
                .extend_from_slice(&(part.len() as u32).to_le_bytes());
            self.contents.extend_from_slice(part);
            self.contents.push(0);
        }
    }

    /// Appends what was collected; an empty map is nothing.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        if self.count > 0 {
            bytes.extend_from_slice(&self.count.to_le_bytes());
            bytes.extend_from_slice(&self.lengths);
            bytes.extend_from_slice(&self.contents);
        }
    }
}

fn number(bytes: &[u8], index: usize) -> Option<usize> {
    let start = index.checked_mul(4)?;
    let bytes = bytes.get(start..start.checked_add(4)?)?;
    let number = u32::from_le_bytes(bytes.try_into().ok()?);
    usize::try_from(number).ok()
}

/// Reads pairs. None: these bytes are no map. Names and values may hold any bytes.
pub(crate) fn read(bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    if matches!(bytes, [] | [0] | [0, 0, 0, 0]) {
        return Some(Vec::new());
    }
    if bytes.len() > MOST_BYTES {
        return None;
    }
    let count = number(bytes, 0)?;
    if count > MOST_PAIRS {
        return None;
    }
    let mut contents = bytes.get(4 + count * 8..)?;
    let mut take = |length: usize| {
        let (part, rest) = contents.split_at_checked(length)?;
        let (end, rest) = rest.split_first()?;
        contents = rest;
        (*end == 0).then_some(part)
    };
    let mut pairs = Vec::with_capacity(count);
    for index in 0..count {
        let name = take(number(bytes, 1 + 2 * index)?)?;
        let value = take(number(bytes, 2 + 2 * index)?)?;
        pairs.push((name, value));
    }
    contents.is_empty().then_some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer::default();
        for (name, value) in pairs {
            writer.push(name, value);
        }
        let mut bytes = Vec::new();
        writer.write(&mut bytes);
        bytes
    }

    #[test]
    fn the_layout_is_that_of_the_interface() {
        let bytes = written(&[(b"a".to_vec(), b"bc".to_vec())]);
        assert_eq!(
            bytes,
            [1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, b'a', 0, b'b', b'c', 0]
        );
        assert_eq!(written(&[]), [0; 0]);
    }

    #[test]
    fn what_is_no_map_is_refused() {
        let good = written(&[
            (b"a".to_vec(), b"bc".to_vec()),
            (b"".to_vec(), b"".to_vec()),
        ]);
        assert_eq!(read(&good).unwrap().len(), 2);
        for length in 1..good.len() {
            assert_eq!(read(&good[..length]), None, "{length}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(read(&longer), None);
        let mut unended = good;
        *unended.last_mut().unwrap() = 1;
        assert_eq!(read(&unended), None);
        assert_eq!(read(&[255; 64]), None);
        for empty in [&[][..], &[0], &[0; 4]] {
            assert_eq!(read(empty), Some(Vec::new()));
        }
        assert_eq!(read(&[0; 3]), None);
        let many = vec![(b"a".to_vec(), b"b".to_vec()); MOST_PAIRS + 1];
        assert_eq!(read(&written(&many)), None);
        let large = vec![(b"a".to_vec(), vec![b'b'; MOST_BYTES])];
        assert_eq!(read(&written(&large)), None);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(pairs in proptest::collection::vec(
            (any::<Vec<u8>>(), any::<Vec<u8>>()), 0..20)
        ) {
            let bytes = written(&pairs);
            let read = read(&bytes).unwrap();
            let read: Vec<_> = read.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(read, pairs);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in any::<Vec<u8>>()) {
            if let Some(pairs) = read(&bytes) {
                let mut writer = Writer::default();
                for (name, value) in &pairs {
                    writer.push(name, value);
                }
                let mut again = Vec::new();
                writer.write(&mut again);
                prop_assert!(pairs.is_empty() || again == bytes);
            }
        }
    }
}
