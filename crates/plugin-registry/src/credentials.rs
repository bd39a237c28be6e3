//! Who asks: the settings of `outrider.yaml`, then Docker's configuration and its credential helpers.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrider_plugin_formats::{RegistrySettings, SecretValue};
use serde::Deserialize;

use crate::error::FetchError;

/// Time for a credential helper.
const HELPER: Duration = Duration::from_secs(30);
/// Bytes that are read of a helper, a configuration, or a file with a secret.
const LARGEST: u64 = 1024 * 1024;

/// Credentials for one host.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// User and password.
    Basic(String, String),
    /// A bearer token that the registry takes as it is.
    Bearer(String),
    /// A refresh token, for the token server.
    Identity(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(***)")
    }
}

impl Credentials {
    /// The header of basic authentication.
    pub(crate) fn basic_header(user: &str, password: &str) -> String {
        format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
    }
}

/// The value of a secret.
pub(crate) fn value_of(secret: &SecretValue) -> Result<String, FetchError> {
    match secret {
        SecretValue::Text(text) => Ok(text.0.clone()),
        SecretValue::Environment(name) => std::env::var(name).map_err(|_| {
            FetchError::new(format!("the environment variable {name} is not set"))
                .mend("set it, or change the value under `registries`")
        }),
        SecretValue::File(path) => {
            let file = Path::new(path);
            let text = read_limited(file)?;
            let text = String::from_utf8(text)
                .map_err(|_| FetchError::new(format!("{path} is not text in UTF-8")))?;
            Ok(text.trim_end_matches(['\n', '\r']).to_owned())
        }
    }
}

fn read_limited(file: &Path) -> Result<Vec<u8>, FetchError> {
    let failed = |error| FetchError::file(file, "read", &error);
    let opened = std::fs::File::open(file).map_err(failed)?;
    let mut bytes = Vec::new();
    opened
        .take(LARGEST)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(bytes)
}

/// Credentials for a host (`HOST` or `HOST:PORT`), and where they come from; `None` if there are none.
pub(crate) fn for_host(
    host: &str,
    settings: &RegistrySettings,
    docker: Option<&Path>,
) -> Result<Option<(Credentials, String)>, FetchError> {
    const SETTINGS: &str = "`registries` in the gateway's file";
    if let Some(token) = &settings.token {
        let token = Credentials::Bearer(value_of(token)?);
        return Ok(Some((token, SETTINGS.to_owned())));
    }
    if let (Some(user), Some(password)) = (&settings.username, &settings.password) {
        let basic = Credentials::Basic(value_of(user)?, value_of(password)?);
        return Ok(Some((basic, SETTINGS.to_owned())));
    }
    let Some(file) = docker.map(|folder| folder.join("config.json")) else {
        return Ok(None);
    };
    if !file.is_file() {
        return Ok(None);
    }
    of_docker(host, &file)
}

/// Folder of Docker's configuration: `$DOCKER_CONFIG`, else `~/.docker`.
pub(crate) fn docker_folder() -> Option<PathBuf> {
    std::env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DockerConfig {
    auths: BTreeMap<String, DockerAuth>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "lowercase")]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

impl std::fmt::Debug for DockerAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DockerAuth(***)")
    }
}

/// Keys under which Docker keeps a host's entry.
fn keys(host: &str) -> Vec<String> {
    let mut keys = vec![
        host.to_owned(),
        format!("https://{host}"),
        format!("http://{host}"),
        format!("https://{host}/v2/"),
        format!("https://{host}/v1/"),
    ];
    if matches!(
        host,
        "docker.io" | "registry-1.docker.io" | "index.docker.io"
    ) {
        keys.push("https://index.docker.io/v1/".to_owned());
    }
    keys
}

fn of_docker(host: &str, file: &Path) -> Result<Option<(Credentials, String)>, FetchError> {
    let place = file.display().to_string();
    let text = read_limited(file)?;
    let config: DockerConfig = serde_json::from_slice(&text).map_err(|error| {
        FetchError::new(format!("{place} is not Docker's configuration: {error}"))
    })?;
    let keys = keys(host);
    let helper = keys
        .iter()
        .find_map(|key| config.cred_helpers.get(key))
        .or(config.creds_store.as_ref());
    if let Some(helper) = helper {
        let server = keys
            .iter()
            .find(|key| config.auths.contains_key(*key))
            .map_or(host, String::as_str);
        let found = of_helper(helper, server)?;
        if let Some(found) = found {
            let origin = format!("the credential helper docker-credential-{helper}");
            return Ok(Some((found, origin)));
        }
    }
    let Some(entry) = keys.iter().find_map(|key| config.auths.get(key)) else {
        return Ok(None);
    };
    let wrong = || FetchError::new(format!("the entry of {host} in {place} is malformed"));
    let nonempty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(token) = nonempty(&entry.identitytoken) {
        return Ok(Some((Credentials::Identity(token), place)));
    }
    if let Some(token) = nonempty(&entry.registrytoken) {
        return Ok(Some((Credentials::Bearer(token), place)));
    }
    if let Some(encoded) = nonempty(&entry.auth) {
        let decoded = STANDARD.decode(encoded.trim()).map_err(|_| wrong())?;
        let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
        let (user, password) = decoded.split_once(':').ok_or_else(wrong)?;
        let password = password.trim_matches('\0');
        return Ok(Some((
            Credentials::Basic(user.to_owned(), password.to_owned()),
            place,
        )));
    }
    if let (Some(user), Some(password)) = (nonempty(&entry.username), nonempty(&entry.password)) {
        return Ok(Some((Credentials::Basic(user, password), place)));
    }
    Ok(None)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Asks a credential helper of Docker's; `None` if it knows nothing of the server.
fn of_helper(helper: &str, server: &str) -> Result<Option<Credentials>, FetchError> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if helper.is_empty() || !helper.bytes().all(is_name) {
        let message = format!("`{helper}` is not the name of a credential helper");
        return Err(FetchError::new(message));
    }
    let program = format!("docker-credential-{helper}");
    let failed = |why: String| FetchError::new(format!("{program} for {server}: {why}"));
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    let (mut input, output) = (child.stdin.take(), child.stdout.take());
    if let Some(input) = &mut input {
        // One that does not read gives no answer either.
        let _ = input.write_all(server.as_bytes());
    }
    drop(input);
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(output) = output {
            let _ = output.take(LARGEST).read_to_end(&mut bytes);
        }
        let _ = sender.send(bytes);
    });
    let Ok(bytes) = answer.recv_timeout(HELPER) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(failed(format!("no answer within {} s", HELPER.as_secs())));
    };
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        let text = String::from_utf8_lossy(&bytes);
        if text.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(format!("it failed ({status})")));
    }
    let answer: HelperAnswer = serde_json::from_slice(&bytes)
        .map_err(|_| failed("its answer is not the JSON of a credential helper".to_owned()))?;
    Ok(Some(if answer.username == "<token>" {
        Credentials::Identity(answer.secret)
    } else {
        Credentials::Basic(answer.username, answer.secret)
    }))
}

#[cfg(test)]
mod tests {
    use outrider_plugin_formats::SecretText;

    use super::*;

    fn docker(text: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        folder
    }

    #[test]
    fn docker_entries_are_read() {
        let folder = docker(
            r#"{"auths": {"a.example": {"auth": "dTpwOnE="}, "https://b.example/v1/": {"identitytoken": "t"},
                "c.example": {}, "d.example": {"auth": "?"}}}"#,
        );
        let settings = RegistrySettings::default();
        let of = |host: &str| for_host(host, &settings, Some(folder.path()));
        let basic = Credentials::Basic("u".to_owned(), "p:q".to_owned());
        assert_eq!(of("a.example").unwrap().unwrap().0, basic);
        let token = Credentials::Identity("t".to_owned());
        assert_eq!(of("b.example").unwrap().unwrap().0, token);
        assert_eq!(of("c.example").unwrap(), None);
        assert!(of("d.example").is_err());
        assert_eq!(of("e.example").unwrap(), None);
        // A host's entry is that host's, and no other's whose name begins so.
        assert_eq!(of("a.example.evil.example").unwrap(), None);
        assert_eq!(of("a.example:8443").unwrap(), None);
    }

    #[test]
    fn settings_come_before_docker() {
        let folder = docker(r#"{"auths": {"a.example": {"auth": "dTpw"}}}"#);
        let text = |text: &str| Some(SecretValue::Text(SecretText(text.to_owned())));
        let settings = RegistrySettings {
            username: text("me"),
            password: text("secret"),
            ..RegistrySettings::default()
        };
        let found = for_host("a.example", &settings, Some(folder.path()))
            .unwrap()
            .unwrap();
        assert_eq!(
            found.0,
            Credentials::Basic("me".to_owned(), "secret".to_owned())
        );
        assert!(!format!("{found:?}").contains("secret"));
    }

    #[test]
    fn helper_with_a_path_in_its_name_is_refused() {
        for name in ["../evil", "a/b", "", "a b"] {
            assert!(of_helper(name, "x").is_err(), "{name}");
        }
        let missing = of_helper("outrider-test-is-not-there", "x").unwrap_err();
        assert!(missing.message.contains("cannot be run"), "{missing}");
    }
}
