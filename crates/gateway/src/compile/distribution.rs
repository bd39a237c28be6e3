//! Sources of plugins, `registries` and `plugin_policy`: read into requests for the loader, which fetches.
//!
//! Nothing is fetched here, and no secret is read: a value such as `${env:NAME}` stays a name.

use std::collections::BTreeMap;

use outrider_plugin_formats::{
    Distribution, PluginLocation, PluginRequest, PolicyRule, RegistrySettings, SecretText,
    SecretValue, is_digest,
};
use outrider_yaml::{Field, Located, Location};

use super::files::Source;
use super::{Context, Origin};
use crate::model::{self, Text};

/// Where a plugin comes from.
pub(super) enum Requested {
    /// A folder or a single file, by its path.
    Local(String),
    /// Anything else.
    Fetched(PluginRequest),
}

/// Endings of archives.
const ARCHIVES: [&str; 3] = [".tar", ".tar.gz", ".tgz"];

/// Reads a plugin's `source`, `sha256` and `pull`.
pub(super) fn request(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    plugin: &model::Plugin,
    source: &Located<Text>,
) -> Option<Requested> {
    let text = source.value.0.as_str();
    let (text, digest_in_source) = match text.split_once("@sha256:") {
        Some((before, digits)) if text.contains("://") => {
            (before, Some((format!("sha256:{digits}"), source.location)))
        }
        _ => (text, None),
    };
    let location = match text.split_once(':') {
        Some(("builtin", name)) => PluginLocation::Builtin(name.to_owned()),
        Some(("http" | "https", rest)) if rest.starts_with("//") => {
            PluginLocation::Http(text.to_owned())
        }
        Some(("oci", rest)) if rest.starts_with("//") => {
            PluginLocation::Oci(rest.trim_start_matches('/').to_owned())
        }
        Some((scheme, rest)) if rest.starts_with("//") => {
            let message = format!("plugins cannot be fetched by `{scheme}://`");
            let mend = "use `oci://`, `https://`, `builtin:` or a path";
            context.problem(origin, source.location, message, mend);
            return None;
        }
        _ if ARCHIVES.iter().any(|ending| text.ends_with(ending)) => {
            PluginLocation::Archive(origin.join(text))
        }
        _ => {
            refuse_unused(context, origin, plugin, "a local plugin");
            return Some(Requested::Local(origin.join(text)));
        }
    };
    let digest = match (digest_in_source, digest(context, origin, &plugin.sha256)?) {
        (Some(_), Some((_, place))) => {
            let message = "the digest is written twice";
            let mend = "write it in `source` or in `sha256`";
            context.problem(origin, place, message, mend);
            return None;
        }
        (Some((digest, place)), None) if !is_digest(&digest) => {
            let message = format!("`{digest}` is not a digest");
            let mend = "write `sha256:` and 64 hexadecimal digits in lower case";
            context.problem(origin, place, message, mend);
            return None;
        }
        (one, other) => one.or(other).map(|(digest, _)| digest),
    };
    match &location {
        PluginLocation::Builtin(_) => refuse_unused(context, origin, plugin, "a built-in plugin"),
        PluginLocation::Http(_) if digest.is_none() => {
            let message = format!("the plugin `{}` has no `sha256`", name.value);
            let mend = "add `sha256:` with what `sha256sum` prints of the file; `https://` sources need it";
            context.problem(origin, source.location, message, mend);
            return None;
        }
        _ => {}
    }
    let pull = plugin.pull.value().copied();
    if let Some(place) = plugin.pull.location()
        && !matches!(location, PluginLocation::Oci(_))
    {
        let message = "`pull` is for `oci://` sources";
        context.problem(origin, place, message, "remove it");
    }
    Some(Requested::Fetched(PluginRequest {
        name: name.value.clone(),
        source: match location {
            PluginLocation::Archive(ref path) => path.clone(),
            _ => source.value.0.clone(),
        },
        location,
        digest,
        pull,
    }))
}

/// Tells of keys that are for fetched plugins.
fn refuse_unused(context: &mut Context<'_>, origin: &Origin, plugin: &model::Plugin, what: &str) {
    for (key, place) in [
        ("sha256", plugin.sha256.location()),
        ("pull", plugin.pull.location()),
    ] {
        if let Some(place) = place {
            let message =
                format!("`{key}` is for fetched plugins and archives, and this is {what}");
            context.problem(origin, place, message, "remove it");
        }
    }
}

/// Reads `sha256`; the outer `None` is a problem that has been told.
#[expect(
    clippy::option_option,
    reason = "a problem that was told is not a missing value"
)]
fn digest(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Text>,
) -> Option<Option<(String, Location)>> {
    let Some(written) = field.get() else {
        return Some(None);
    };
    let text = &written.value.0;
    let digest = match text.strip_prefix("sha256:") {
        Some(_) => text.to_ascii_lowercase(),
        None => format!("sha256:{}", text.to_ascii_lowercase()),
    };
    if is_digest(&digest) {
        return Some(Some((digest, written.location)));
    }
    let message = format!("`{text}` is not a SHA-256 digest");
    let mend = "write 64 hexadecimal digits, as `sha256sum` prints them";
    context.problem(origin, written.location, message, mend);
    None
}

/// Reads `registries` and `plugin_policy` of the first file.
pub(super) fn read(context: &mut Context<'_>, sources: &[Source]) -> Distribution {
    let Some(first) = sources.first() else {
        return Distribution::default();
    };
    let origin = &first.origin;
    let mut registries = BTreeMap::new();
    let written = first.file.registries.value();
    for (host, form) in written.into_iter().flat_map(|entries| &entries.0) {
        if !is_host(&host.value) {
            let message = format!("`{}` is not a host", host.value);
            let mend = "write `HOST` or `HOST:PORT`, without `https://` and path";
            context.problem(origin, host.location, message, mend);
        }
        if let Some(form) = form.get() {
            let settings = registry(context, origin, form);
            registries.insert(host.value.clone(), settings);
        }
    }
    let policy = first.file.plugin_policy.value().map(|rules| {
        let rules = rules.iter().filter_map(Field::get);
        rules
            .filter_map(|rule| policy_rule(context, origin, rule))
            .collect()
    });
    Distribution {
        file: origin.file.to_string(),
        registries,
        policy,
    }
}

fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte))
}

fn registry(
    context: &mut Context<'_>,
    origin: &Origin,
    form: &Located<model::Registry>,
) -> RegistrySettings {
    let model::Registry {
        username,
        password,
        token,
        ca,
        mirrors,
        token_server,
        plain_http,
    } = &form.value;
    let mut secret = |field: &Field<Text>| {
        let written = field.get()?;
        let value = secret_value(origin, &written.value.0);
        if value.is_none() {
            let message = format!("`{}` names nothing", written.value.0);
            let mend = "write `${env:NAME}`, `${file:PATH}`, or the text itself";
            context.problem(origin, written.location, message, mend);
        }
        value
    };
    let (username_value, password_value, token_value) =
        (secret(username), secret(password), secret(token));
    if username.is_missing() != password.is_missing() {
        let message = "`username` and `password` belong together";
        context.problem(origin, form.location, message, "add the other one");
    }
    if !token.is_missing() && !username.is_missing() {
        let message = "`token` and `username` are two ways to say who asks";
        context.problem(origin, form.location, message, "remove one of them");
    }
    let mut hosts = Vec::new();
    let listed = mirrors.value().into_iter().flatten().filter_map(Field::get);
    for host in listed.chain(token_server.get()) {
        if !is_host(&host.value.0) {
            let message = format!("`{}` is not a host", host.value.0);
            let mend = "write `HOST` or `HOST:PORT`, without `https://` and path";
            context.problem(origin, host.location, message, mend);
        }
    }
    let listed = mirrors.value().into_iter().flatten();
    hosts.extend(listed.filter_map(|host| Some(host.value()?.0.clone())));
    RegistrySettings {
        username: username_value,
        password: password_value,
        token: token_value,
        ca: ca.value().map(|path| origin.join(&path.0)),
        mirrors: hosts,
        token_server: token_server.value().map(|host| host.0.clone()),
        plain_http: plain_http.value().copied(),
    }
}

/// Reads `${env:NAME}`, `${file:PATH}` or a text; `None` if a reference is malformed.
fn secret_value(origin: &Origin, text: &str) -> Option<SecretValue> {
    let Some(reference) = text.strip_prefix("${") else {
        return Some(SecretValue::Text(SecretText(text.to_owned())));
    };
    match reference.strip_suffix('}')?.split_once(':')? {
        ("env", name) if !name.is_empty() && !name.contains(['=', '\0']) => {
            Some(SecretValue::Environment(name.to_owned()))
        }
        ("file", path) if !path.is_empty() => Some(SecretValue::File(origin.join(path))),
        _ => None,
    }
}

fn policy_rule(
    context: &mut Context<'_>,
    origin: &Origin,
    rule: &Located<model::PolicyRule>,
) -> Option<PolicyRule> {
    let sources = context.required(
        origin,
        rule.location,
        "the rule",
        "sources",
        &rule.value.sources,
    )?;
    let texts = |fields: &[Field<Text>]| -> Vec<String> {
        let values = fields.iter().filter_map(Field::value);
        values.map(|text| text.0.clone()).collect()
    };
    let keys = rule
        .value
        .keys
        .value()
        .map_or(Vec::new(), |keys| texts(keys));
    let unsigned = rule.value.unsigned.value().copied().unwrap_or(false);
    let complaint = match (keys.is_empty(), unsigned) {
        (true, false) => Some(("the rule has no `keys`", "add `keys:`, or `unsigned: true`")),
        (false, true) => Some((
            "`keys` and `unsigned: true` contradict each other",
            "remove one of them",
        )),
        _ => None,
    };
    if let Some((message, mend)) = complaint {
        context.problem(origin, rule.location, message, mend);
        return None;
    }
    let keys: Vec<String> = keys.iter().map(|path| origin.join(path)).collect();
    for path in &keys {
        context.files.push(path.clone());
    }
    Some(PolicyRule {
        sources: texts(&sources.value),
        keys,
        place: format!("{}:{}", origin.file, rule.location.line),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_a_reference_or_a_text() {
        let origin = Origin::new("etc/outrider.yaml");
        let read = |text| secret_value(&origin, text);
        assert_eq!(
            read("${env:USER}"),
            Some(SecretValue::Environment("USER".to_owned()))
        );
        assert_eq!(
            read("${file:secrets/p}"),
            Some(SecretValue::File("etc/secrets/p".to_owned()))
        );
        let text = SecretValue::Text(SecretText("a$b".to_owned()));
        assert_eq!(read("a$b"), Some(text));
        for wrong in ["${env:}", "${USER}", "${env:USER", "${vault:x}"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
