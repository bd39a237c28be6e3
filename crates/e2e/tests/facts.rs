//! What plugins can ask about a stream, and change of it beyond headers and bodies, on the real Envoy:
//! attributes, TLS of the connection, metadata, filter state, the upstream's endpoint.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::net::SocketAddr;

use outrider_e2e::{Direct, FilterPlugin, direct_config};
use outrider_lab::client::{Request, Response, Target};
use outrider_lab::echo::Echo;
use outrider_lab::tls::{Identity, Trust};
use serde_json::{Value, json};

fn plugin(name: &str, priority: i32, code: &str) -> FilterPlugin {
    FilterPlugin {
        name: name.to_owned(),
        code: format!("local handler = {{ version = 'v2' }}\n{code}\nreturn handler\n"),
        module: None,
        body: "whole",
        priority,
        config: json!({}),
    }
}

/// One listener with one plugin.
fn config(code: &str, upstream: SocketAddr) -> Value {
    direct_config(&[vec![vec![plugin("asks", 0, code)]]], upstream)
}

/// What the plugin wrote into the response's header of that name, as JSON.
fn told(response: &Response, name: &str) -> Value {
    let text = response
        .headers
        .get(name)
        .unwrap_or_else(|| panic!("no {name} in {:?}: {}", response.headers, response.text()));
    serde_json::from_str(text).unwrap()
}

/// Asks for every attribute in three phases; those of the log phase go to the log.
const ATTRIBUTES: &str = r#"
local names = {
    "request.path", "request.url_path", "request.host", "request.scheme", "request.method",
    "request.referer", "request.useragent", "request.time", "request.id", "request.protocol",
    "request.query", "request.duration", "request.size", "response.code", "response.code_details",
    "response.grpc_status", "response.backend_latency", "source.address", "source.port",
    "destination.address", "destination.port", "connection.id", "connection.mtls",
    "connection.requested_server_name", "connection.tls_version",
    "connection.subject_local_certificate", "connection.subject_peer_certificate",
    "connection.dns_san_local_certificate", "connection.dns_san_peer_certificate",
    "connection.uri_san_local_certificate", "connection.uri_san_peer_certificate",
    "connection.sha256_peer_certificate_digest", "connection.transport_failure_reason",
    "connection.termination_details", "upstream.address", "upstream.port", "upstream.tls_version",
    "upstream.subject_local_certificate", "upstream.subject_peer_certificate",
    "upstream.dns_san_local_certificate", "upstream.dns_san_peer_certificate",
    "upstream.uri_san_local_certificate", "upstream.uri_san_peer_certificate",
    "upstream.sha256_peer_certificate_digest", "upstream.local_address",
    "upstream.transport_failure_reason", "upstream.request_attempt_count", "xds.cluster_name",
    "xds.route_name", "health_check", "source.direct_address",
}
local function all()
    local seen = {}
    for _, name in ipairs(names) do
        seen[name] = envoy.attribute(name)
    end
    seen.timing = envoy.streaminfo.timing()
    seen.tls = envoy.connection.tls()
    seen.attempts = envoy.streaminfo.attempt_count()
    return envoy.json.encode(seen)
end
function handler:on_request_header() envoy.stream.shared.request = all() end
function handler:on_response_header()
    envoy.resp.set_header("x-request-facts", envoy.stream.shared.request)
    envoy.resp.set_header("x-response-facts", all())
end
function handler:on_log() envoy.logWarn("facts " .. all()) end
"#;

#[tokio::test]
async fn attributes_of_a_plaintext_stream() {
    let echo = Echo::start("one").await.unwrap();
    let mut bootstrap = config(ATTRIBUTES, echo.address());
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let manager = bootstrap.pointer_mut(manager).unwrap();
    manager["generate_request_id"] = json!(true);
    manager["use_remote_address"] = json!(true);
    let envoy = Direct::start(&bootstrap, 1).unwrap();
    let address = envoy.listener("listener-0").unwrap();
    let request = Request::post("/cart?item=1", "body")
        .header("user-agent", "test")
        .header("referer", "http://shop/");
    let response = Target::http1(address).send(request).await.unwrap();
    let early = told(&response, "x-request-facts");
    for (name, expected) in [
        ("request.path", json!("/cart?item=1")),
        ("request.url_path", json!("/cart")),
        ("request.query", json!("item=1")),
        ("request.host", json!("localhost")),
        ("request.scheme", json!("http")),
        ("request.method", json!("POST")),
        ("request.referer", json!("http://shop/")),
        ("request.useragent", json!("test")),
        ("request.protocol", json!("HTTP/1.1")),
        ("request.size", json!(4)),
        ("destination.port", json!(address.port())),
        ("destination.address", json!(address.to_string())),
        ("xds.cluster_name", json!("upstream")),
        ("xds.route_name", json!("over-1")),
        ("health_check", json!(false)),
        ("response.code", Value::Null),
        ("connection.mtls", Value::Null),
        ("connection.tls_version", Value::Null),
        ("upstream.address", Value::Null),
        ("request.duration", Value::Null),
        ("attempts", Value::Null),
        ("tls", Value::Null),
    ] {
        assert_eq!(early[name], expected, "{name}");
    }
    let port = early["source.port"].as_u64().unwrap();
    assert_eq!(early["source.address"], json!(format!("127.0.0.1:{port}")));
    assert_eq!(early["source.direct_address"], early["source.address"]);
    assert_eq!(early["request.id"].as_str().unwrap().len(), 36);
    assert!(early["request.time"].as_f64().unwrap() > 1.7e12);
    let late = told(&response, "x-response-facts");
    assert_eq!(late["response.code"], json!(200));
    assert_eq!(late["response.code_details"], json!("via_upstream"));
    assert_eq!(late["upstream.address"], json!(echo.address().to_string()));
    assert_eq!(late["upstream.port"], json!(echo.address().port()));
    assert_eq!(late["upstream.request_attempt_count"], json!(1));
    assert_eq!(late["attempts"], json!(1));
    assert!(late["upstream.local_address"].is_string(), "{late}");
    assert!(late["timing"]["first_upstream_sent"].is_number(), "{late}");
    let log = envoy.stop().unwrap().text();
    let facts = log.split("facts ").nth(1).unwrap().lines().next().unwrap();
    let last: Value = serde_json::from_str(facts).unwrap();
    assert!(last["request.duration"].as_f64().unwrap() > 0.0, "{last}");
    assert!(
        last["response.backend_latency"].as_f64().unwrap() >= 0.0,
        "{last}"
    );
    assert!(last["timing"]["last_downstream_sent"].is_number(), "{last}");
    // Envoy says at its error level when it is asked for what it does not show.
    assert!(!log.contains("Unsupported attribute"), "{log}");
}

#[tokio::test]
async fn tls_says_who_the_client_is() {
    let server = Identity::generate(&["shop.example.com"]).unwrap();
    let client = Identity::for_client("cart", &["spiffe://shop/cart", "cart.example.com"]).unwrap();
    let echo = Echo::start("one").await.unwrap();
    let mut bootstrap = config(ATTRIBUTES, echo.address());
    bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["transport_socket"] = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificates": [{
                    "certificate_chain": { "inline_string": server.certificate },
                    "private_key": { "inline_string": server.private_key },
                }],
                "validation_context": { "trusted_ca": { "inline_string": client.certificate } },
            },
        },
    });
    // Envoy knows the name that a client asks for from this filter only.
    bootstrap["static_resources"]["listeners"][0]["listener_filters"] = json!([{
        "name": "envoy.filters.listener.tls_inspector",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
        },
    }]);
    let envoy = Direct::start(&bootstrap, 1).unwrap();
    let target = envoy.http2("listener-0").unwrap().with_tls(
        "shop.example.com",
        Trust::Authority(server.certificate.clone()),
    );
    let response = target
        .clone()
        .with_identity(&client)
        .send(Request::get("/"))
        .await
        .unwrap();
    let tls = &told(&response, "x-request-facts")["tls"];
    let digest = tls["sha256"].as_str().unwrap();
    assert_eq!(digest.len(), 64);
    let mut expected = json!({
        "peer_presented": true, "version": "TLSv1.3", "server_name": "shop.example.com",
        "subject": "CN=cart", "uri_san": "spiffe://shop/cart", "dns_san": "cart.example.com",
        "sha256": digest, "local_subject": "CN=rcgen self signed cert",
        "local_dns_san": "shop.example.com",
    });
    expected.sort_all_objects();
    let mut tls = tls.clone();
    tls.sort_all_objects();
    assert_eq!(tls, expected);
    let anonymous = target.send(Request::get("/")).await.unwrap();
    let tls = &told(&anonymous, "x-request-facts")["tls"];
    assert_eq!(tls["peer_presented"], json!(false));
    assert_eq!(tls["subject"], Value::Null);
    assert_eq!(tls["server_name"], json!("shop.example.com"));
    envoy.stop().unwrap();
}

const WRITES: &str = r#"
function handler:on_request_header()
    local metadata, state = envoy.metadata, envoy.filter_state
    metadata.set("shop", "user", "ann")
    metadata.set("shop", "visits", 7)
    metadata.set("shop", "vip", true)
    metadata.set("shop", "groups", { "admins", 2, false })
    metadata.set("shop", "cart", { items = { { id = 1 }, { id = 2 } }, empty = {} })
    metadata.set("other", "x", "y")
    metadata.set("shop", "user", "bob")
    state.set("shop.user", "bob")
    state.set_typed("envoy.string", "typed")
    local told = {
        user = metadata.get("shop", "user"), visits = metadata.get("shop", "visits"),
        vip = metadata.get("shop", "vip"), groups = metadata.get("shop", "groups"),
        cart = metadata.get("shop", "cart"), none = metadata.get("shop", "none"),
        keys = metadata.keys("shop"), spaces = metadata.namespaces(),
        tier = metadata.get("shop", "tier", "route"), zone = metadata.get("shop", "zone", "cluster"),
        tags = metadata.get("shop", "tags", "route"), route_keys = metadata.keys("shop", "route"),
        rider = envoy.req.get_metadata("tier", "shop"),
        state = state.get("shop.user"), no_state = state.get("shop.none"),
        typed = state.get("envoy.string"),
    }
    table.sort(told.keys)
    table.sort(told.spaces)
    local _, twice = pcall(state.set, "shop.user", "eve")
    told.twice = twice
    local _, unknown = pcall(state.set_typed, "shop.unknown", "eve")
    told.unknown = unknown
    envoy.stream.shared.told = envoy.json.encode(told)
end
function handler:on_response_header()
    local told = { rack = envoy.metadata.get("shop", "rack", "host") }
    local _, problem = pcall(envoy.req.set_upstream_override_host, "127.0.0.1:1")
    told.late = problem
    envoy.resp.set_header("x-told", envoy.stream.shared.told)
    envoy.resp.set_header("x-told-late", envoy.json.encode(told))
end
"#;

#[tokio::test]
async fn metadata_and_filter_state() {
    let echo = Echo::start("one").await.unwrap();
    let mut bootstrap = config(WRITES, echo.address());
    let shop = |fields: Value| json!({ "filter_metadata": { "shop": fields } });
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let manager = bootstrap.pointer_mut(manager).unwrap();
    manager["route_config"]["virtual_hosts"][0]["routes"][1]["metadata"] =
        shop(json!({ "tier": "gold", "tags": ["a", 1.5, true, { "deep": 1 }] }));
    manager["access_log"] = json!([{
        "name": "envoy.access_loggers.stderr",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog",
            "log_format": { "text_format_source": { "inline_string":
                "access %FILTER_STATE(shop.user:PLAIN)% %DYNAMIC_METADATA(shop:cart)% %DYNAMIC_METADATA(shop:groups)%\n" } },
        },
    }]);
    let cluster = &mut bootstrap["static_resources"]["clusters"][0];
    cluster["metadata"] = shop(json!({ "zone": "a" }));
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["metadata"] =
        shop(json!({ "rack": 4 }));
    let envoy = Direct::start(&bootstrap, 1).unwrap();
    let response = envoy
        .http1("listener-0")
        .unwrap()
        .send(Request::get("/"))
        .await
        .unwrap();
    let told_early = told(&response, "x-told");
    for (name, expected) in [
        ("user", json!("bob")),
        ("visits", json!(7)),
        ("vip", json!(true)),
        ("groups", json!(["admins", 2, false])),
        // Envoy shows modules nothing that is nested.
        ("cart", Value::Null),
        ("none", Value::Null),
        ("keys", json!(["cart", "groups", "user", "vip", "visits"])),
        ("spaces", json!(["other", "shop"])),
        ("tier", json!("gold")),
        ("rider", json!("gold")),
        ("zone", json!("a")),
        ("tags", json!(["a", 1.5, true])),
        ("state", json!("bob")),
        ("no_state", Value::Null),
        ("typed", json!("typed")),
        (
            "twice",
            json!("filter state shop.user is set already; filter state is written once"),
        ),
        (
            "unknown",
            json!("filter state shop.unknown names no object that Envoy can make of this value"),
        ),
    ] {
        assert_eq!(told_early[name], expected, "{name}");
    }
    let late = told(&response, "x-told-late");
    assert_eq!(late["rack"], json!(4));
    assert_eq!(
        late["late"],
        json!(
            "the request's headers are on their way to the upstream, which cannot change any more"
        )
    );
    let log = envoy.stop().unwrap().text();
    let access = log
        .lines()
        .find_map(|line| line.split("access ").nth(1))
        .unwrap_or_else(|| panic!("no access log in {log}"));
    let mut words = access.splitn(3, ' ');
    assert_eq!(words.next().unwrap().trim_matches('"'), "bob");
    let cart: Value = serde_json::from_str(words.next().unwrap()).unwrap();
    assert_eq!(
        cart,
        json!({ "items": [{ "id": 1 }, { "id": 2 }], "empty": {} })
    );
    let groups: Value = serde_json::from_str(words.next().unwrap()).unwrap();
    assert_eq!(groups, json!(["admins", 2, false]));
}

#[tokio::test]
async fn the_upstream_s_endpoint_is_the_plugin_s_choice() {
    const CHOOSES: &str = r#"
        function handler:on_request_header()
            envoy.req.set_upstream_override_host(
                envoy.req.get_header("x-endpoint"), envoy.req.get_header("x-strict") ~= nil)
        end
        function handler:on_response_header()
            envoy.resp.set_header("x-endpoint", tostring(envoy.streaminfo.upstream_host()))
        end
    "#;
    let (one, two) = (
        Echo::start("one").await.unwrap(),
        Echo::start("one").await.unwrap(),
    );
    let mut bootstrap = config(CHOOSES, one.address());
    let endpoints = "/static_resources/clusters/0/load_assignment/endpoints/0/lb_endpoints";
    let endpoints = bootstrap
        .pointer_mut(endpoints)
        .unwrap()
        .as_array_mut()
        .unwrap();
    let mut second = endpoints[0].clone();
    second["endpoint"]["address"]["socket_address"]["port_value"] = json!(two.address().port());
    endpoints.push(second);
    let envoy = Direct::start(&bootstrap, 1).unwrap();
    let target = envoy.http1("listener-0").unwrap();
    let ask = async |endpoint: &str, strict: bool| {
        let mut request = Request::get("/").header("x-endpoint", endpoint);
        if strict {
            request = request.header("x-strict", "yes");
        }
        let response = target.send(request).await.unwrap();
        let served = response.headers.get("x-endpoint").map(ToString::to_string);
        (response.status, served)
    };
    for _ in 0..4 {
        for echo in [&one, &two] {
            let address = echo.address().to_string();
            assert_eq!(ask(&address, true).await, (200, Some(address.clone())));
        }
    }
    let (status, served) = ask("127.0.0.1:1", false).await;
    assert_eq!(status, 200);
    assert_ne!(served.unwrap(), "127.0.0.1:1");
    let (status, _) = ask("127.0.0.1:1", true).await;
    assert_eq!(status, 503);
    // The plugin fails closed.
    let (status, _) = ask("shop.example.com:80", true).await;
    assert_eq!(status, 500);
    let log = envoy.stop().unwrap().text();
    assert!(
        log.contains("the address of the upstream's endpoint must be an IP address"),
        "{log}"
    );
}
