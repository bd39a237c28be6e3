//! Header lists as the echo service records them and the client returns them.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Header fields in the order of the first field of each name; duplicates are kept, in their order,
/// beside each other. Names are lower-case; bytes that are not UTF-8 show as U+FFFD.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The first value of a name, which is compared without regard to case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find(|(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All values of a name, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.iter()
            .filter(|(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }

    /// Name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a field at the end.
    pub(crate) fn push(&mut self, name: &str, value: &str) {
        self.0.push((name.to_ascii_lowercase(), value.to_owned()));
    }

    /// The fields as the HTTP library takes them; an error names the field that HTTP cannot carry.
    pub(crate) fn to_map(&self) -> Result<HeaderMap, String> {
        let mut map = HeaderMap::with_capacity(self.len());
        for (name, value) in self.iter() {
            let field = HeaderName::try_from(name)
                .map_err(|error| format!("header name {name:?}: {error}"))?;
            let content = HeaderValue::try_from(value)
                .map_err(|error| format!("value {value:?} of header {name}: {error}"))?;
            map.append(field, content);
        }
        Ok(map)
    }
}

impl From<&HeaderMap> for Headers {
    fn from(map: &HeaderMap) -> Self {
        Self(
            map.iter()
                .map(|(name, value)| {
                    (
                        name.as_str().to_owned(),
                        String::from_utf8_lossy(value.as_bytes()).into_owned(),
                    )
                })
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_keep_their_order() {
        let mut headers = Headers::default();
        headers.push("X-A", "1");
        headers.push("x-b", "2");
        headers.push("x-a", "3");
        let again = Headers::from(&headers.to_map().unwrap());
        assert_eq!(again.all("X-a"), ["1", "3"]);
        assert_eq!(again.get("x-b"), Some("2"));
        assert_eq!(again.len(), 3);
    }

    #[test]
    fn a_field_that_http_cannot_carry_is_named() {
        let mut headers = Headers::default();
        headers.push("x-a", "line\nbreak");
        let problem = headers.to_map().unwrap_err();
        assert!(problem.contains("x-a"), "{problem}");
    }
}
