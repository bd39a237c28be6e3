//! Real registries on loopback, and an independent client: `make test-registry`, which says what it needs.
//!
//! Debian's `docker-registry` with TLS and htpasswd has no referrers API; the one over go-containerregistry has it. `crane`
//! reads what was pushed, and pushes what is pulled.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail as tests do"
)]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outrider_plugin_formats::{
    Distribution, PluginCode, PluginLocation, PluginPackage, PluginRequest, PolicyRule,
    RegistrySettings, SecretText, SecretValue,
};
use outrider_plugin_registry::{
    Fetcher, Options, Progress, Reference, SigningKey, VerifyingKey, build,
};

struct Silent;

impl Progress for Silent {
    fn note(&self, _line: &str) {}
}

/// A program that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn start(command: &mut Command, address: &str) -> Program {
    let what = format!("{command:?}");
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{what}: {error}; `make test-registry` says what is needed")
        });
    let mut program = Program(child);
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{what} does not listen at {address}"
        );
        assert!(program.0.try_wait().unwrap().is_none(), "{what} ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    program
}

/// The folder of the programs that `make test-registry` builds.
fn programs() -> PathBuf {
    let folder = std::env::var_os("OUTRIDER_TEST_REGISTRY");
    PathBuf::from(folder.unwrap_or_else(|| panic!("run `make test-registry`")))
}

fn text(text: &str) -> SecretValue {
    SecretValue::Text(SecretText(text.to_owned()))
}

/// `docker-registry` with TLS and a user, and the settings to reach it.
fn docker_registry(folder: &Path) -> (Program, String, RegistrySettings) {
    let address = free_address();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    fs::write(folder.join("ca.pem"), made.cert.pem()).unwrap();
    fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let users = Command::new("htpasswd")
        .args(["-Bbn", "me", "secret"])
        .output();
    let users =
        users.unwrap_or_else(|error| panic!("htpasswd: {error}; apt-get install apache2-utils"));
    fs::write(folder.join("users"), users.stdout).unwrap();
    let shown = folder.display();
    let config = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {shown}/data}}}}\n\
         http:\n  addr: {address}\n  tls: {{certificate: {shown}/ca.pem, key: {shown}/key.pem}}\n\
         auth: {{htpasswd: {{realm: test, path: {shown}/users}}}}\n"
    );
    fs::write(folder.join("config.yml"), config).unwrap();
    let mut command = Command::new("docker-registry");
    command.arg("serve").arg(folder.join("config.yml"));
    let settings = RegistrySettings {
        username: Some(text("me")),
        password: Some(text("secret")),
        ca: Some(folder.join("ca.pem").display().to_string()),
        ..RegistrySettings::default()
    };
    (start(&mut command, &address), address, settings)
}

/// The registry with the referrers API.
fn go_registry(folder: &Path) -> (Program, String) {
    let address = free_address();
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    let mut command = Command::new(programs().join("registry"));
    command.arg(&address).arg(data);
    (start(&mut command, &address), address)
}

fn options(folder: &Path) -> Options {
    let mut options = Options::new(Some(folder.join("store"))).unwrap();
    options.docker = None;
    options
}

fn lua_plugin(folder: &Path) -> PathBuf {
    let folder = folder.join("hello");
    fs::create_dir(&folder).unwrap();
    for (name, content) in [
        ("plugin.yaml", "name: hello\nruntime: lua\nversion: 1.0.0\n"),
        ("config.schema.json", "{}"),
        ("README.md", "# Hello\n"),
        ("LICENSE", "Apache-2.0\n"),
        ("main.lua", "return {}\n"),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
    folder
}

fn request(image: &str) -> PluginRequest {
    PluginRequest {
        name: "hello".to_owned(),
        source: format!("oci://{image}"),
        location: PluginLocation::Oci(image.to_owned()),
        digest: None,
        pull: None,
    }
}

/// Pushes, signs, and fetches under a policy with a store of its own.
fn whole_way(folder: &Path, address: &str, distribution: &mut Distribution) -> PluginPackage {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let (private, public) = (data.join("key.pem"), data.join("key.pub"));
    let plugin = lua_plugin(folder);
    let package = outrider_plugin_store::open(&plugin).unwrap();
    let image = build(&plugin, &package).unwrap();
    let name = format!("{address}/team/hello:1.0");
    let fetcher = Fetcher::new(options(folder), &Silent);
    let pushed = fetcher.push(&name, &image, distribution).unwrap();
    assert_eq!(pushed.digest, image.digest);
    // Once more: the registry has everything.
    fetcher.push(&name, &image, distribution).unwrap();
    distribution.policy = Some(vec![PolicyRule {
        sources: vec!["*".to_owned()],
        keys: vec![public.display().to_string()],
        place: "test".to_owned(),
    }]);
    let refused = fetcher.fetch(&request(&name), distribution).unwrap_err();
    assert!(
        refused[0].message.contains("it is not signed"),
        "{refused:?}"
    );
    let key = SigningKey::read(&private).unwrap();
    let public = VerifyingKey::read(&public).unwrap();
    for _ in 0..2 {
        fetcher
            .sign(&name, &key, Some(&public), distribution)
            .unwrap();
    }
    let other = Fetcher::new(options(&folder.join("other")), &Silent);
    let (fetched, warnings) = other.fetch(&request(&name), distribution).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(fetched.digest, package.digest);
    let inspected = other.inspect(&name, distribution).unwrap();
    assert_eq!((inspected.layout, inspected.layers.len()), ("Outrider", 6));
    assert!(inspected.signatures >= 1);
    fetched
}

#[test]
#[ignore = "needs docker-registry: make test-registry"]
fn docker_registry_with_tls_and_users() {
    let folder = tempfile::tempdir().unwrap();
    let (_registry, address, settings) = docker_registry(folder.path());
    let mut distribution = Distribution::default();
    let name = format!("{address}/team/hello:1.0");
    let fetcher = Fetcher::new(options(folder.path()), &Silent);
    // Without its certificate authority, and without a user.
    let host = |settings| [(address.clone(), settings)].into();
    distribution.registries = host(RegistrySettings {
        plain_http: Some(false),
        ..RegistrySettings::default()
    });
    let error = fetcher.resolve(&name, &distribution).unwrap_err();
    assert!(
        error.message.contains("certificate") || error.message.contains("TLS"),
        "{error}"
    );
    distribution.registries = host(RegistrySettings {
        username: None,
        password: None,
        ..settings.clone()
    });
    let error = fetcher.resolve(&name, &distribution).unwrap_err();
    assert!(error.message.contains("asks for credentials"), "{error}");
    distribution.registries = host(RegistrySettings {
        password: Some(text("wrong")),
        ..settings.clone()
    });
    let error = fetcher.resolve(&name, &distribution).unwrap_err();
    assert!(error.message.contains("refuses"), "{error}");
    distribution.registries = host(settings);
    let error = fetcher.resolve(&name, &distribution).unwrap_err();
    assert!(error.message.contains("(404)"), "{error}");
    whole_way(folder.path(), &address, &mut distribution);
}

#[test]
#[ignore = "needs Go: make test-registry"]
fn registry_with_referrers() {
    let folder = tempfile::tempdir().unwrap();
    let (_registry, address) = go_registry(folder.path());
    whole_way(folder.path(), &address, &mut Distribution::default());
}

fn crane(arguments: &[&str]) -> String {
    let output = Command::new(programs().join("crane"))
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "crane {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Another client finds the image sound, reads its code, and pushes it where Outrider pulls it.
#[test]
#[ignore = "needs Go: make test-registry"]
fn crane_reads_what_is_pushed_and_pushes_what_is_pulled() {
    let folder = tempfile::tempdir().unwrap();
    let (_registry, address) = go_registry(folder.path());
    let plugin = folder.path().join("guard");
    fs::create_dir(&plugin).unwrap();
    fs::write(plugin.join("plugin.yaml"), "name: guard\nruntime: wasm\n").unwrap();
    fs::write(plugin.join("plugin.wasm"), b"\0asm\x01\0\0\0").unwrap();
    fs::write(plugin.join("README.md"), "# Guard\n").unwrap();
    let package = outrider_plugin_store::open(&plugin).unwrap();
    let image = build(&plugin, &package).unwrap();
    let name = format!("{address}/team/guard:1.0");
    let distribution = Distribution::default();
    let fetcher = Fetcher::new(options(folder.path()), &Silent);
    fetcher.push(&name, &image, &distribution).unwrap();
    assert_eq!(crane(&["digest", &name]).trim(), image.digest);
    // As Istio and Envoy Gateway read it, with the library that they read it with.
    let read = Command::new(programs().join("lastlayer"))
        .arg(&name)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success(), "{error}");
    assert_eq!(read.stdout, b"\0asm\x01\0\0\0");
    let layout = folder.path().join("layout").display().to_string();
    crane(&["pull", "--format", "oci", &name, &layout]);
    let copy = format!("{address}/copies/guard:2.0");
    crane(&["push", &layout, &copy]);
    let reference = Reference::parse(&copy).unwrap();
    let other = Fetcher::new(options(&folder.path().join("other")), &Silent);
    let resolved = other
        .resolve(&reference.to_string(), &distribution)
        .unwrap();
    assert_eq!(resolved.digest, image.digest);
    let (fetched, _) = other.fetch(&request(&copy), &distribution).unwrap();
    let PluginCode::Module(module) = fetched.code else {
        panic!("no module");
    };
    assert_eq!(&*module.bytes, b"\0asm\x01\0\0\0");
    // What Docker's tools build: one layer, the module in it.
    let tar = folder.path().join("layer.tar");
    let mut builder = tar::Builder::new(fs::File::create(&tar).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_size(8);
    header.set_mode(0o644);
    builder
        .append_data(&mut header, "plugin.wasm", &b"\0asm\x01\0\0\0"[..])
        .unwrap();
    builder.into_inner().unwrap();
    let docker = format!("{address}/copies/docker:1.0");
    crane(&[
        "append",
        "--new_layer",
        &tar.display().to_string(),
        "--new_tag",
        &docker,
    ]);
    let inspected = other.inspect(&docker, &distribution).unwrap();
    assert_eq!(inspected.layout, "compat");
    assert_eq!(inspected.package.digest, package.digest);
}
