//! The configuration, checked and prepared.
//!
//! `config.schema.json` says the same to those who have a schema's reader; this holds where nobody has
//! looked at the schema.

use std::collections::BTreeMap;

use serde::Deserialize;

/// What the plugin works with.
pub(crate) struct Config {
    pub(crate) access: Access,
    /// Whether the upstream sees neither password nor token.
    pub(crate) hide_credentials: bool,
}

/// Who may pass.
pub(crate) enum Access {
    /// Who has a user's password.
    Users(Users),
    /// Who has the token.
    Token { header: String, value: String },
}

/// The users, and what is said to whoever is none of them.
pub(crate) struct Users {
    pub(crate) passwords: BTreeMap<Vec<u8>, String>,
    /// Value of `www-authenticate`.
    pub(crate) challenge: String,
    /// The request header that tells the upstream the user's name.
    pub(crate) user_header: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    users: Option<BTreeMap<String, String>>,
    realm: Option<String>,
    user_header: Option<String>,
    token: Option<WrittenToken>,
    #[serde(default)]
    hide_credentials: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenToken {
    header: Option<String>,
    value: String,
}

impl Config {
    /// Reads the configuration; the error is for whoever wrote it.
    pub(crate) fn read(bytes: Option<&[u8]>) -> Result<Self, String> {
        let written: Written = support::configuration(bytes)?;
        let hide_credentials = written.hide_credentials;
        let access = match (written.users, written.token) {
            (Some(users), None) => users_of(users, written.realm, written.user_header)?,
            (None, Some(token)) => {
                for (key, given) in [
                    ("realm", written.realm.is_some()),
                    ("user_header", written.user_header.is_some()),
                ] {
                    if given {
                        return Err(format!(
                            "`{key}` has no meaning with `token`; remove it, or use `users`"
                        ));
                    }
                }
                token_of(token)?
            }
            _ => return Err("exactly one of `users` and `token` must be there".to_owned()),
        };
        Ok(Self {
            access,
            hide_credentials,
        })
    }
}

fn users_of(
    users: BTreeMap<String, String>,
    realm: Option<String>,
    user_header: Option<String>,
) -> Result<Access, String> {
    if users.is_empty() {
        return Err("`users` is empty; name at least one".to_owned());
    }
    for (name, password) in &users {
        if name.is_empty() || name.contains(|c: char| c == ':' || c.is_ascii_control()) {
            return Err(format!(
                "users: {name:?} cannot be a name; one has no colon and no control characters"
            ));
        }
        if password.is_empty() {
            return Err(format!("users.{name}: the password is empty"));
        }
    }
    let realm = realm.as_deref().unwrap_or("restricted");
    if realm.contains(|c: char| c.is_ascii_control()) {
        return Err("`realm` cannot contain control characters".to_owned());
    }
    if let Some(header) = &user_header {
        check_header("user_header", header)?;
        if header.eq_ignore_ascii_case("authorization") {
            return Err(
                "`user_header` cannot be `authorization`; choose a header of its own, for example x-user"
                    .to_owned(),
            );
        }
    }
    let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
    Ok(Access::Users(Users {
        passwords: users
            .into_iter()
            .map(|(name, password)| (name.into_bytes(), password))
            .collect(),
        challenge: format!("Basic realm=\"{quoted}\", charset=\"UTF-8\""),
        user_header,
    }))
}

fn token_of(token: WrittenToken) -> Result<Access, String> {
    let header = token.header.unwrap_or_else(|| "x-token".to_owned());
    check_header("token.header", &header)?;
    if token.value.is_empty() {
        return Err("`token.value` is empty".to_owned());
    }
    Ok(Access::Token {
        header,
        value: token.value,
    })
}

fn check_header(key: &str, name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+.^_`|~-".contains(&byte);
    if !name.is_empty() && name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(format!("`{key}`: {name:?} cannot be a header's name"))
    }
}
