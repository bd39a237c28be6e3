//! Permissions and log budgets, as a chain enforces them.

use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Allowed, CalloutFailure, CalloutRequest, Decision, FilterStateError, FilterStateKind,
    HeaderError, HeaderMap, HttpStreamRequest, Interest, LogLevel, MetadataSource,
    OverrideHostError, OverrideHostFallback, Permissions, Scalar, Stream,
};
use outrider_plugin_testkit::{
    Arrival, Headers, Message, MetricTable, Outcome, ScriptedHost, play,
};

use crate::scripted::{Build, chain_with};

const HEADERS: [(&[u8], &[u8]); 3] = [
    (b":method", b"GET"),
    (b":path", b"/"),
    (b":authority", b"users"),
];

/// The outcome of one stream on which a plugin with permissions runs `act`.
fn outcome_of(
    permissions: Permissions,
    act: impl Fn(&mut dyn Stream) + Send + Sync + 'static,
) -> (Outcome, MetricTable) {
    let interest = Interest {
        request_headers: true,
        ..Interest::default()
    };
    let build = Build::new("tag", interest, move |_, _, stream| {
        act(stream);
        Ok(Decision::Continue)
    });
    let mut metrics = MetricTable::new();
    let chain = chain_with(vec![build.permissions(permissions)], &mut metrics);
    let request = Message {
        headers: Headers::new()
            .with(":method", "GET")
            .with(":path", "/")
            .with(":authority", "shop"),
        ..Message::default()
    };
    let response = Message {
        headers: Headers::new().with(":status", "200"),
        ..Message::default()
    };
    let outcome = play(
        chain,
        &request,
        &response,
        Arrival::ALL[0],
        ScriptedHost::starting_at(Duration::ZERO),
    );
    (outcome, metrics)
}

fn callout(cluster: &[u8]) -> CalloutRequest<'_> {
    CalloutRequest {
        cluster,
        headers: &HEADERS,
        body: b"",
        timeout: None,
    }
}

fn http_stream(cluster: &[u8]) -> HttpStreamRequest<'_> {
    HttpStreamRequest {
        cluster,
        headers: &HEADERS,
        body: b"",
        end_of_stream: true,
        timeout: None,
    }
}

#[test]
fn denied_callout_never_reaches_the_proxy_and_names_the_key() {
    let (outcome, _) = outcome_of(Permissions::default(), |stream| {
        let denied = Err(CalloutFailure::NotAllowed);
        assert_eq!(
            stream.start_callout(&callout(b"victim")).map(|_| ()),
            denied
        );
        let opened = stream.start_http_stream(&http_stream(b"victim"));
        assert_eq!(opened.map(|_| ()), denied);
    });
    assert!(outcome.host.callouts.is_empty());
    let log = outcome.host.log.borrow();
    assert_eq!(log.len(), 1);
    assert!(log[0].message.contains("`victim`"));
    assert!(log[0].message.contains("`plugins.tag.allow.upstreams`"));
}

#[test]
fn allowed_callout_goes_to_the_callout_cluster() {
    let mut permissions = Permissions::all();
    permissions.upstreams = Allowed::Listed(["users".into()].into());
    permissions.callout_clusters = Arc::new([("users".into(), "users/callouts".into())].into());
    let (outcome, _) = outcome_of(permissions, |stream| {
        // No answer is scripted, so both fail once the proxy has seen them.
        assert!(stream.start_callout(&callout(b"users")).is_err());
        assert!(stream.start_http_stream(&http_stream(b"users")).is_err());
    });
    let clusters: Vec<&str> = outcome
        .host
        .callouts
        .iter()
        .map(|made| made.upstream.as_str())
        .collect();
    assert_eq!(clusters, ["users/callouts", "users/callouts"]);
}

#[test]
fn header_that_steers_the_router_needs_a_permission_on_streams_and_in_callouts() {
    const RETRIES: &[u8] = b"X-Envoy-Max-Retries";
    let headers = [&HEADERS[..], &[(RETRIES, b"9")]].concat();
    let callout = move || CalloutRequest {
        cluster: b"users",
        headers: &[],
        body: b"",
        timeout: None,
    };
    let (outcome, _) = outcome_of(Permissions::default(), {
        move |stream| {
            let map = HeaderMap::RequestHeaders;
            let denied = Err(HeaderError::Router("x-envoy-max-retries"));
            assert_eq!(stream.set_header(map, RETRIES, b"9"), denied);
            assert_eq!(stream.add_header(map, RETRIES, b"9"), denied);
            let unknown = stream.set_header(map, b"x-envoy-of-2030", b"1");
            assert!(matches!(unknown, Err(HeaderError::Router(_))));
            assert_eq!(stream.set_header(map, b"x-envoy-internal", b"true"), Ok(()));
            assert_eq!(stream.remove_header(map, RETRIES), Ok(()));
        }
    });
    let log = outcome.host.log.borrow();
    assert!(log[0].message.contains("`plugins.tag.allow.router_headers"));

    let mut callouts_only = Permissions::default();
    callouts_only.upstreams = Allowed::All;
    let (outcome, _) = outcome_of(callouts_only, {
        let headers = headers.clone();
        move |stream| {
            let request = CalloutRequest {
                headers: &headers,
                ..callout()
            };
            let denied = CalloutFailure::BadHeader(HeaderError::Router("x-envoy-max-retries"));
            assert_eq!(stream.start_callout(&request), Err(denied));
            let opened = stream.start_http_stream(&HttpStreamRequest {
                headers: &headers,
                ..http_stream(b"users")
            });
            assert_eq!(opened, Err(denied));
        }
    });
    assert!(outcome.host.callouts.is_empty());

    let (outcome, _) = outcome_of(Permissions::all(), move |stream| {
        let map = HeaderMap::RequestHeaders;
        stream.set_header(map, RETRIES, b"2").unwrap();
        stream.add_header(map, b"x-envoy-retry-on", b"5xx").unwrap();
        // No answer is scripted, so it fails once the proxy has seen it.
        let request = CalloutRequest {
            headers: &headers,
            ..callout()
        };
        assert!(stream.start_callout(&request).is_err());
    });
    assert_eq!(outcome.host.callouts.len(), 1);
}

#[test]
fn filter_state_that_steers_the_proxy_needs_a_permission() {
    const SNI: &[u8] = b"envoy.network.upstream_server_name";
    let (outcome, _) = outcome_of(Permissions::default(), |stream| {
        for kind in [FilterStateKind::Typed, FilterStateKind::Bytes] {
            let denied = Err(FilterStateError::NotAllowed);
            assert_eq!(stream.set_filter_state(SNI, b"a.test", kind), denied);
        }
        let own = stream.set_filter_state(b"own", b"1", FilterStateKind::Bytes);
        assert_eq!(own, Ok(()));
    });
    let log = outcome.host.log.borrow();
    assert!(log[0].message.contains("`allow.typed_filter_state`"));
}

#[test]
fn denied_endpoint_and_metadata_change_nothing() {
    let (outcome, _) = outcome_of(Permissions::default(), |stream| {
        assert_eq!(
            stream.set_upstream_override_host(b"10.0.0.1:80", OverrideHostFallback::Fail),
            Err(OverrideHostError::NotAllowed)
        );
        let denied = stream.set_metadata(b"envoy.lb", b"canary", Scalar::Bool(true));
        assert!(
            denied
                .unwrap_err()
                .to_string()
                .contains("`plugins.tag.allow.metadata`")
        );
        let found = stream.metadata(MetadataSource::Dynamic, b"envoy.lb", b"canary");
        assert_eq!(found, None);
        stream
            .set_metadata(b"tag", b"own", Scalar::Number(1.0))
            .unwrap();
        let found = stream.metadata(MetadataSource::Dynamic, b"tag", b"own");
        assert_eq!(found, Some(Scalar::Number(1.0)));
    });
    let log = outcome.host.log.borrow();
    assert!(log[0].message.contains("`plugins.tag.allow.override_host`"));
}

#[test]
fn log_flood_is_dropped_counted_and_reported() {
    let (outcome, metrics) = outcome_of(Permissions::all(), |stream| {
        for _ in 0..100 {
            stream.log(LogLevel::Info, &"x".repeat(1_000_000));
        }
        stream.log(LogLevel::Info, "a\nerror: forged");
    });
    let log = outcome.host.log.borrow();
    let bytes: usize = log.iter().map(|line| line.message.len()).sum();
    assert!(bytes < 100_000, "{bytes} bytes");
    assert!(log.iter().any(|line| line.message.contains("are dropped")));
    assert!(log.iter().all(|line| !line.message.contains('\n')));
    let dropped = outcome
        .host
        .metric_value(metrics.id("outrider.plugin.tag.log_dropped"));
    let written = i64::try_from(log.len()).unwrap() - 1;
    assert_eq!(dropped, 101 - written);
}
