//! `docs/envoy-lua.md`, from the scripts and from what Envoy says its objects have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use outrider_e2e::{Direct, direct_config};
use outrider_lab::client::{Request, Target};
use outrider_lab::tls::{Identity, Trust};
use serde_json::json;

use crate::both;
use crate::script::{Promise, Script};

/// Names the members of each of Envoy's objects.
const DUMP: &str = include_str!("dump.lua");

/// What a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Support {
    /// As its scripts show: all of it, or with a difference.
    Shown,
    /// Not at all, as its script shows.
    No,
}

/// Functions of one object, the scripts that show them, and how far they are supported.
type Row = (&'static str, &'static str, &'static str, Support);

use Support::{No, Shown};

/// By object and function, in the order of the page. Scripts are named without `.lua`.
const ROWS: &[Row] = &[
    ("handle", "headers", "headers-read headers-too-late", Shown),
    ("handle", "requestHeaders", "request-headers", Shown),
    (
        "handle",
        "body",
        "body body-always body-add body-twice body-errors call-then-body",
        Shown,
    ),
    (
        "handle",
        "bodyChunks",
        "chunks chunks-call chunk-kept",
        Shown,
    ),
    (
        "handle",
        "trailers",
        "trailers trailers-alone trailers-after-body",
        Shown,
    ),
    (
        "handle",
        "logTrace logDebug logInfo logWarn logErr",
        "log",
        Shown,
    ),
    ("handle", "logCritical", "log-critical", Shown),
    (
        "handle",
        "httpCall",
        "call call-options call-asynchronous call-failures call-timeout call-reset call-empty call-no-timeout call-send-xff",
        Shown,
    ),
    (
        "handle",
        "respond",
        "respond respond-seen respond-errors",
        Shown,
    ),
    ("handle", "metadata", "metadata", Shown),
    ("handle", "streamInfo", "stream-info", Shown),
    ("handle", "connection", "ssl", Shown),
    (
        "handle",
        "connectionStreamInfo",
        "connection-metadata",
        Shown,
    ),
    ("handle", "route", "metadata", Shown),
    ("handle", "virtualHost", "virtual-host", No),
    ("handle", "filterContext", "filter-context", Shown),
    ("handle", "setUpstreamOverrideHost", "override-host", Shown),
    ("handle", "clearRouteCache", "reroute", Shown),
    ("handle", "stats", "stats", Shown),
    (
        "handle",
        "importPublicKey verifySignature",
        "signature",
        Shown,
    ),
    ("handle", "base64Escape base64Decode", "base64", Shown),
    ("handle", "timestamp timestampString", "timestamps", Shown),
    (
        "headers",
        "get getAtIndex getNumValues",
        "headers-read",
        Shown,
    ),
    (
        "headers",
        "add replace",
        "headers-write headers-errors headers-empty",
        Shown,
    ),
    ("headers", "remove", "headers-write", Shown),
    (
        "headers",
        "__pairs",
        "headers-pairs headers-while-iterating",
        Shown,
    ),
    ("headers", "setHttp1ReasonPhrase", "reason-phrase", No),
    ("buffer", "length getBytes", "body body-errors", Shown),
    (
        "buffer",
        "setBytes",
        "body-set body-add chunks-set chunks-announced chunks-length",
        Shown,
    ),
    ("metadata", "get", "metadata metadata-nested", Shown),
    ("metadata", "__pairs", "metadata", Shown),
    (
        "streamInfo",
        "protocol routeName downstreamLocalAddress downstreamDirectLocalAddress",
        "stream-info",
        Shown,
    ),
    ("streamInfo", "virtualClusterName", "virtual-cluster", No),
    (
        "streamInfo",
        "downstreamRemoteAddress downstreamDirectRemoteAddress",
        "addresses stream-info",
        Shown,
    ),
    (
        "streamInfo",
        "requestedServerName downstreamSslConnection",
        "ssl stream-info",
        Shown,
    ),
    ("streamInfo", "dynamicMetadata", "dynamic-metadata", Shown),
    ("streamInfo", "dynamicTypedMetadata", "typed-metadata", No),
    ("streamInfo", "filterState", "filter-state", Shown),
    ("streamInfo", "drainConnectionUponCompletion", "drain", No),
    (
        "dynamicMetadata",
        "get set __pairs",
        "dynamic-metadata dynamic-metadata-foreign metadata-claims",
        Shown,
    ),
    (
        "filterState",
        "get set",
        "filter-state filter-state-field",
        Shown,
    ),
    ("connection", "ssl", "ssl", Shown),
    (
        "connectionStreamInfo",
        "dynamicMetadata dynamicTypedMetadata",
        "connection-set-metadata",
        No,
    ),
    (
        "connectionDynamicMetadata",
        "get __pairs",
        "connection-set-metadata",
        No,
    ),
    ("virtualHost", "metadata", "virtual-host", No),
    ("route", "metadata", "metadata", Shown),
    ("filterContext", "get __pairs", "filter-context", Shown),
    ("publicKey", "get", "signature", Shown),
    (
        "stats",
        "counter gauge histogram",
        "stats stats-unnamed",
        Shown,
    ),
    ("counter", "inc add value", "stats", Shown),
    ("gauge", "inc dec add sub set value", "stats", Shown),
    ("histogram", "recordValue", "stats", Shown),
    (
        "ssl",
        "peerCertificatePresented sha256PeerCertificateDigest subjectPeerCertificate subjectLocalCertificate tlsVersion",
        "ssl ssl-client",
        Shown,
    ),
    (
        "ssl",
        "parsedSubjectPeerCertificate",
        "ssl ssl-client",
        Shown,
    ),
    (
        "ssl",
        "uriSanPeerCertificate uriSanLocalCertificate dnsSansPeerCertificate dnsSansLocalCertificate",
        "ssl ssl-client ssl-several",
        Shown,
    ),
    (
        "ssl",
        "peerCertificateValidated serialNumberPeerCertificate serialNumberPeerCertificateIssuer \
         sha256PeerCertificateIssuerDigest issuerPeerCertificate \
         urlEncodedPemEncodedPeerCertificate urlEncodedPemEncodedPeerCertificateChain oidsPeerCertificate \
         oidsLocalCertificate validFromPeerCertificate expirationPeerCertificate sessionId ciphersuiteId \
         ciphersuiteString",
        "ssl-hidden",
        No,
    ),
    // Envoy shows this object only with a client's certificate.
    (
        "parsedName",
        "commonName organizationName",
        "ssl-client",
        Shown,
    ),
];

/// Scripts that are about no function.
const GENERAL: &[&str] = &[
    "error",
    "error-then-response",
    "error-closed",
    "early-answer",
    "yield",
    "globals",
    "libraries",
    "lua52",
    "lua52-missing",
    "kept-handle",
];

/// What the page begins with.
const PREFACE: &str = include_str!("preface.md");

/// The members of each of Envoy's objects, as the real one says.
pub(crate) async fn registered() -> BTreeMap<String, BTreeSet<String>> {
    let identity = Identity::generate(&["gateway.example"]).unwrap();
    let nowhere = outrider_e2e::free_address().unwrap();
    let mut bootstrap = direct_config(&[vec![]], nowhere);
    let chain = &mut bootstrap["static_resources"]["listeners"][0]["filter_chains"][0];
    chain["transport_socket"] = both::tls(&identity, None);
    let filters = chain["filters"][0]["typed_config"]["http_filters"]
        .as_array_mut()
        .unwrap();
    filters.insert(
        0,
        json!({
            "name": "dump",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                "default_source_code": { "inline_string": DUMP },
            },
        }),
    );
    let envoy = Direct::start(&bootstrap, 1).unwrap();
    let target = Target::http1(envoy.listener("listener-0").unwrap())
        .with_tls("gateway.example", Trust::Anything);
    let answer = target.send(Request::get("/")).await.unwrap().text();
    envoy.stop().unwrap();
    let objects: BTreeMap<String, BTreeSet<String>> = answer
        .lines()
        .map(|line| {
            let (object, members) = line.split_once(": ").unwrap();
            (
                object.to_owned(),
                members.split(' ').map(ToOwned::to_owned).collect(),
            )
        })
        .collect();
    assert!(objects.len() > 15, "{answer}");
    objects
}

/// What rows do not name: how Lua finds members, and the log functions, which every object has.
fn goes_without_saying(object: &str, function: &str) -> bool {
    matches!(function, "__gc" | "__index") || (object != "handle" && function.starts_with("log"))
}

fn script_of<'s>(scripts: &'s [Script], name: &str) -> &'s Script {
    scripts
        .iter()
        .find(|script| script.name == format!("{name}.lua"))
        .unwrap_or_else(|| panic!("there is no script {name}"))
}

fn link(script: &Script) -> String {
    let label = script.name.trim_end_matches(".lua");
    format!(
        "[{label}](../crates/e2e/tests/envoy_lua/scripts/{})",
        script.name
    )
}

fn row(scripts: &[Script], (object, functions, shown_by, support): &Row) -> String {
    let shown: Vec<&Script> = shown_by
        .split(' ')
        .map(|name| script_of(scripts, name))
        .collect();
    let differences: Vec<&str> = shown
        .iter()
        .filter_map(|script| match &script.promise {
            Promise::Differs(what) => Some(what.as_str()),
            Promise::Same => None,
        })
        .collect();
    let verdict = match (support, differences.as_slice()) {
        (Shown, []) => "as in Envoy".to_owned(),
        (Shown, some) => format!("as in Envoy, but: {}", some.join("; ")),
        (No, some) => {
            assert!(
                !some.is_empty(),
                "{object} {functions}: no script shows that it is not supported"
            );
            format!("**not supported**: {}", some.join("; "))
        }
    };
    let functions: Vec<String> = functions
        .split_whitespace()
        .map(|function| match function {
            "__pairs" => format!("`pairs({object})`"),
            _ => format!("`{object}:{function}()`"),
        })
        .collect();
    let links: Vec<String> = shown.iter().map(|script| link(script)).collect();
    format!(
        "| {} | {verdict} | {} |\n",
        functions.join(", "),
        links.join(", ")
    )
}

/// The page. Fails when Envoy has a function that no row names, a row names one that it has not, or a
/// script stands nowhere.
pub(crate) fn render(
    scripts: &[Script],
    registered: &BTreeMap<String, BTreeSet<String>>,
) -> String {
    let mut told: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut used: BTreeSet<&str> = GENERAL.iter().copied().collect();
    for (object, functions, shown_by, _) in ROWS {
        told.entry(object)
            .or_default()
            .extend(functions.split_whitespace());
        used.extend(shown_by.split(' '));
    }
    for (object, functions) in registered {
        for function in functions {
            let is_told = told
                .get(object.as_str())
                .is_some_and(|told| told.contains(function.as_str()));
            assert!(
                is_told || goes_without_saying(object, function),
                "Envoy's {object}:{function}() is in no row"
            );
        }
    }
    for (object, functions) in &told {
        if let Some(registered) = registered.get(*object) {
            let gone: Vec<&&str> = functions
                .iter()
                .filter(|name| !registered.contains(**name))
                .collect();
            assert!(gone.is_empty(), "Envoy's {object} has no {gone:?}");
        } else {
            assert_eq!(*object, "parsedName", "Envoy has no such object");
        }
    }
    for script in scripts {
        let name = script.name.trim_end_matches(".lua");
        assert!(
            name.starts_with("documentation/") || used.contains(name),
            "script {name} stands nowhere in the page"
        );
    }
    let mut page = PREFACE.to_owned();
    let mut objects: Vec<&str> = ROWS.iter().map(|(object, ..)| *object).collect();
    objects.dedup();
    for object in objects {
        write!(
            page,
            "\n### `{object}`\n\n| function | in Outrider | shown by |\n|---|---|---|\n"
        )
        .unwrap();
        for one in ROWS.iter().filter(|(of, ..)| *of == object) {
            page.push_str(&row(scripts, one));
        }
    }
    page.push_str("\n## Beside the functions\n\n| what | in Outrider |\n|---|---|\n");
    for name in GENERAL {
        let script = script_of(scripts, name);
        let verdict = match &script.promise {
            Promise::Same => "as in Envoy",
            Promise::Differs(what) => what,
        };
        writeln!(page, "| {} | {verdict} |", link(script)).unwrap();
    }
    page.push_str(
        "\n## Scripts from Envoy's documentation\n\nThe examples of Envoy's page on its Lua filter, unchanged. \
         Each was run in both, and did the same where nothing else is said.\n\n",
    );
    for script in scripts
        .iter()
        .filter(|script| script.name.starts_with("documentation/"))
    {
        match &script.promise {
            Promise::Same => writeln!(page, "- {}", link(script)).unwrap(),
            Promise::Differs(what) => writeln!(page, "- {}: {what}", link(script)).unwrap(),
        }
    }
    page
}
