//! A header map that behaves as Envoy's: names in lower case, order kept, several values possible,
//! `host` another name for `:authority`.

/// Headers whose values Envoy joins by a comma when there are several, so that plugins see one.
const JOINED: [&str; 4] = ["user-agent", "content-type", "x-forwarded-for", "via"];

/// Names and values in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Headers {
    /// A map without headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The map with one more value.
    #[must_use]
    pub fn with(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.add(name.as_ref(), value.as_ref());
        self
    }

    /// All names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// The values of a header, in order.
    pub fn values(&self, name: &[u8]) -> impl Iterator<Item = &[u8]> {
        let name = fold(name);
        self.entries
            .iter()
            .filter(move |(other, _)| *other == name)
            .map(|(_, value)| value.as_slice())
    }

    /// The first value of a header.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.values(name).next()
    }

    /// The first value of a header as text; empty where there is none.
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(self.get(name.as_bytes()).unwrap_or_default()).into_owned()
    }

    /// Replaces all values of a header by one, which stands where the first one stood.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let name = fold(name);
        let Some(first) = self.entries.iter().position(|(other, _)| *other == name) else {
            self.entries.push((name, value.to_vec()));
            return;
        };
        let mut index = 0;
        self.entries.retain(|(other, _)| {
            index += 1;
            *other != name || index == first + 1
        });
        if let Some((_, kept)) = self.entries.get_mut(first) {
            *kept = value.to_vec();
        }
    }

    /// Adds a value to those that a header has.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        let name = fold(name);
        let joins = JOINED.iter().any(|joined| joined.as_bytes() == name);
        match self.entries.iter_mut().find(|(other, _)| *other == name) {
            Some((_, values)) if joins => {
                values.extend_from_slice(b",");
                values.extend_from_slice(value);
            }
            _ => self.entries.push((name, value.to_vec())),
        }
    }

    /// Removes a header with all its values.
    pub fn remove(&mut self, name: &[u8]) {
        let name = fold(name);
        self.entries.retain(|(other, _)| *other != name);
    }
}

fn fold(name: &[u8]) -> Vec<u8> {
    let name = name.to_ascii_lowercase();
    if name == b"host" {
        b":authority".to_vec()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_case_and_values_an_order() {
        let mut headers = Headers::new()
            .with("X-A", "1")
            .with("b", "2")
            .with("x-a", "3");
        assert_eq!(headers.values(b"X-a").collect::<Vec<_>>(), [b"1", b"3"]);
        headers.set(b"x-A", b"4");
        let all: Vec<_> = headers.iter().collect();
        assert_eq!(all, [(&b"x-a"[..], &b"4"[..]), (&b"b"[..], &b"2"[..])]);
        headers.remove(b"X-A");
        assert_eq!(headers.get(b"x-a"), None);
    }

    #[test]
    fn envoys_own_habits() {
        let headers = Headers::new()
            .with("Host", "shop")
            .with("user-agent", "a")
            .with("user-agent", "b");
        assert_eq!(headers.get(b":authority"), Some(&b"shop"[..]));
        assert_eq!(headers.values(b"user-agent").collect::<Vec<_>>(), [b"a,b"]);
    }
}
