//! Attributes, the connection, metadata, filter state: what is known about a stream.

use outrider_plugin_api::OverrideHostFallback;

use super::fake::{FakeStream, Metadata, fault_of, logs_of, on_request};

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
            // Looking for the nearest name would take the worker seconds.
            "envoy.attribute(('a'):rep(400000))",
            "there is no attribute with such a long name; docs/lua-sdk.md lists them, for example request.path",
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
fn metadata_of_all_kinds_is_read_and_written() {
    let mut stream = FakeStream::new();
    let place = |namespace: &str, key: &str| (namespace.to_owned(), key.to_owned());
    stream
        .route_metadata
        .insert(place("shop", "tier"), "gold".into());
    stream.route_metadata.insert(
        place("shop", "tags"),
        Metadata::List(vec!["a".into(), 2.0.into(), true.into()]),
    );
    let probe = on_request(
        r#"
        local metadata = envoy.metadata
        print(metadata.get("shop", "tier"), metadata.get("shop", "tier", "route"))
        local tags = metadata.get("shop", "tags", "cluster")
        print(#tags, tags[1], tags[2], tags[3])
        metadata.set("mine", "text", "x")
        metadata.set("mine", "number", 1.5)
        metadata.set("mine", "list", { "a", { deep = true } })
        print(metadata.get("mine", "text") .. metadata.get("mine", "number"))
        print(table.concat(metadata.keys("mine"), ","), #metadata.keys("other"))
        print(table.concat(metadata.namespaces("route"), ","))
        envoy.req.set_dynamic_metadata("tree", { name = "x", empty = {} }, "mine")
        "#,
    );
    probe.request(&mut stream).unwrap();
    assert_eq!(
        stream.logged(),
        [
            "nil\tgold",
            "3\ta\t2\ttrue",
            "x1.5",
            "list,number,text\t0",
            "shop,shop",
        ]
    );
    assert_eq!(
        stream.metadata[&place("mine", "list")],
        Metadata::List(vec![
            "a".into(),
            Metadata::Map(vec![(b"deep".to_vec(), true.into())])
        ])
    );
    let Metadata::Map(tree) = &stream.metadata[&place("mine", "tree")] else {
        panic!("no map")
    };
    assert_eq!(tree.len(), 2);
}

#[test]
fn filter_state_is_written_once() {
    let mut stream = FakeStream::new();
    let probe = on_request(
        r#"
        local state = envoy.filter_state
        print(state.get("shop.user"))
        state.set("shop.user", "ann\0")
        state.set_typed("envoy.tcp_proxy.cluster", "blue")
        state.set("shop.count", 7)
        print(#state.get("shop.user"), state.get("envoy.tcp_proxy.cluster"), state.get("shop.count"))
        print(select(2, pcall(state.set, "shop.user", "bob")))
        print(select(2, pcall(state.set_typed, "shop.other", "bob")))
        "#,
    );
    probe.request(&mut stream).unwrap();
    assert_eq!(
        stream.logged(),
        [
            "nil",
            "4\tblue\t7",
            "filter state shop.user is set already; filter state is written once",
            "filter state shop.other names no object that Envoy can make of this value",
        ]
    );
}

#[test]
fn the_upstream_s_endpoint_is_chosen() {
    let mut stream = FakeStream::new();
    on_request("envoy.req.set_upstream_override_host('10.0.0.1:80')")
        .request(&mut stream)
        .unwrap();
    let chosen = |otherwise| Some(("10.0.0.1:80".to_owned(), otherwise));
    assert_eq!(
        stream.override_host,
        chosen(OverrideHostFallback::LoadBalancer)
    );
    on_request("envoy.req.set_upstream_override_host('10.0.0.1:80', true)")
        .request(&mut stream)
        .unwrap();
    assert_eq!(stream.override_host, chosen(OverrideHostFallback::Fail));
}

#[test]
fn wrong_arguments_name_the_plugin_s_line() {
    for (call, message) in [
        (
            "envoy.metadata.get('a')",
            "the metadata's key must be a string, not nil",
        ),
        (
            "envoy.metadata.get('a', 'b', 'c')",
            "the source of metadata is \"dynamic\", \"route\", \"cluster\", \"host\" or \"locality\"",
        ),
        (
            "envoy.metadata.set('a', 'b')",
            "a metadata value must be a string, a number, a boolean or a table, not nil",
        ),
        (
            "envoy.metadata.set('a', 'b', { print })",
            "metadata cannot hold this value: JSON has no value for a function",
        ),
        (
            "envoy.metadata.set('a', 'b', { '\\255' })",
            "the texts of a metadata value must be UTF-8",
        ),
        (
            "envoy.metadata.keys()",
            "the namespace must be a string, not nil",
        ),
        (
            "envoy.filter_state.get(1)",
            "the key must be a string, not number",
        ),
        (
            "envoy.filter_state.set('a', {})",
            "the value must be a string, not table",
        ),
        (
            "envoy.req.set_upstream_override_host('xyz')",
            "the address of the upstream's endpoint must be an IP address with a port, such as \
             10.0.0.1:8080 or [2001:db8::1]:8080",
        ),
        (
            "envoy.req.set_upstream_override_host('10.0.0.1:80', 1)",
            "whether it is strict must be a boolean, not number",
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
