//! Plugins from servers that are slow, broken or hostile: each row of the table of faults that users can meet.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/registry.rs"]
mod registry;
#[path = "support/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use outrider_plugin_formats::{
    Distribution, PluginCode, PluginLocation, PluginPackage, PluginRequest, PolicyRule, PullPolicy,
    RegistrySettings, SecretText, SecretValue,
};
use outrider_plugin_registry::{
    Fetcher, Image, LockFile, Options, Patience, Progress, SigningKey, Store, VerifyingKey, build,
    digest_of,
};
use serde_json::json;

use registry::Registry;
use server::{Reply, Server};

const EMPTY: &[u8] = b"\0asm\x01\0\0\0";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Progress for Notes {
    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

/// A store, and everything to fetch with.
struct Setup {
    folder: tempfile::TempDir,
    notes: Notes,
    distribution: Distribution,
    offline: bool,
    docker: bool,
}

impl Setup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outrider.yaml").display().to_string();
        Self {
            folder,
            notes: Notes::default(),
            distribution: Distribution {
                file,
                ..Distribution::default()
            },
            offline: false,
            docker: false,
        }
    }

    fn store(&self) -> Store {
        Store::new(self.folder.path().join("store"))
    }

    fn fetcher(&self) -> Fetcher<'_> {
        let options = Options {
            store: self.store(),
            offline: self.offline,
            docker: self.docker.then(|| self.folder.path().to_owned()),
            patience: Patience {
                first_pause: Duration::from_millis(1),
                silence: Duration::from_millis(500),
            },
        };
        Fetcher::new(options, &self.notes)
    }

    fn fetch(&self, request: &PluginRequest) -> Result<(PluginPackage, Vec<String>), String> {
        let fetched = self.fetcher().fetch(request, &self.distribution);
        fetched.map_err(|problems| {
            let texts = problems.iter().map(ToString::to_string);
            texts.collect::<Vec<_>>().join("\n")
        })
    }

    fn notes(&self) -> String {
        self.notes.0.lock().unwrap().join("\n")
    }

    fn settings(&mut self, host: &str) -> &mut RegistrySettings {
        self.distribution
            .registries
            .entry(host.to_owned())
            .or_default()
    }
}

fn oci(image: &str) -> PluginRequest {
    PluginRequest {
        name: "waf".to_owned(),
        source: format!("oci://{image}"),
        location: PluginLocation::Oci(image.to_owned()),
        digest: None,
        pull: None,
    }
}

fn https(url: &str, digest: &str) -> PluginRequest {
    PluginRequest {
        name: "waf".to_owned(),
        source: url.to_owned(),
        location: PluginLocation::Http(url.to_owned()),
        digest: Some(digest.to_owned()),
        pull: None,
    }
}

fn text(text: &str) -> SecretValue {
    SecretValue::Text(SecretText(text.to_owned()))
}

/// A Lua plugin of a version.
fn image(version: &str) -> Image {
    let folder = tempfile::tempdir().unwrap();
    let manifest = format!("name: waf\nruntime: lua\nversion: \"{version}\"\n");
    std::fs::write(folder.path().join("plugin.yaml"), manifest).unwrap();
    std::fs::write(folder.path().join("main.lua"), "return {}\n").unwrap();
    std::fs::write(folder.path().join("README.md"), "# WAF\n").unwrap();
    let package = outrider_plugin_store::open(folder.path()).unwrap();
    build(folder.path(), &package).unwrap()
}

/// A registry with the plugin under the tag `1.0`.
fn pushed(setup: &Setup, registry: &Registry, version: &str) -> Image {
    let image = image(version);
    let target = format!("{}/waf:1.0", registry.host());
    let pushed = setup
        .fetcher()
        .push(&target, &image, &setup.distribution)
        .unwrap();
    assert_eq!(pushed.digest, image.digest);
    image
}

fn manifest(layers: &[(&str, &str, usize)]) -> Vec<u8> {
    let layers: Vec<_> = layers
        .iter()
        .map(|(kind, digest, size)| json!({"mediaType": kind, "digest": digest, "size": size}))
        .collect();
    json!({"schemaVersion": 2, "layers": layers})
        .to_string()
        .into_bytes()
}

fn closed_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn pushed_plugin_is_fetched_and_kept_for_offline_starts() {
    let mut setup = Setup::new();
    let registry = Registry::start();
    pushed(&setup, &registry, "1.2.3");
    let request = oci(&format!("{}/waf:1.0", registry.host()));
    let (package, warnings) = setup.fetch(&request).unwrap();
    assert_eq!(package.manifest.version.as_deref(), Some("1.2.3"));
    assert!(matches!(package.code, PluginCode::Files(_)));
    assert_eq!(package.folder, request.source);
    assert_eq!(warnings, Vec::<String>::new());
    assert!(
        setup.notes().contains("fetching oci://"),
        "{}",
        setup.notes()
    );
    // Everything is there: neither a request nor a registry.
    let asked = registry.server.asked().len();
    assert_eq!(setup.fetch(&request).unwrap().0, package);
    assert_eq!(registry.server.asked().len(), asked);
    drop(registry);
    setup.offline = true;
    assert_eq!(setup.fetch(&request).unwrap().0, package);
    let error = setup.fetch(&oci("r.example/other:1")).unwrap_err();
    assert!(error.contains("`--offline` forbids"), "{error}");
}

#[test]
fn module_has_a_file_for_envoy() {
    let setup = Setup::new();
    let registry = Registry::start();
    let layer = registry.blob(EMPTY);
    let config = "application/vnd.module.wasm.config.v1+json";
    let module = "application/vnd.module.wasm.content.layer.v1+wasm";
    registry.manifest(
        "1.0",
        &manifest(&[(config, &layer, 8), (module, &layer, 8)]),
    );
    let (package, _) = setup
        .fetch(&oci(&format!("{}/waf:1.0", registry.host())))
        .unwrap();
    let PluginCode::Module(found) = &package.code else {
        panic!("no module");
    };
    assert_eq!(std::fs::read(&found.file).unwrap(), EMPTY);
    assert_eq!(package.digest, digest_of(EMPTY));
    assert_eq!(package.manifest.name, "waf");
}

#[test]
fn wrong_digests_and_truncated_answers_are_refused() {
    let setup = Setup::new();
    let registry = Registry::start();
    let image = pushed(&setup, &registry, "1");
    let host = registry.host();
    let wrong = format!("sha256:{:064}", 7);
    // A manifest that is another than its digest says.
    let bytes = image.manifest.clone();
    let mut changed = bytes.clone();
    changed.push(b' ');
    let key = format!("waf/{}", image.digest);
    registry
        .content
        .lock()
        .unwrap()
        .manifests
        .insert(key.clone(), changed.clone());
    let pinned = PluginRequest {
        digest: Some(image.digest.clone()),
        ..oci(&format!("{host}/waf:1.0"))
    };
    let other = Setup::new();
    let error = other.fetch(&pinned).unwrap_err();
    let expected = format!("expected {}, found {}", image.digest, digest_of(&changed));
    assert!(error.contains(&expected), "{error}");
    registry
        .content
        .lock()
        .unwrap()
        .manifests
        .insert(key, bytes);
    // A layer that is another.
    let layers: Vec<String> = registry
        .content
        .lock()
        .unwrap()
        .blobs
        .keys()
        .cloned()
        .collect();
    for layer in layers {
        registry
            .content
            .lock()
            .unwrap()
            .blobs
            .insert(layer, b"changed".to_vec());
    }
    let error = Setup::new().fetch(&pinned).unwrap_err();
    assert!(
        error.contains("expected sha256:") && error.contains(&digest_of(b"changed")),
        "{error}"
    );
    // A digest that no manifest has.
    let missing = PluginRequest {
        digest: Some(wrong),
        ..oci(&format!("{host}/waf:1.0"))
    };
    let error = Setup::new().fetch(&missing).unwrap_err();
    assert!(error.contains("has no `waf:sha256:"), "{error}");
}

#[test]
fn layer_larger_than_its_manifest_says_is_not_read_on() {
    let registry = Registry::start();
    let big = vec![0; 4 * 1024 * 1024];
    let layer = registry.blob(&big);
    registry.manifest("1.0", &manifest(&[(OCI_LAYER, &layer, 100)]));
    let error = Setup::new()
        .fetch(&oci(&format!("{}/waf:1.0", registry.host())))
        .unwrap_err();
    assert!(error.contains("more than 101 bytes, the limit"), "{error}");
}

#[test]
fn faults_of_images_are_named() {
    let registry = Registry::start();
    let module = registry.blob(EMPTY);
    let garbage = registry.blob(b"hello");
    for (layers, what) in [
        (
            vec![("text/plain", module.as_str(), 8)],
            "its last layer is of type `text/plain`",
        ),
        (
            vec![(OCI_LAYER, garbage.as_str(), 5)],
            "neither gzip nor tar",
        ),
        (
            vec![(OCI_LAYER, module.as_str(), 300 << 20)],
            "more than the limit of 256.0 MiB",
        ),
    ] {
        registry.manifest("1.0", &manifest(&layers));
        let request = oci(&format!("{}/waf:1.0", registry.host()));
        let error = Setup::new().fetch(&request).unwrap_err();
        assert!(
            error.contains(what) && error.contains("the plugin `waf`"),
            "{error}"
        );
    }
    registry.manifest("1.0", b"<html>");
    let error = Setup::new()
        .fetch(&oci(&format!("{}/waf:1.0", registry.host())))
        .unwrap_err();
    assert!(
        error.contains("its manifest is not one of an image"),
        "{error}"
    );
}

#[test]
fn server_that_recovers_is_asked_again() {
    let digest = digest_of(EMPTY);
    for reply in [
        Reply::new(503, ""),
        Reply::new(500, ""),
        Reply::new(429, "").header("retry-after", "0"),
        Reply::new(200, EMPTY).cut_after(3),
    ] {
        let server = Server::start(move |_, number| match number {
            0 | 1 => reply.clone(),
            _ => Reply::new(200, EMPTY),
        });
        let setup = Setup::new();
        setup
            .fetch(&https(&server.url("/x.wasm"), &digest))
            .unwrap();
        assert_eq!(server.asked().len(), 3);
        assert!(
            setup.notes().contains("trying again in"),
            "{}",
            setup.notes()
        );
        assert!(setup.notes().contains("(3 of 5)"), "{}", setup.notes());
    }
}

#[test]
fn server_that_stays_down_is_given_up_in_one_sentence() {
    let digest = digest_of(EMPTY);
    for (reply, what) in [
        (Reply::new(503, ""), "answers 503"),
        (Reply::new(429, ""), "answers 429, too many requests"),
        (Reply::new(200, EMPTY).cut_after(3), "broke off"),
    ] {
        let server = Server::start(move |_, _| reply.clone());
        let error = Setup::new()
            .fetch(&https(&server.url("/x.wasm"), &digest))
            .unwrap_err();
        assert!(
            error.contains(what) && error.contains(&server.host),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!(server.asked().len(), 5, "{what}");
    }
    let setup = Setup::new();
    let error = setup
        .fetch(&https(&format!("http://{}/x.wasm", closed_port()), &digest))
        .unwrap_err();
    assert!(error.contains("cannot be reached"), "{error}");
    assert!(setup.notes().contains("(5 of 5)"), "{}", setup.notes());
}

#[test]
fn silent_server_is_given_up_within_its_time() {
    let server = Server::start(|_, _| Reply::new(200, EMPTY).after(Duration::from_secs(3)));
    let began = Instant::now();
    let url = server.url("/x.wasm");
    let error = Setup::new()
        .fetch(&https(&url, &digest_of(EMPTY)))
        .unwrap_err();
    assert!(error.contains("did not answer within"), "{error}");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn retry_after_of_an_hour_is_not_waited_for() {
    let server = Server::start(|_, _| Reply::new(429, "").header("retry-after", "3600"));
    let began = Instant::now();
    Setup::new()
        .fetch(&https(&server.url("/x.wasm"), &digest_of(EMPTY)))
        .unwrap_err();
    assert_eq!(server.asked().len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn refusals_are_not_repeated() {
    for (status, what) in [
        (401, "(401)"),
        (403, "(403)"),
        (404, "(404)"),
        (410, "answers 410"),
    ] {
        let server = Server::start(move |_, _| Reply::new(status, "no"));
        let error = Setup::new()
            .fetch(&https(&server.url("/x.wasm"), &digest_of(EMPTY)))
            .unwrap_err();
        assert!(error.contains(what), "{error}");
        assert_eq!(server.asked().len(), 1, "{status}");
    }
}

#[test]
fn redirects_to_forbidden_addresses_are_not_followed() {
    for target in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/x",
        "http://[::ffff:169.254.169.254]/x",
        "http://0.0.0.0/x",
    ] {
        let server = Server::start(move |_, _| Reply::new(302, "").header("location", target));
        let error = Setup::new()
            .fetch(&https(&server.url("/x.wasm"), &digest_of(EMPTY)))
            .unwrap_err();
        assert!(error.contains("may not be dialled"), "{target}: {error}");
        assert_eq!(server.asked().len(), 1, "{target}");
    }
    let error = Setup::new()
        .fetch(&https("http://169.254.169.254/x", &digest_of(EMPTY)))
        .unwrap_err();
    assert!(error.contains("is not encrypted"), "{error}");
    let error = Setup::new()
        .fetch(&https("https://169.254.169.254/x", &digest_of(EMPTY)))
        .unwrap_err();
    assert!(error.contains("may not be dialled"), "{error}");
}

#[test]
fn endless_redirects_end() {
    let server = Server::start(|asked, _| {
        Reply::new(302, "").header("location", format!("{}x", asked.path))
    });
    let error = Setup::new()
        .fetch(&https(&server.url("/x.wasm"), &digest_of(EMPTY)))
        .unwrap_err();
    assert!(error.contains("redirects more than 5 times"), "{error}");
    assert_eq!(server.asked().len(), 6);
}

#[test]
fn credentials_stay_with_their_host_over_redirects() {
    let storage = Server::start(|_, _| Reply::new(200, EMPTY));
    let target = storage.url("/blob");
    let server = Server::start(move |_, _| Reply::new(307, "").header("location", target.clone()));
    let mut setup = Setup::new();
    setup.settings(&server.host).token = Some(text("secret"));
    setup
        .fetch(&https(&server.url("/x.wasm"), &digest_of(EMPTY)))
        .unwrap();
    assert_eq!(
        server.asked()[0].authorization.as_deref(),
        Some("Bearer secret")
    );
    assert_eq!(storage.asked()[0].authorization, None);

    // A host that was reached by a redirect asks for them.
    let greedy =
        Server::start(|_, _| Reply::new(401, "").header("www-authenticate", "Basic realm=x"));
    let target = greedy.url("/v2/waf/manifests/1.0");
    let registry =
        Registry::guarded(move |_| Some(Reply::new(307, "").header("location", target.clone())));
    let mut setup = Setup::new();
    setup.settings(registry.host()).username = Some(text("me"));
    setup.settings(registry.host()).password = Some(text("secret"));
    let error = setup
        .fetch(&oci(&format!("{}/waf:1.0", registry.host())))
        .unwrap_err();
    assert!(
        error.contains("asks for credentials, which are sent to"),
        "{error}"
    );
    assert!(
        greedy
            .asked()
            .iter()
            .all(|asked| asked.authorization.is_none())
    );
}

fn basic(user: &str, password: &str) -> String {
    use base64::Engine as _;
    let text = format!("{user}:{password}");
    format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(text)
    )
}

#[test]
fn basic_credentials_are_sent_when_asked() {
    let wanted = basic("me", "secret");
    let registry = Registry::guarded(move |asked| {
        let is_right = asked.authorization.as_deref() == Some(&wanted);
        (!is_right).then(|| Reply::new(401, "").header("www-authenticate", "Basic realm=\"r\""))
    });
    let request = oci(&format!("{}/waf:1.0", registry.host()));
    let mut setup = Setup::new();
    let error = setup.fetch(&request).unwrap_err();
    assert!(
        error.contains("asks for credentials") && error.contains("docker login"),
        "{error}"
    );
    setup.settings(registry.host()).username = Some(text("me"));
    setup.settings(registry.host()).password = Some(text("wrong"));
    let error = setup.fetch(&request).unwrap_err();
    assert!(
        error.contains("refuses") && error.contains("`registries`"),
        "{error}"
    );
    setup.settings(registry.host()).password = Some(text("secret"));
    pushed(&setup, &registry, "1");
    setup.fetch(&request).unwrap();
    // The same from Docker's configuration.
    let mut setup = Setup::new();
    setup.docker = true;
    let auth = basic("me", "secret").replace("Basic ", "");
    let config = json!({"auths": {registry.host(): {"auth": auth}}}).to_string();
    std::fs::write(setup.folder.path().join("config.json"), config).unwrap();
    setup.fetch(&request).unwrap();
}

/// A registry that wants the token `good`, from a token server of this URL.
fn with_tokens(realm: impl Fn(&str) -> String + Send + Sync + 'static) -> Registry {
    Registry::guarded(move |asked| {
        if asked.path.starts_with("/token") {
            return Some(Reply::new(200, r#"{"token": "good"}"#));
        }
        let is_right = asked.authorization.as_deref() == Some("Bearer good");
        (!is_right).then(|| {
            let realm = realm(&asked.path);
            Reply::new(401, "").header(
                "www-authenticate",
                format!("Bearer realm=\"{realm}\",service=\"r\""),
            )
        })
    })
}

#[test]
fn token_of_the_registry_is_asked_with_credentials() {
    let host = std::sync::Arc::new(Mutex::new(String::new()));
    let shared = std::sync::Arc::clone(&host);
    let registry = with_tokens(move |_| format!("http://{}/token", shared.lock().unwrap()));
    registry.host().clone_into(&mut host.lock().unwrap());
    let mut setup = Setup::new();
    setup.settings(registry.host()).username = Some(text("me"));
    setup.settings(registry.host()).password = Some(text("secret"));
    pushed(&setup, &registry, "1");
    setup
        .fetch(&oci(&format!("{}/waf:1.0", registry.host())))
        .unwrap();
    let tokens: Vec<_> = registry
        .server
        .asked()
        .into_iter()
        .filter(|asked| asked.path.starts_with("/token"))
        .collect();
    assert!(
        tokens
            .iter()
            .all(|asked| asked.authorization == Some(basic("me", "secret")))
    );
    // One for what is pushed, and one for what is fetched by another process.
    assert_eq!(tokens.len(), 2);
    assert!(
        tokens[0]
            .path
            .contains("scope=repository%3Awaf%3Apull%2Cpush"),
        "{}",
        tokens[0].path
    );
}

#[test]
fn token_server_of_another_host_gets_no_credentials() {
    let other = Server::start(|_, _| Reply::new(401, ""));
    let realm = other.url("/token");
    let registry = with_tokens(move |_| realm.clone());
    let mut setup = Setup::new();
    setup.settings(registry.host()).username = Some(text("me"));
    setup.settings(registry.host()).password = Some(text("secret"));
    let request = oci(&format!("{}/waf:1.0", registry.host()));
    let error = setup.fetch(&request).unwrap_err();
    assert!(
        error.contains("another host, to which no credentials are sent"),
        "{error}"
    );
    assert!(error.contains("token_server"), "{error}");
    assert!(!other.asked().is_empty());
    assert!(
        other
            .asked()
            .iter()
            .all(|asked| asked.authorization.is_none())
    );
    // Unless the user names it.
    let asked = other.asked().len();
    let host = other.host.clone();
    setup.settings(registry.host()).token_server = Some(host);
    setup.fetch(&request).unwrap_err();
    assert_eq!(
        other.asked()[asked].authorization,
        Some(basic("me", "secret"))
    );
}

#[test]
fn token_server_at_a_metadata_address_is_not_dialled() {
    for realm in [
        "http://169.254.169.254/token",
        "http://[fd00:ec2::254]/token",
    ] {
        let registry = with_tokens(move |_| realm.to_owned());
        let error = Setup::new()
            .fetch(&oci(&format!("{}/waf:1.0", registry.host())))
            .unwrap_err();
        assert!(error.contains("may not be dialled"), "{error}");
    }
    let registry = with_tokens(|_| "file:///etc/passwd".to_owned());
    let error = Setup::new()
        .fetch(&oci(&format!("{}/waf:1.0", registry.host())))
        .unwrap_err();
    assert!(error.contains("is not a URL of HTTP"), "{error}");
}

#[test]
fn upload_to_another_host_is_refused() {
    let other = Server::start(|_, _| Reply::new(201, ""));
    let target = other.url("/steal");
    let registry = Registry::guarded(move |asked| {
        let is_upload = asked.method == "POST";
        is_upload.then(|| Reply::new(202, "").header("location", target.clone()))
    });
    let setup = Setup::new();
    let target = format!("{}/waf:1.0", registry.host());
    let error = setup
        .fetcher()
        .push(&target, &image("1"), &setup.distribution)
        .unwrap_err();
    assert!(error.message.contains("another host"), "{error}");
    assert!(other.asked().is_empty());
}

#[test]
fn tag_stays_where_it_was_when_its_registry_is_down() {
    let setup = Setup::new();
    let registry = Registry::start();
    pushed(&setup, &registry, "1");
    let always = PluginRequest {
        pull: Some(PullPolicy::Always),
        ..oci(&format!("{}/waf:1.0", registry.host()))
    };
    let (first, _) = setup.fetch(&always).unwrap();
    // It moves, and `Always` follows; `IfNotPresent` does not.
    pushed(&setup, &registry, "2");
    let kept = PluginRequest {
        pull: Some(PullPolicy::IfNotPresent),
        ..always.clone()
    };
    // `push` does not touch what the store knows of the tag.
    assert_eq!(setup.fetch(&kept).unwrap().0, first);
    let (second, _) = setup.fetch(&always).unwrap();
    assert_eq!(second.manifest.version.as_deref(), Some("2"));
    drop(registry);
    let (still, warnings) = setup.fetch(&always).unwrap();
    assert_eq!(still, second);
    assert!(warnings[0].contains("stays at sha256:"), "{warnings:?}");
}

#[test]
fn latest_is_resolved_each_time_and_other_tags_once() {
    let registry = Registry::start();
    let setup = Setup::new();
    for (tag, expected) in [("latest", 2), ("1.0", 1)] {
        let target = format!("{}/waf:{tag}", registry.host());
        setup
            .fetcher()
            .push(&target, &image("1"), &setup.distribution)
            .unwrap();
        let before = registry.server.asked().len();
        setup.fetch(&oci(&target)).unwrap();
        setup.fetch(&oci(&target)).unwrap();
        let path = format!("/v2/waf/manifests/{tag}");
        let asked = registry.server.asked();
        let resolved = asked[before..]
            .iter()
            .filter(|asked| asked.path == path)
            .count();
        assert_eq!(resolved, expected, "{tag}");
    }
}

#[test]
fn lock_file_pins_a_tag() {
    let setup = Setup::new();
    let registry = Registry::start();
    let first = pushed(&setup, &registry, "1");
    let request = oci(&format!("{}/waf:1.0", registry.host()));
    let path = LockFile::path_of(&setup.distribution.file);
    let mut lock = LockFile::default();
    lock.plugins.insert(request.source.clone(), first.digest);
    lock.write(&path).unwrap();
    pushed(&setup, &registry, "2");
    let (package, warnings) = setup.fetch(&request).unwrap();
    assert_eq!(package.manifest.version.as_deref(), Some("1"));
    assert!(warnings.is_empty());
    LockFile::default().write(&path).unwrap();
    let (package, warnings) = setup.fetch(&request).unwrap();
    assert_eq!(package.manifest.version.as_deref(), Some("2"));
    assert!(
        warnings[0].contains("is not in outrider.lock"),
        "{warnings:?}"
    );
    std::fs::write(&path, "{").unwrap();
    assert!(setup.fetch(&request).unwrap_err().contains("is malformed"));
}

#[test]
fn mirrors_are_asked_first_and_passed_over_when_down() {
    let setup = Setup::new();
    let (mirror, registry) = (Registry::start(), Registry::start());
    pushed(&setup, &mirror, "1");
    pushed(&setup, &registry, "1");
    let request = oci(&format!("{}/waf:1.0", registry.host()));
    let mut setup = Setup::new();
    setup.settings(registry.host()).mirrors = vec![closed_port(), mirror.host().to_owned()];
    let before = registry.server.asked().len();
    setup.fetch(&request).unwrap();
    assert!(
        setup.notes().contains("is passed over"),
        "{}",
        setup.notes()
    );
    assert_eq!(registry.server.asked().len(), before);
}

#[test]
fn damaged_store_is_fetched_again() {
    let setup = Setup::new();
    let registry = Registry::start();
    pushed(&setup, &registry, "1");
    let request = oci(&format!("{}/waf:1.0", registry.host()));
    let (package, _) = setup.fetch(&request).unwrap();
    let blobs = setup.store().root().join("blobs");
    for entry in std::fs::read_dir(&blobs).unwrap() {
        std::fs::write(entry.unwrap().path(), b"damaged").unwrap();
    }
    assert_eq!(setup.fetch(&request).unwrap().0, package);
    // Files that a killed process left are not read.
    std::fs::write(setup.store().root().join("tmp/1-2-3"), b"half").unwrap();
    for entry in std::fs::read_dir(&blobs).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(setup.fetch(&request).unwrap().0, package);
}

#[test]
fn two_pulls_at_once_fetch_a_layer_once() {
    let registry = Registry::guarded(|asked| {
        if asked.path.contains("/blobs/") && asked.method == "GET" {
            // Long enough for the other one to come.
            std::thread::sleep(Duration::from_millis(200));
        }
        None
    });
    let setup = Setup::new();
    pushed(&setup, &registry, "1");
    let request = oci(&format!("{}/waf:1.0", registry.host()));
    let root = setup.folder.path();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let notes = Notes::default();
                let options = Options {
                    store: Store::new(root.join("shared")),
                    offline: false,
                    docker: None,
                    patience: Patience::default(),
                };
                let fetcher = Fetcher::new(options, &notes);
                fetcher.fetch(&request, &Distribution::default()).unwrap();
            });
        }
    });
    let mut counts = BTreeMap::new();
    for asked in registry.server.asked() {
        if asked.path.contains("/blobs/sha256") && asked.method == "GET" {
            *counts.entry(asked.path).or_insert(0) += 1;
        }
    }
    assert!(
        !counts.is_empty() && counts.values().all(|count| *count == 1),
        "{counts:?}"
    );
}

#[test]
fn https_digest_is_of_the_file_or_of_the_module_inside() {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(EMPTY).unwrap();
    let packed = encoder.finish().unwrap();
    let (outer, inner) = (digest_of(&packed), digest_of(EMPTY));
    let server = Server::start(move |_, _| Reply::new(200, packed.clone()));
    for digest in [&outer, &inner] {
        let setup = Setup::new();
        let request = https(&server.url("/x.wasm.gz"), digest);
        let (package, _) = setup.fetch(&request).unwrap();
        assert_eq!(
            (package.digest.as_str(), package.manifest.name.as_str()),
            (inner.as_str(), "x")
        );
        // The second time it comes from the store.
        let asked = server.asked().len();
        setup.fetch(&request).unwrap();
        assert_eq!(server.asked().len(), asked);
    }
    let wrong = format!("sha256:{:064}", 0);
    let error = Setup::new()
        .fetch(&https(&server.url("/x.wasm.gz"), &wrong))
        .unwrap_err();
    let expected = format!("expected {wrong}, found {outer}, and the module inside {inner}");
    assert!(error.contains(&expected), "{error}");
}

/// The digest of a module vouches for no manifest that comes with it.
#[test]
fn module_digest_does_not_cover_a_manifest() {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in [
        ("plugin.wasm", EMPTY),
        ("plugin.yaml", b"name: x\nruntime: wasm\n"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, bytes).unwrap();
    }
    let archive = builder.into_inner().unwrap();
    let outer = digest_of(&archive);
    let server = Server::start(move |_, _| Reply::new(200, archive.clone()));
    let url = server.url("/x.tar");
    let error = Setup::new()
        .fetch(&https(&url, &digest_of(EMPTY)))
        .unwrap_err();
    assert!(error.contains("does not cover the manifest"), "{error}");
    Setup::new().fetch(&https(&url, &outer)).unwrap();
}

fn signing() -> (SigningKey, VerifyingKey, String) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let public = data.join("key.pub");
    let key = SigningKey::read(&data.join("key.pem")).unwrap();
    (
        key,
        VerifyingKey::read(&public).unwrap(),
        public.display().to_string(),
    )
}

fn policy(keys: &[&str]) -> Vec<PolicyRule> {
    vec![PolicyRule {
        sources: vec!["*".to_owned()],
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        place: "outrider.yaml:7".to_owned(),
    }]
}

#[test]
fn policy_accepts_signed_plugins_and_refuses_the_others_before_reading_them() {
    let mut setup = Setup::new();
    let registry = Registry::start();
    let image = pushed(&setup, &registry, "1");
    let (key, public, file) = signing();
    let target = format!("{}/waf:1.0", registry.host());
    setup.distribution.policy = Some(policy(&[&file]));
    let before = registry.server.asked().len();
    let error = setup.fetch(&oci(&target)).unwrap_err();
    assert!(
        error.contains("refused by the `plugin_policy` rule at outrider.yaml:7: it is not signed"),
        "{error}"
    );
    let asked = registry.server.asked();
    assert!(
        asked[before..]
            .iter()
            .all(|asked| !asked.path.contains("/blobs/")),
        "layers were read"
    );

    let signed = setup
        .fetcher()
        .sign(&target, &key, Some(&public), &Distribution::default())
        .unwrap();
    assert_eq!(signed.digest, image.digest);
    // This registry has no referrers API: the signature is under the tag.
    let tag = format!("waf/{}", image.digest.replace(':', "-"));
    assert!(
        registry
            .content
            .lock()
            .unwrap()
            .manifests
            .contains_key(&tag)
    );
    setup.fetch(&oci(&target)).unwrap();

    // Signed by another key.
    let cosign = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/cosign/cosign.pub");
    let cosign = cosign.display().to_string();
    setup.distribution.policy = Some(policy(&[&cosign]));
    let error = setup.fetch(&oci(&target)).unwrap_err();
    assert!(error.contains("it is signed by another key"), "{error}");
    setup.distribution.policy = Some(policy(&[&cosign, &file]));
    setup.fetch(&oci(&target)).unwrap();

    // The tag moves after it was signed.
    pushed(&setup, &registry, "2");
    let moved = PluginRequest {
        pull: Some(PullPolicy::Always),
        ..oci(&target)
    };
    let error = setup.fetch(&moved).unwrap_err();
    assert!(error.contains("it is not signed"), "{error}");

    // Offline, the kept signature is verified again.
    drop(registry);
    setup.offline = true;
    let pinned = PluginRequest {
        digest: Some(image.digest),
        ..oci(&target)
    };
    setup.fetch(&pinned).unwrap();
    setup.distribution.policy = Some(policy(&[&cosign]));
    assert!(setup.fetch(&pinned).is_err());
}

#[test]
fn signature_of_another_digest_is_refused() {
    let mut setup = Setup::new();
    let registry = Registry::start();
    let first = pushed(&setup, &registry, "1");
    let (key, _, file) = signing();
    let target = format!("{}/waf:1.0", registry.host());
    setup
        .fetcher()
        .sign(&target, &key, None, &Distribution::default())
        .unwrap();
    let second = pushed(&setup, &registry, "2");
    // The signatures of the first are put beside the second.
    let tag = |digest: &str| format!("waf/{}", digest.replace(':', "-"));
    {
        let mut content = registry.content.lock().unwrap();
        let index = content.manifests[&tag(&first.digest)].clone();
        content.manifests.insert(tag(&second.digest), index);
    }
    setup.distribution.policy = Some(policy(&[&file]));
    let error = setup.fetch(&oci(&target)).unwrap_err();
    let expected = format!(
        "of another digest: expected {}, found {}",
        second.digest, first.digest
    );
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn policy_without_a_rule_refuses_and_https_needs_an_unsigned_rule() {
    let server = Server::start(|_, _| Reply::new(200, EMPTY));
    let url = server.url("/x.wasm");
    let request = https(&url, &digest_of(EMPTY));
    let mut setup = Setup::new();
    setup.distribution.policy = Some(Vec::new());
    let error = setup.fetch(&request).unwrap_err();
    assert!(error.contains("`plugin_policy` has no rule for"), "{error}");
    setup.distribution.policy = Some(policy(&["cosign.pub"]));
    let error = setup.fetch(&request).unwrap_err();
    assert!(error.contains("have no signatures"), "{error}");
    assert!(server.asked().is_empty());
    setup.distribution.policy = Some(policy(&[]));
    setup.fetch(&request).unwrap();
}

/// A key that the wrong public half would be published for.
#[test]
fn halves_of_different_keys_sign_nothing() {
    let setup = Setup::new();
    let registry = Registry::start();
    pushed(&setup, &registry, "1");
    let (key, _, _) = signing();
    let cosign = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/cosign/cosign.pub");
    let wrong = VerifyingKey::read(&cosign).unwrap();
    let target = format!("{}/waf:1.0", registry.host());
    let error = setup
        .fetcher()
        .sign(&target, &key, Some(&wrong), &setup.distribution)
        .unwrap_err();
    assert!(
        error.message.contains("does not belong to the private one"),
        "{error}"
    );
}

/// The real cosign's artifact, read back as a registry without the referrers API serves it.
#[test]
fn signature_of_the_real_cosign_is_found_and_verified() {
    const SIGNED: &str = "sha256:1cda394f1f7535367e4ccd4f0dfeeebc4bc9c12dc90e6c14e536e4f835cd64e5";
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/cosign");
    let read = |name: &str| std::fs::read(data.join(name)).unwrap();
    let registry = Registry::start();
    registry.blob(&read("bundle.json"));
    registry.manifest("signature", &read("manifest.json"));
    registry.manifest(&SIGNED.replace(':', "-"), &read("index.json"));
    let setup = Setup::new();
    let reference =
        outrider_plugin_registry::Reference::parse(&format!("{}/waf:1.0", registry.host()))
            .unwrap();
    let key = VerifyingKey::read(&data.join("cosign.pub")).unwrap();
    let verify = |digest: &str| {
        let keys = std::slice::from_ref(&key);
        setup
            .fetcher()
            .verify(&reference, digest, &setup.distribution, keys)
    };
    assert_eq!(verify(SIGNED).unwrap().form, "bundle v0.3");
    let error = verify(&format!("sha256:{:064}", 1)).unwrap_err();
    assert_eq!(error.message, "it is not signed");
}

#[test]
fn archive_is_opened_and_its_faults_are_named() {
    let setup = Setup::new();
    let path = setup.folder.path().join("waf.tar.gz").display().to_string();
    let request = PluginRequest {
        name: "waf".to_owned(),
        source: path.clone(),
        location: PluginLocation::Archive(path.clone()),
        digest: None,
        pull: None,
    };
    let error = setup.fetch(&request).unwrap_err();
    assert!(error.contains("waf.tar.gz cannot be read"), "{error}");
    std::fs::write(&path, b"hello").unwrap();
    let error = setup.fetch(&request).unwrap_err();
    assert!(
        error.contains("neither a WebAssembly module nor gzip nor tar"),
        "{error}"
    );
    std::fs::write(&path, EMPTY).unwrap();
    let (package, _) = setup.fetch(&request).unwrap();
    assert_eq!(package.manifest.name, "waf");
    let pinned = PluginRequest {
        digest: Some(format!("sha256:{:064}", 0)),
        ..request
    };
    let error = setup.fetch(&pinned).unwrap_err();
    assert!(error.contains("it has another digest: expected"), "{error}");
}
