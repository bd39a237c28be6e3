//! Sources of plugins beyond local folders, and what `outrider.yaml` says of them: registries, signature policy.

use std::collections::BTreeMap;

/// Where a plugin's `source` leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginLocation {
    /// A plugin inside the `outrider` binary: `builtin:NAME`.
    Builtin(String),
    /// A local `.tar`, `.tar.gz` or `.tgz` file.
    Archive(String),
    /// An `https://` or `http://` URL, without its digest.
    Http(String),
    /// An image in an OCI registry, without the scheme: `HOST/NAME:TAG`, `HOST/NAME@sha256:…`.
    Oci(String),
}

/// When a tag is resolved again.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub enum PullPolicy {
    /// Only if the store has no digest of this tag.
    IfNotPresent,
    /// Whenever the gateway's file is read.
    Always,
}

/// One plugin to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginRequest {
    /// Name of the plugin in `outrider.yaml`.
    pub name: String,
    /// `source`, as it is written.
    pub source: String,
    /// Where it leads.
    pub location: PluginLocation,
    /// `sha256:` and 64 hexadecimal digits that the file writes for it.
    pub digest: Option<String>,
    /// Pull policy that the file writes for it.
    pub pull: Option<PullPolicy>,
}

/// A value that a file names instead of holding it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretValue {
    /// An environment variable: `${env:NAME}`.
    Environment(String),
    /// The content of a file, without trailing line breaks: `${file:PATH}`.
    File(String),
    /// The text itself.
    Text(SecretText),
}

/// Text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("\"***\"")
    }
}

/// Settings of one registry or server of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Name of a user, for basic authentication.
    pub username: Option<SecretValue>,
    /// The user's password.
    pub password: Option<SecretValue>,
    /// A bearer token, instead of user and password.
    pub token: Option<SecretValue>,
    /// PEM file of certificate authorities, instead of the system's.
    pub ca: Option<String>,
    /// Hosts that are asked first, in this order.
    pub mirrors: Vec<String>,
    /// Host and port of a token server that may get the credentials, too.
    pub token_server: Option<String>,
    /// Whether HTTP is spoken without TLS; `None`: with loopback addresses only.
    pub plain_http: Option<bool>,
}

/// A rule of `plugin_policy`. The first one whose patterns match a source judges it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRule {
    /// Patterns of sources; `*` matches any characters.
    pub sources: Vec<String>,
    /// Paths of files with public keys, one of which has to have signed; empty: unsigned plugins are accepted.
    pub keys: Vec<String>,
    /// File and line of the rule, for messages.
    pub place: String,
}

/// What `outrider.yaml` says of the distribution of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Path of the gateway's file; `outrider.lock` is beside it.
    pub file: String,
    /// Settings by `HOST` or `HOST:PORT`.
    pub registries: BTreeMap<String, RegistrySettings>,
    /// The signature policy. `None`: every plugin is accepted.
    pub policy: Option<Vec<PolicyRule>>,
}

/// Whether a text is a digest: `sha256:` and 64 small hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| {
        digits.len() == 64
            && digits
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_secret_does_not_show_it() {
        let value = SecretValue::Text(SecretText("hunter2".to_owned()));
        assert!(!format!("{value:?}").contains("hunter2"));
    }

    #[test]
    fn digest_has_64_small_digits() {
        let digits = "0".repeat(63);
        assert!(is_digest(&format!("sha256:{digits}a")));
        for wrong in ["", "g", "A", "aa"] {
            assert!(!is_digest(&format!("sha256:{digits}{wrong}")), "{wrong}");
        }
        assert!(!is_digest(&format!("sha512:{digits}a")));
    }
}
