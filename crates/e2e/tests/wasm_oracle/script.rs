//! A script for the probe with what its first lines say: what is sent, and what is set up for it.

use std::fs;

use outrider_e2e::Sent;
use outrider_e2e::sides::CallAnswer;

use crate::building::ABIS;

/// What a script's listeners have, or what is to be known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// `allow_on_headers_stop_iteration`.
    AllowStopIteration,
    /// Lines of every level are written.
    AllLevels,
    /// It ends its VM: lines that a VM has not said are not waited for.
    Failing,
    /// Envoy's own filter crashes, or hangs.
    BreaksEnvoy,
    /// TLS with a client's certificate.
    MutualTls,
    /// Route, host and stream have metadata.
    Metadata,
    /// The order of its lines is not said.
    Unordered,
    /// What the upstream got is not told: it is cut off while the connection to it may be in the making.
    UpstreamUnseen,
}

impl Setting {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "allow-stop-iteration" => Self::AllowStopIteration,
            "all-levels" => Self::AllLevels,
            "failing" => Self::Failing,
            "breaks-envoy" => Self::BreaksEnvoy,
            "mtls" => Self::MutualTls,
            "metadata" => Self::Metadata,
            "unordered" => Self::Unordered,
            "upstream-unseen" => Self::UpstreamUnseen,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Its file's name without the ending.
    pub(crate) name: String,
    pub(crate) text: String,
    /// What it shows, in a sentence.
    pub(crate) about: String,
    /// The versions of the ABI that it is run with.
    pub(crate) abis: Vec<&'static str>,
    pub(crate) requests: Vec<Sent>,
    pub(crate) answer: CallAnswer,
    /// How many calls each request leads to; they are waited for.
    pub(crate) calls: usize,
    /// A part of lines that is waited for, and how often it comes.
    pub(crate) wait: Option<(usize, String)>,
    pub(crate) environment: Vec<(String, String)>,
    settings: Vec<Setting>,
}

impl Script {
    pub(crate) fn has(&self, setting: Setting) -> bool {
        self.settings.contains(&setting)
    }

    /// The steps that call this host function.
    pub(crate) fn calls(&self, function: &str) -> bool {
        let short = function.strip_prefix("proxy_").unwrap_or(function);
        self.text.lines().any(|line| {
            let mut words = line.split_whitespace();
            let called = match words.next() {
                Some("call" | "size" | "quiet" | "raw") => words.next(),
                Some("let") => words.nth(2),
                _ => None,
            };
            called.is_some_and(|name| name == short || name == function)
        })
    }

    /// Every script, by name.
    pub(crate) fn all() -> Vec<Self> {
        let folder = outrider_e2e::root().join("crates/wasm-runtime/guests/scripts");
        let mut scripts: Vec<Self> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                Self::parse(name, fs::read_to_string(&path).unwrap())
            })
            .collect();
        scripts.sort_by(|one, other| one.name.cmp(&other.name));
        scripts
    }

    fn parse(name: String, text: String) -> Self {
        let mut script = Self {
            name,
            text,
            about: String::new(),
            abis: vec!["0.2.1"],
            requests: Vec::new(),
            answer: CallAnswer::Usual,
            calls: 0,
            wait: None,
            environment: Vec::new(),
            settings: Vec::new(),
        };
        for line in script.text.clone().lines() {
            let Some(said) = line.strip_prefix("#@ ") else {
                continue;
            };
            match said.split_once(' ').unwrap_or((said, "")) {
                ("about", about) => about.clone_into(&mut script.about),
                ("abi", "all") => script.abis = ABIS.to_vec(),
                ("abi", version) if ABIS.contains(&version) => {
                    script.abis = ABIS.into_iter().filter(|known| *known == version).collect();
                }
                ("request", rest) => script.requests.push(Sent::parse(rest).unwrap()),
                ("answer", kind) => script.answer = CallAnswer::named(kind).unwrap(),
                ("calls", count) => script.calls = count.parse().unwrap(),
                ("wait", what) => {
                    let (count, part) = what.split_once(' ').unwrap();
                    script.wait = Some((count.parse().unwrap(), part.to_owned()));
                }
                ("environment", variables) => {
                    script
                        .environment
                        .extend(variables.split(' ').map(|variable| {
                            let (name, value) = variable.split_once('=').unwrap();
                            (name.to_owned(), value.to_owned())
                        }));
                }
                (setting, "") => script.settings.push(
                    Setting::named(setting)
                        .unwrap_or_else(|| panic!("{}: what is {line:?}?", script.name)),
                ),
                _ => panic!("{}: what is {line:?}?", script.name),
            }
        }
        assert!(!script.requests.is_empty(), "{}: no request", script.name);
        assert!(
            !script.about.is_empty(),
            "{}: what is it about?",
            script.name
        );
        script
    }
}
