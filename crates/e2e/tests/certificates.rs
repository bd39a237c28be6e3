//! Certificates on the real Envoy: several by name, renewed while connections stay open, and never a wrong pair.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use outrider_e2e::{Gateway, GatewayOptions, signal};
use outrider_lab::client::Request;
use outrider_lab::echo::{Echo, EchoOptions};
use outrider_lab::tls::{Identity, Trust};

const WITHIN: Duration = Duration::from_secs(20);

fn pair<'a>(name: &'a str, identity: &'a Identity) -> [(String, &'a str); 2] {
    [
        (format!("{name}.pem"), &identity.certificate),
        (format!("{name}.key"), &identity.private_key),
    ]
}

/// Whether the listener shows this certificate to a client that asks for `name`.
async fn shows(gateway: &Gateway, name: &str, identity: &Identity) -> bool {
    let trust = Trust::Authority(identity.certificate.clone());
    let target = gateway.http1().with_tls(name, trust);
    target.send(Request::get("/status/200")).await.is_ok()
}

fn write_pair(folder: &Path, name: &str, identity: &Identity) {
    for (file, content) in pair(name, identity) {
        fs::write(folder.join(file), content).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_by_name_and_renewed() {
    let echo = Echo::start("echo").await.unwrap();
    let shop = Identity::generate(&["shop.example.com", "elsewhere.example.com"]).unwrap();
    let blog = Identity::generate(&["*.blog.example.com", "elsewhere.example.com"]).unwrap();
    let renewed = Identity::generate(&["shop.example.com"]).unwrap();
    let again = Identity::generate(&["shop.example.com"]).unwrap();
    let yaml = "
gateway:
  listeners:
    - address: '{listen}'
      tls:
        certificates:
          - {certificate: certs/shop.pem, private_key: certs/shop.key}
          - {certificate: certs/blog.pem, private_key: certs/blog.key}
  admin: '{admin}'
projects:
  - name: all
    hosts: ['*']
    routes: [{match: {prefix: /}, to: echo}]
upstreams: {echo: {endpoints: ['ECHO']}}
"
    .replace("ECHO", &echo.address().to_string());
    let files = [
        ("certs/shop.pem", shop.certificate.as_str()),
        ("certs/shop.key", shop.private_key.as_str()),
        ("certs/blog.pem", blog.certificate.as_str()),
        ("certs/blog.key", blog.private_key.as_str()),
    ];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    assert!(shows(&gateway, "shop.example.com", &shop).await);
    assert!(shows(&gateway, "a.blog.example.com", &blog).await);
    assert!(!shows(&gateway, "a.blog.example.com", &shop).await);
    // A name that no certificate has: the first.
    assert!(shows(&gateway, "elsewhere.example.com", &shop).await);

    // Renewed, all files at once as a mounted secret is, under a request that began before.
    let trust = Trust::Authority(shop.certificate.clone());
    let open = gateway.http2().with_tls("shop.example.com", trust);
    let slow = tokio::spawn(async move { open.send(Request::get("/delay/3000")).await });
    gateway
        .wait_stat("http.listener-0.downstream_rq_active", |count| count == 1)
        .unwrap();
    let folder = gateway.folder();
    let certs = folder.join("certs");
    let second = folder.join("second");
    fs::create_dir(&second).unwrap();
    write_pair(&second, "shop", &renewed);
    write_pair(&second, "blog", &blog);
    let mark = gateway.output.mark();
    fs::rename(&certs, folder.join("first")).unwrap();
    symlink("second", &certs).unwrap();
    let told = gateway
        .output
        .wait_after(mark, "applied in", WITHIN)
        .unwrap();
    assert!(told.contains("renewed certificate"), "{told}");
    assert!(!told.contains("changed listener"), "{told}");
    assert!(shows(&gateway, "shop.example.com", &renewed).await);
    assert!(!shows(&gateway, "shop.example.com", &shop).await);
    assert!(shows(&gateway, "a.blog.example.com", &blog).await);
    assert_eq!(slow.await.unwrap().unwrap().status, 200);
    assert_eq!(
        gateway.stat("listener_manager.listener_modified").unwrap(),
        0
    );

    // Renewed file by file, as programs do that know no folders: between the two the pair is wrong, and refused.
    let mark = gateway.output.mark();
    gateway
        .save_file("certs/shop.pem", &again.certificate)
        .unwrap();
    let told = gateway
        .output
        .wait_after(mark, "does not belong", WITHIN)
        .unwrap();
    assert!(told.contains("outrider.yaml:7:"), "{told}");
    assert!(shows(&gateway, "shop.example.com", &renewed).await);
    let mark = gateway.output.mark();
    gateway
        .save_file("certs/shop.key", &again.private_key)
        .unwrap();
    gateway
        .output
        .wait_after(mark, "applied in", WITHIN)
        .unwrap();
    assert!(shows(&gateway, "shop.example.com", &again).await);

    // Keys are the owner's alone, and no page shows them.
    let secrets = secret_files(&gateway);
    assert_eq!(secrets.len(), 2, "{secrets:?}");
    for file in &secrets {
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    }
    let dump = gateway.admin.get("/config_dump?include_eds").unwrap().body;
    assert!(dump.contains("shop-"), "the secret is not in it");
    assert!(!dump.contains("PRIVATE KEY"));

    // The files are gone, and Envoy dies: what was served is served again.
    let mark = gateway.output.mark();
    fs::remove_file(&certs).unwrap();
    gateway
        .output
        .wait_after(mark, "cannot be read", WITHIN)
        .unwrap();
    let before = gateway.envoy_process().unwrap();
    let mark = gateway.output.mark();
    signal(before, "KILL").unwrap();
    gateway
        .output
        .wait_after(mark, "serving again", WITHIN)
        .unwrap();
    gateway.wait_stat("server.live", |live| live == 1).unwrap();
    assert!(shows(&gateway, "shop.example.com", &again).await);

    // One that is no longer named stays in no file.
    fs::create_dir_all(&certs).unwrap();
    write_pair(&certs, "shop", &again);
    let one = yaml.replace(
        "          - {certificate: certs/blog.pem, private_key: certs/blog.key}\n",
        "",
    );
    gateway.update(&one).unwrap();
    let last = secret_files(&gateway);
    assert_eq!(last.len(), 1, "{last:?}");
    gateway.stop().unwrap();
    assert!(!last[0].exists());
    echo.stop().await;
}

fn secret_files(gateway: &Gateway) -> Vec<std::path::PathBuf> {
    let folder = gateway.state_file("lds.json").unwrap();
    let mut files: Vec<_> = fs::read_dir(folder.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("secret-")
        })
        .collect();
    files.sort();
    files
}

/// Upstreams see the renewed certificate of the gateway, and are verified with the renewed authorities.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_towards_upstreams_are_renewed() {
    let right = Identity::generate(&["api.example.com"]).unwrap();
    let wrong = Identity::generate(&["api.example.com"]).unwrap();
    let known = Identity::for_client("gateway", &["spiffe://gateway"]).unwrap();
    let unknown = Identity::for_client("gateway", &["spiffe://gateway"]).unwrap();
    let secure = EchoOptions {
        tls: Some(right.clone()),
        ..EchoOptions::named("secure")
    };
    let echo = Echo::start_with(secure).await.unwrap();
    let inner = outrider_e2e::free_address().unwrap();
    let yaml = "
gateway:
  listeners:
    - address: '{listen}'
    - address: 'INNER'
      tls: {certificate: inner.pem, private_key: inner.key, client_ca: known.pem}
  admin: '{admin}'
projects:
  - name: all
    hosts: ['*']
    routes:
      - {match: {prefix: /secure}, to: secure}
      - {match: {prefix: /inner}, to: inner, rewrite_prefix: /}
      - {match: {prefix: /}, respond: {status: 204}}
upstreams:
  secure: {endpoints: ['ECHO'], tls: {sni: api.example.com, ca: ca.pem}}
  inner: {endpoints: ['INNER'], tls: {sni: api.example.com, ca: inner.pem, certificate: own.pem, private_key: own.key}}
"
    .replace("ECHO", &echo.address().to_string())
    .replace("INNER", &inner.to_string())
    ;
    let files = [
        ("inner.pem", right.certificate.as_str()),
        ("inner.key", right.private_key.as_str()),
        ("known.pem", known.certificate.as_str()),
        ("own.pem", unknown.certificate.as_str()),
        ("own.key", unknown.private_key.as_str()),
        ("ca.pem", wrong.certificate.as_str()),
    ];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let status = |path: &'static str| async {
        let request = Request::get(path).header("x-echo-path", "/status/200");
        gateway.send(request).await.unwrap().status
    };
    assert_eq!(status("/secure").await, 503);
    assert_eq!(status("/inner").await, 503);
    let mark = gateway.output.mark();
    gateway.save_file("ca.pem", &right.certificate).unwrap();
    gateway
        .output
        .wait_after(mark, "applied in", WITHIN)
        .unwrap();
    assert_eq!(status("/secure").await, 200);
    assert_eq!(status("/inner").await, 503);
    let mark = gateway.output.mark();
    write_pair(gateway.folder(), "own", &known);
    gateway
        .output
        .wait_after(mark, "applied in", WITHIN)
        .unwrap();
    assert_eq!(status("/inner").await, 204);
    assert_eq!(gateway.stat("cluster_manager.cluster_modified").unwrap(), 0);
    gateway.stop().unwrap();
    echo.stop().await;
}
