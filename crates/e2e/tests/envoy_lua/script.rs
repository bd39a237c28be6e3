//! A script with what its first lines say: what is sent, and what has to come of it.

use std::fs;
use std::path::Path;

use outrider_e2e::Sent;
use outrider_e2e::sides::CallAnswer;

/// What a script says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Both do the same.
    Same,
    /// They do not, in this.
    Differs(String),
}

/// What a script's listeners have, or what is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    /// The failure policy that plugins have, instead of `open`.
    Closed,
    /// `x-forwarded-for` of one hop is trusted.
    Forwarded,
    Tls,
    /// TLS with a client's certificate.
    MutualTls,
    /// The first line of the answer, instead of all of it.
    Raw,
    /// Another filter sets dynamic metadata.
    SetMetadata,
    /// Another filter sets metadata as `jwt_authn` does, and `set_filter_state` copies it.
    Claims,
    /// A network filter sets metadata of the connection.
    ConnectionMetadata,
    VirtualCluster,
}

impl Setting {
    fn named(name: &str) -> Self {
        match name {
            "closed" => Self::Closed,
            "xff" => Self::Forwarded,
            "tls" => Self::Tls,
            "mtls" => Self::MutualTls,
            "raw" => Self::Raw,
            "set-metadata" => Self::SetMetadata,
            "claims" => Self::Claims,
            "connection-metadata" => Self::ConnectionMetadata,
            "virtual-cluster" => Self::VirtualCluster,
            _ => panic!("what is {name:?}?"),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Its path below `scripts/`.
    pub(crate) name: String,
    pub(crate) code: String,
    pub(crate) requests: Vec<Sent>,
    pub(crate) promise: Promise,
    pub(crate) answer: CallAnswer,
    /// How many calls each request leads to; they are waited for.
    pub(crate) calls: usize,
    /// What is set up for it beyond that.
    pub(crate) settings: Vec<Setting>,
}

impl Script {
    pub(crate) fn has(&self, setting: Setting) -> bool {
        self.settings.contains(&setting)
    }

    /// Every script, by name.
    pub(crate) fn all() -> Vec<Self> {
        let folder = outrider_e2e::root().join("crates/e2e/tests/envoy_lua/scripts");
        let mut scripts = Vec::new();
        read(&folder, "", &mut scripts);
        scripts.sort_by(|one, other| one.name.cmp(&other.name));
        scripts
    }

    fn parse(name: String, code: String) -> Self {
        let mut script = Self {
            name,
            code,
            requests: Vec::new(),
            promise: Promise::Same,
            answer: CallAnswer::Usual,
            calls: 0,
            settings: Vec::new(),
        };
        let mut promised = 0;
        for line in script.code.clone().lines() {
            let Some(said) = line.strip_prefix("--@ ") else {
                continue;
            };
            match said.split_once(' ').unwrap_or((said, "")) {
                ("request", rest) => script.requests.push(Sent::parse(rest).unwrap()),
                ("same", "") => promised += 1,
                ("differs", what) => {
                    promised += 1;
                    script.promise = Promise::Differs(what.to_owned());
                }
                ("answer", kind) => script.answer = CallAnswer::named(kind).unwrap(),
                ("calls", count) => script.calls = count.parse().unwrap(),
                (setting, "") => script.settings.push(Setting::named(setting)),
                _ => panic!("{}: what is {line:?}?", script.name),
            }
        }
        assert_eq!(promised, 1, "{}: same, or differs?", script.name);
        assert!(!script.requests.is_empty(), "{}: no request", script.name);
        script
    }
}

fn read(folder: &Path, prefix: &str, scripts: &mut Vec<Script>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            read(&path, &format!("{name}/"), scripts);
        } else {
            scripts.push(Script::parse(name, fs::read_to_string(&path).unwrap()));
        }
    }
}
