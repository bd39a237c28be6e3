//! Facts in cases: they are true of the stream that the plugin sees, what it leaves is compared, and
//! names that mean nothing are told.

use std::sync::Arc;

use crate::scripted::Build;
use outrider_plugin_api::{
    Attribute, Call, ConfiguredPlugin, Decision, FilterStateKind, HeaderMap, Interest, LoadError,
    MetadataSource, MetadataTree, Metrics, OverrideHostFallback, Plugin, PluginStatus, Scalar,
    ScopedConfig, Slot, Stream,
};
use outrider_plugin_testkit::{LoadedPlugin, read_cases, run_case};

/// Writes what it finds into headers, and leaves something of every kind.
#[derive(Debug)]
struct Curious;

fn text(value: Option<Scalar<'_>>) -> Vec<u8> {
    match value {
        Some(Scalar::String(text)) => text.to_vec(),
        Some(Scalar::Number(number)) => number.to_string().into_bytes(),
        Some(Scalar::Bool(truth)) => truth.to_string().into_bytes(),
        None => b"none".to_vec(),
    }
}

impl Plugin for Curious {
    fn status(&self) -> PluginStatus {
        PluginStatus::default()
    }

    fn interest(&self) -> Interest {
        Interest {
            request_headers: true,
            ..Interest::default()
        }
    }

    fn configure(
        &self,
        _config: &ScopedConfig,
        _metrics: &mut dyn Metrics,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError> {
        let on_call = |_: &mut Slot, _: Call, stream: &mut dyn Stream| {
            let found = [
                (
                    "x-address",
                    text(stream.attribute(Attribute::SourceAddress)),
                ),
                (
                    "x-subject",
                    text(stream.attribute(Attribute::ConnectionSubjectPeerCertificate)),
                ),
                ("x-mtls", text(stream.attribute(Attribute::ConnectionMtls))),
                (
                    "x-tier",
                    text(stream.metadata(MetadataSource::Route, b"shop", b"tier")),
                ),
                (
                    "x-state",
                    stream
                        .filter_state(b"shop.user")
                        .unwrap_or(b"none")
                        .to_vec(),
                ),
            ];
            for (name, value) in found {
                stream
                    .set_header(HeaderMap::RequestHeaders, name.as_bytes(), &value)
                    .unwrap();
            }
            stream
                .set_metadata_tree(
                    b"mine",
                    b"list",
                    &MetadataTree::List(vec![1.0.into(), "x".into()]),
                )
                .unwrap();
            stream
                .set_filter_state(b"mine.key", b"value", FilterStateKind::Bytes)
                .unwrap();
            stream
                .set_upstream_override_host(b"10.0.0.1:80", OverrideHostFallback::Fail)
                .unwrap();
            Ok(Decision::Continue)
        };
        Ok(Arc::new(
            Build::new("curious", self.interest(), on_call).plugin(),
        ))
    }
}

fn outcome(text: &str) -> String {
    let case = read_cases("cases.yaml", text).unwrap().remove(0);
    assert!(case.is_scripted());
    let plugin = LoadedPlugin::new("curious", |_| Ok(Arc::new(Curious)));
    let result = run_case(&plugin, &case);
    if result.is_right() {
        "right".to_owned()
    } else {
        result.to_string()
    }
}

const CASE: &str = "
name: facts
facts:
  attributes: {source.address: '10.1.2.3:4'}
  tls: {subject: CN=cart}
  metadata: {route: {shop: {tier: 2}}}
  filter_state: {shop.user: ann}
expect:
  upstream_request:
    headers: {x-address: '10.1.2.3:4', x-subject: CN=cart, x-mtls: 'true', x-tier: '2', x-state: ann}
  facts:
    metadata: {mine: {list: [1, x]}}
    filter_state: {mine.key: value}
    override_host: '10.0.0.1:80'
";

#[test]
fn facts_are_true_and_what_is_left_is_compared() {
    assert_eq!(outcome(CASE), "right");
    let wrong = CASE
        .replace("[1, x]", "[2, x]")
        .replace("mine.key: value", "mine.other: value")
        .replace(
            "override_host: '10.0.0.1:80'",
            "override_host: '10.0.0.2:80'",
        );
    insta::assert_snapshot!(outcome(&wrong));
}

#[test]
fn names_that_mean_nothing_are_told() {
    let texts = [
        "{name: a, facts: {attributes: {source.adress: x}}, expect: {details: x}}",
        "{name: a, facts: {attributes: {source.port: x}}, expect: {details: x}}",
        "{name: a, facts: {attributes: {request.path: x}}, expect: {details: x}}",
        "{name: a, facts: {attributes: {response.flags: x}}, expect: {details: x}}",
        "{name: a, facts: {tls: {issuer: x}}, expect: {details: x}}",
        "{name: a, facts: {metadata: {routes: {}}}, expect: {details: x}}",
    ];
    let told = texts.map(|text| {
        let problems = read_cases("cases.yaml", text).unwrap_err();
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        format!("{text}\n=> {}", problems.join("\n"))
    });
    insta::assert_snapshot!(told.join("\n\n"));
}
