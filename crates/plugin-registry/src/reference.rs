//! Names of images: `HOST[:PORT]/NAME[:TAG][@sha256:DIGEST]`.

use std::fmt;

use outrider_plugin_formats::is_digest;

use crate::error::FetchError;

/// The name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// `HOST` or `HOST:PORT`, as the user writes it.
    pub host: String,
    /// Path of the repository.
    pub name: String,
    /// The tag; `latest` if neither tag nor digest is written.
    pub tag: Option<String>,
    /// The digest, with `sha256:`.
    pub digest: Option<String>,
}

impl Reference {
    /// Reads a name, with `oci://` before it or without.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, FetchError> {
        let wrong = |why: &str| {
            FetchError::new(format!("`{text}` is not the name of an image: {why}"))
                .mend("write `oci://HOST/NAME:TAG` or `oci://HOST/NAME@sha256:…`")
        };
        let rest = text.strip_prefix("oci://").unwrap_or(text);
        let (rest, digest) = match rest.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.to_owned())),
            None => (rest, None),
        };
        if digest.as_deref().is_some_and(|digest| !is_digest(digest)) {
            return Err(wrong(
                "the digest is not `sha256:` and 64 hexadecimal digits",
            ));
        }
        let (host, path) = rest
            .split_once('/')
            .ok_or_else(|| wrong("it names no registry"))?;
        let is_host = host.contains(['.', ':']) || host == "localhost";
        if !is_host
            || !host
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte))
        {
            return Err(wrong("it begins with no host of a registry"));
        }
        let (name, tag) = match path.rsplit_once(':') {
            Some((name, tag)) => (name, Some(tag.to_owned())),
            None => (path, None),
        };
        if name.is_empty() || name.len() > 255 || !name.split('/').all(is_name_part) {
            return Err(wrong(
                "its path has to be lower-case words with `/` between them",
            ));
        }
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("its tag is not one"));
        }
        let tag = match (&tag, &digest) {
            (None, None) => Some("latest".to_owned()),
            _ => tag,
        };
        Ok(Self {
            host: host.to_ascii_lowercase(),
            name: name.to_owned(),
            tag,
            digest,
        })
    }

    /// The last word of the path.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// `HOST/NAME`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.host, self.name)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oci://{}/{}", self.host, self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// One part of a path: letters and digits, with single separators within.
fn is_name_part(part: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    part.bytes()
        .all(|byte| is_word(byte) || b"._-".contains(&byte))
        && part.bytes().next().is_some_and(is_word)
        && part.bytes().last().is_some_and(is_word)
        && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let digest = format!("sha256:{:064}", 0);
        for (text, written) in [
            (
                "oci://r.example/team/waf:1.2",
                "oci://r.example/team/waf:1.2",
            ),
            ("localhost:5000/waf", "oci://localhost:5000/waf:latest"),
            (
                "127.0.0.1:5000/a_b/c-d",
                "oci://127.0.0.1:5000/a_b/c-d:latest",
            ),
        ] {
            assert_eq!(Reference::parse(text).unwrap().to_string(), written);
        }
        let both = format!("oci://r.example/waf:1@{digest}");
        assert_eq!(Reference::parse(&both).unwrap().to_string(), both);
        let only = Reference::parse(&format!("r.example/waf@{digest}")).unwrap();
        assert_eq!(only.tag, None);
    }

    #[test]
    fn wrong_names_are_refused() {
        for wrong in [
            "waf",
            "team/waf",
            "r.example/",
            "r.example/Team/waf",
            "r.example/../waf",
            "r.example/a//b",
            "r.example/waf:",
            "r.example/waf:-x",
            "r.example/waf@sha256:abc",
            "r.exam ple/waf",
            "u:p@r.example/waf",
        ] {
            assert!(Reference::parse(wrong).is_err(), "{wrong}");
        }
    }
}
