//! Attributes, the connection, metadata, filter state: what is known about a stream.

use super::fake::{FakeStream, fault_of, logs_of, on_request};

/// What `print` writes for each of `expressions` on a stream.
fn values(stream: &mut FakeStream, expressions: &[&str]) -> Vec<String> {
    let lines: Vec<String> = expressions
        .iter()
        .map(|expression| format!("print({expression})"))
        .collect();
    on_request(&lines.join("\n")).request(stream).unwrap();
    stream.logged()
}

#[test]
fn attributes_have_envoys_names_and_kinds() {
    assert_eq!(
        values(
            &mut FakeStream::new(),
            &[
                "envoy.attribute('request.path')",
                "envoy.attribute('request.url_path')",
                "envoy.attribute('request.query')",
                "envoy.attribute('request.method'), envoy.attribute('request.host')",
                "envoy.attribute('request.useragent')",
                "envoy.attribute('source.address'), envoy.attribute('source.port') + 1",
                "envoy.attribute('response.code') + 1",
                "envoy.attribute('health_check')",
                "envoy.attribute('connection.mtls')",
                "envoy.streaminfo.request_id(), envoy.streaminfo.downstream_direct_remote_address()",
                "envoy.streaminfo.timing().first_upstream_received, envoy.streaminfo.timing().complete",
            ]
        ),
        [
            "/cart?item=a%20b&item=2&flag",
            "/cart",
            "item=a%20b&item=2&flag",
            "GET\tshop.example.com",
            "nil",
            "10.0.0.9:4711\t4712",
            "201",
            "false",
            "nil",
            "4c0f\t10.0.0.9:4711",
            "7.5\tnil",
        ]
    );
}

#[test]
fn an_attribute_that_is_not_there_is_told() {
    for (call, message) in [
        (
            "envoy.attribute('request.pth')",
            "there is no attribute request.pth; did you mean request.path?",
        ),
        (
            "envoy.attribute('weather')",
            "there is no attribute weather; docs/lua-sdk.md lists them, for example request.path",
        ),
        (
            "envoy.attribute('response.flags')",
            "Envoy does not show response.flags to plugins; an access log has it",
        ),
        (
            "envoy.attribute('request.headers')",
            "Envoy does not show request.headers to plugins; read the headers with get_headers()",
        ),
        (
            "envoy.attribute()",
            "the attribute's name must be a string, not nil",
        ),
    ] {
        assert_eq!(
            fault_of(call).message,
            format!("probe/main.lua:3: {message}"),
            "{call}"
        );
    }
}

#[test]
fn what_tls_says_of_the_connection() {
    let mut stream = FakeStream::new();
    stream.tls = true;
    assert_eq!(
        values(
            &mut stream,
            &[
                "envoy.connection.tls().peer_presented, envoy.connection.tls().version",
                "envoy.connection.tls().server_name, envoy.connection.tls().subject",
                "envoy.connection.tls().uri_san, envoy.connection.tls().dns_san",
                "envoy.connection.tls().sha256, envoy.connection.tls().local_subject",
                "envoy.connection.tls().local_dns_san, envoy.connection.tls().local_uri_san",
            ]
        ),
        [
            "true\tTLSv1.3",
            "shop.example.com\tCN=client",
            "spiffe://shop/cart\tclient.example.com",
            "ab01\tCN=shop",
            "shop.example.com\tnil",
        ]
    );
    assert_eq!(logs_of("print(envoy.connection.tls())"), ["nil"]);
}

#[test]
fn attributes_need_a_stream() {
    let problem =
        super::fake::try_load(&[("main.lua", "envoy.attribute('request.path') return {}")]);
    assert!(
        problem
            .unwrap_err()
            .message
            .contains("there is no stream here"),
    );
    assert_eq!(logs_of("print(envoy.streaminfo.duration())"), ["nil"]);
}
