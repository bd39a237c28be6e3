//! A loader over the test folders, for the tests that name it by `#[path]`. Not a test itself.

#![allow(dead_code, reason = "each test file uses its own part of it")]
#![expect(
    clippy::unwrap_used,
    clippy::case_sensitive_file_extension_comparisons,
    reason = "helpers of tests fail as tests do"
)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrider_gateway::{Loader, PluginPackage, Problem};
use outrider_plugin_formats::{Manifest, PluginCode, PluginEntry, Runtime, WasmModule};
use outrider_yaml::Document;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Reads below a folder. Paths that end in `.pem` are there without being files: see [`pem`].
pub(crate) struct Folder {
    root: String,
    /// Plugin and configuration of each `try_plugin`.
    pub(crate) tried: RefCell<Vec<(String, String)>>,
}

impl Folder {
    pub(crate) fn new(root: &str) -> Self {
        Self {
            root: format!("{}/tests/{root}", env!("CARGO_MANIFEST_DIR")),
            tried: RefCell::default(),
        }
    }

    fn text(&self, path: &str) -> Result<String, String> {
        std::fs::read_to_string(format!("{}/{path}", self.root))
            .map_err(|_| "there is no such file".to_owned())
    }
}

/// Certificates and keys are made once for each process. A path says what it holds: `certs/shop.pem` a certificate for
/// `shop.example.com` and `*.shop.example.com`, valid from 2026 to 2036, `certs/shop-key.pem` its key, and see below.
fn pem(path: &str) -> String {
    static MADE: LazyLock<Mutex<BTreeMap<String, (String, String)>>> =
        LazyLock::new(Mutex::default);
    let name = path.trim_start_matches("certs/").trim_end_matches(".pem");
    let (name, is_key) = match name.strip_suffix("-key") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let mut made = MADE.lock().unwrap();
    let (certificate, key) = made
        .entry(name.to_owned())
        .or_insert_with(|| generate(name));
    let text = if is_key { key } else { certificate };
    text.clone()
}

fn generate(name: &str) -> (String, String) {
    let names = ["", "*."].map(|prefix| format!("{prefix}{name}.example.com"));
    let mut parameters = rcgen::CertificateParams::new(names).unwrap();
    let (from, until) = match name {
        "expired" => (2024, 2025),
        "future" => (2030, 2036),
        _ => (2026, 2036),
    };
    parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
    parameters.not_after = match name {
        "soon" => rcgen::date_time_ymd(2026, 11, 30),
        _ => rcgen::date_time_ymd(until, 1, 1),
    };
    let algorithm = match name {
        "ed25519" => &rcgen::PKCS_ED25519,
        _ => &rcgen::PKCS_ECDSA_P256_SHA256,
    };
    let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
    let certificate = parameters.self_signed(&key).unwrap().pem();
    let pem = match name {
        "cut" => certificate.chars().take(200).collect(),
        "damaged" => certificate.replacen('M', "A", 1),
        "broken-chain" => certificate + &pem_of("elsewhere"),
        "wrong-order" => pem_of("elsewhere") + &certificate,
        _ => certificate,
    };
    let key = match name {
        "encrypted" => {
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
                .to_owned()
        }
        _ => key.serialize_pem(),
    };
    (pem, key)
}

fn pem_of(name: &str) -> String {
    generate(name).0
}

/// As [`outrider_plugin_formats::PluginSource`] defines it, so that a real module takes the goldens.
fn digest(files: &BTreeMap<String, String>) -> String {
    let mut hasher = Sha256::new();
    for text in files.iter().flat_map(|(path, content)| [path, content]) {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher
        .finalize()
        .iter()
        .fold("sha256:".to_owned(), |digest, byte| {
            format!("{digest}{byte:02x}")
        })
}

impl Loader for Folder {
    fn read(&self, path: &str) -> Result<String, String> {
        match path {
            "certs/missing.pem" => Err("there is no such file".to_owned()),
            "certs/der.pem" => Ok("0\u{82}".to_owned()),
            _ if path.ends_with(".pem") => Ok(pem(path)),
            _ => self.text(path),
        }
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, String> {
        let (folder, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
        let (begin, end) = name.split_once('*').ok_or("this test knows only `*`")?;
        let mut paths: Vec<String> = std::fs::read_dir(format!("{}/{folder}", self.root))
            .map_err(|_| "there is no such folder".to_owned())?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with(begin) && name.ends_with(end))
            .map(|name| format!("{folder}/{name}"))
            .collect();
        paths.sort();
        Ok(paths)
    }

    /// 2026-11-23.
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_hours(498_720)
    }

    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
        let manifest_file = format!("{source}/plugin.yaml");
        let text = self.text(&manifest_file).map_err(|_| {
            vec![Problem {
                file: source.to_owned(),
                line: 0,
                column: 0,
                message: "there is no plugin here".to_owned(),
                mend: None,
            }]
        })?;
        let document = Document::parse(&manifest_file, &text)?;
        let places = document.places();
        let mut manifest: Manifest = document.read()?;
        let schema = self
            .text(&format!("{source}/config.schema.json"))
            .ok()
            .map(|text| serde_json::from_str(&text).unwrap());
        let (digest, code) = match manifest.runtime {
            Runtime::Lua => {
                let code = self.text(&format!("{source}/main.lua")).unwrap();
                let files = BTreeMap::from([("main.lua".to_owned(), code)]);
                (digest(&files), PluginCode::Files(files))
            }
            // Built files are not kept; the compiler does not look into one.
            Runtime::Wasm => (
                format!("sha256:{:064}", 0),
                PluginCode::Module(WasmModule {
                    file: format!("{source}/plugin.wasm"),
                    bytes: [].into(),
                }),
            ),
        };
        manifest
            .entry
            .get_or_insert_with(|| match manifest.runtime {
                Runtime::Lua => "main.lua".to_owned(),
                Runtime::Wasm => "plugin.wasm".to_owned(),
            });
        Ok(PluginPackage {
            manifest,
            places,
            digest,
            code,
            schema,
            folder: source.to_owned(),
        })
    }

    fn is_folder(&self, path: &str) -> bool {
        Path::new(&format!("{}/{path}", self.root)).is_dir()
    }

    fn absolute(&self, path: &str) -> String {
        if Path::new(path).is_absolute() {
            path.to_owned()
        } else {
            format!("/gateway/{path}")
        }
    }

    fn try_plugin(&self, entry: &PluginEntry, config: &Value) -> Result<(), Vec<Problem>> {
        self.tried
            .borrow_mut()
            .push((entry.name.clone(), config.to_string()));
        if config.get("realm") == Some(&"refused".into()) {
            return Err(vec![Problem {
                file: String::new(),
                line: 0,
                column: 0,
                message: format!("plugin `{}`: on_configure refused it", entry.name),
                mend: None,
            }]);
        }
        Ok(())
    }
}
