//! `envoy.uuid`, `envoy.crypto`, `envoy.time`, `envoy.url` and `envoy.re`.

use super::fake::{FakeStream, fault_of, logs_of, on_request, probe, probe_with, source};

/// What `print` writes for each of `expressions`, in tabs where there are several values.
fn values(expressions: &[&str]) -> Vec<String> {
    let lines: Vec<String> = expressions
        .iter()
        .map(|expression| format!("print({expression})"))
        .collect();
    logs_of(&lines.join("\n"))
}

/// Each of `calls` raises an error at the plugin's own line.
fn refused(calls: &[(&str, &str)]) {
    for (call, message) in calls {
        let fault = fault_of(call);
        assert_eq!(
            fault.message,
            format!("probe/main.lua:3: {message}"),
            "{call}"
        );
    }
}

#[test]
fn uuids_are_random_and_of_version_4() {
    let logs = logs_of(
        r#"
        local seen = {}
        for _ = 1, 1000 do
            local id = envoy.uuid()
            if seen[id] or not envoy.re.match(id, "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$") then
                print(id)
            end
            seen[id] = true
        end
        "#,
    );
    assert_eq!(logs, [""; 0]);
}

#[test]
fn digests_and_codes_are_the_standards() {
    assert_eq!(
        values(&[
            "envoy.crypto.hex(envoy.crypto.sha256(''))",
            "envoy.crypto.hex(envoy.crypto.sha256('abc'))",
            "#envoy.crypto.sha256(('x'):rep(1e6))",
            // RFC 4231, cases 2 and 6 (a key that is longer than a block).
            "envoy.crypto.hex(envoy.crypto.hmac_sha256('Jefe', 'what do ya want for nothing?'))",
            "envoy.crypto.hex(envoy.crypto.hmac_sha256(('\\170'):rep(131), 'Test Using Larger Than Block-Size Key - Hash Key First'))",
            "#envoy.crypto.hmac_sha256('', '')",
            "envoy.crypto.hex(envoy.crypto.sha1('abc'))",
            "envoy.crypto.hex(envoy.crypto.sha384('abc')):sub(1, 16), #envoy.crypto.sha384('')",
            "envoy.crypto.hex(envoy.crypto.sha512('abc')):sub(1, 16), #envoy.crypto.sha512('')",
            // RFC 2202 and RFC 4231, case 2.
            "envoy.crypto.hex(envoy.crypto.hmac_sha1('Jefe', 'what do ya want for nothing?'))",
            "envoy.crypto.hex(envoy.crypto.hmac_sha384('Jefe', 'what do ya want for nothing?')):sub(1, 16)",
            "envoy.crypto.hex(envoy.crypto.hmac_sha512('Jefe', 'what do ya want for nothing?')):sub(1, 16)",
        ]),
        [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "32",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            "32",
            "a9993e364706816aba3e25717850c26c9cd0d89d",
            "cb00753f45a35e8b\t48",
            "ddaf35a193617aba\t64",
            "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
            "af45d2e376484031",
            "164b7a7bfcf819e2",
        ]
    );
}

/// A key and a signature of `order=42` that OpenSSL made.
fn signed(key: &str, hash: &str) -> (&'static str, String) {
    let pem = match key {
        "p256" => include_str!("../../../signatures/vectors/keys/p256.pem"),
        _ => include_str!("../../../signatures/vectors/keys/rsa2048.pem"),
    };
    let line = include_str!("../../../signatures/vectors/signatures.txt")
        .lines()
        .find(|line| line.starts_with(&format!("{key} {hash} ")))
        .unwrap();
    (pem, line.rsplit(' ').next().unwrap().to_owned())
}

#[test]
fn signatures_are_checked() {
    for (key, hash) in [
        ("rsa2048", "sha256"),
        ("rsa2048", "sha224"),
        ("p256", "sha256"),
    ] {
        let (pem, signature) = signed(key, hash);
        let logs = logs_of(&format!(
            r#"
            local crypto, pem = envoy.crypto, [[{pem}]]
            local signature = envoy.base64.decode("{signature}")
            local der = crypto.import_public_key(pem)
            print(crypto.verify_signature("{hash}", pem, signature, "order=42"))
            print(crypto.verify_signature("{hash}", der, signature, "order=42"))
            print(crypto.verify_signature("{hash}", der, signature, "order=43"))
            print(crypto.verify_signature("{hash}", der, "", "order=42"))
            "#
        ));
        let no = "false\tthe signature does not match";
        assert_eq!(logs, ["true", "true", no, no], "{key} {hash}");
    }
    let (pem, _) = signed("p256", "sha256");
    assert_eq!(
        logs_of(&format!(
            "print(envoy.crypto.import_public_key('x'))
            print(envoy.crypto.verify_signature('sha256', 'x', '', ''))
            print(envoy.crypto.verify_signature('sha1', [[{pem}]], '', ''))
            print(envoy.crypto.verify_signature(nil, [[{pem}]], '', ''))"
        )),
        [
            "nil\tnot a public key in PEM or DER (SubjectPublicKeyInfo)",
            "false\tnot a public key in PEM or DER (SubjectPublicKeyInfo)",
            "false\tthe signature does not match",
            "false\tthis key needs the name of a digest, such as sha256",
        ]
    );
    refused(&[
        (
            "envoy.crypto.verify_signature('md5', '', '', '')",
            "the digest must be \"sha1\", \"sha224\", \"sha256\", \"sha384\", \"sha512\", or nil for Ed25519",
        ),
        (
            "envoy.crypto.verify_signature('sha1', nil, '', '')",
            "the key must be a string, not nil",
        ),
        (
            "envoy.crypto.verify_signature('sha1', '', 1, '')",
            "the signature must be a string, not number",
        ),
        (
            "envoy.crypto.verify_signature('sha1', '', '')",
            "what was signed must be a string, not nil",
        ),
        (
            "envoy.crypto.import_public_key()",
            "the key must be a string, not nil",
        ),
    ]);
}

#[test]
fn texts_are_compared_and_hexadecimal_digits_go_both_ways() {
    assert_eq!(
        values(&[
            "envoy.crypto.constant_time_equals('same', 'same')",
            "envoy.crypto.constant_time_equals('same', 'sama')",
            "envoy.crypto.constant_time_equals('same', 'sam')",
            "envoy.crypto.constant_time_equals('', '')",
            "envoy.crypto.hex('\\0\\127\\255')",
            "envoy.crypto.unhex('007fFF') == '\\0\\127\\255'",
            "#envoy.crypto.unhex('')",
            "envoy.crypto.unhex('0')",
            "envoy.crypto.unhex('0g')",
        ]),
        [
            "true",
            "false",
            "false",
            "true",
            "007fff",
            "true",
            "0",
            "nil\tnot pairs of hexadecimal digits",
            "nil\tnot pairs of hexadecimal digits",
        ]
    );
    refused(&[
        (
            "envoy.crypto.sha256()",
            "what to digest must be a string, not nil",
        ),
        (
            "envoy.crypto.hmac_sha256(1, 'x')",
            "the key must be a string, not number",
        ),
        (
            "envoy.crypto.hmac_sha256('x')",
            "what to sign must be a string, not nil",
        ),
        (
            "envoy.crypto.constant_time_equals('x')",
            "the second text must be a string, not nil",
        ),
        (
            "envoy.crypto.hex({})",
            "what to encode must be a string, not table",
        ),
        (
            "envoy.crypto.unhex(1)",
            "what to decode must be a string, not number",
        ),
    ]);
}

#[test]
fn moments_are_told_and_read() {
    assert_eq!(
        values(&[
            "envoy.time.now()",
            "envoy.time.now() == envoy.nowms()",
            "envoy.time.rfc3339()",
            "envoy.time.rfc3339(0)",
            "envoy.time.http_date()",
            "envoy.time.parse_rfc3339('2023-11-14T23:13:20.5+01:00') - envoy.time.now()",
            "envoy.time.parse_http_date('Tue, 14 Nov 2023 22:13:20 GMT') - envoy.time.now()",
            "envoy.time.parse_rfc3339('today')",
            "envoy.time.parse_http_date('today')",
        ]),
        [
            "1700000000500",
            "true",
            "2023-11-14T22:13:20.5Z",
            "1970-01-01T00:00:00Z",
            "Tue, 14 Nov 2023 22:13:20 GMT",
            "0",
            "-500",
            "nil\tnot a date of RFC 3339",
            "nil\tnot a date of HTTP",
        ]
    );
    let bounds = "the moment must be milliseconds since 1970, up to the year 9999";
    refused(&[
        (
            "envoy.time.rfc3339('x')",
            "the moment must be a number, not string",
        ),
        ("envoy.time.rfc3339(-1)", bounds),
        ("envoy.time.http_date(0/0)", bounds),
        (
            "envoy.time.parse_rfc3339(1)",
            "the date must be a string, not number",
        ),
    ]);
}

#[test]
fn clocks_also_run_where_there_is_no_stream() {
    let probe = probe(
        "local began, at = envoy.time.monotonic(), envoy.time.now()
        return { on_request_header = function()
            local elapsed = envoy.time.monotonic() - began
            print(elapsed >= 0 and elapsed < 60000, at > 1.7e12, envoy.time.rfc3339(at) > '2023')
        end }",
    );
    let mut stream = FakeStream::new();
    probe.request(&mut stream).unwrap();
    assert_eq!(stream.logged(), ["true\ttrue\ttrue"]);
}

#[test]
fn urls_are_encoded_and_decoded() {
    assert_eq!(
        values(&[
            "envoy.url.encode('a b/c?d=ä&~-._+')",
            "envoy.url.decode('a%20b%2fc+%zz%')",
            "envoy.url.decode(envoy.url.encode('\\0\\255'))  == '\\0\\255'",
            "envoy.url.parse_query('?a=1&b=x+y%21&a=2&flag').b",
            "table.concat(envoy.url.parse_query('a=1&b=x+y&a=2&flag').a, ',')",
            "envoy.url.parse_query('a=1&b=2', 1).b",
            "next(envoy.url.parse_query(''))",
            "envoy.url.build_query({ b = 'x y', a = { 1, 2 }, ['&'] = true })",
            "envoy.url.build_query({}) == ''",
        ]),
        [
            "a%20b%2Fc%3Fd%3D%C3%A4%26~-._%2B",
            "a b/c+%zz%",
            "true",
            "x y!",
            "1,2",
            "nil",
            "nil",
            "%26=true&a=1&a=2&b=x%20y",
            "true",
        ]
    );
    refused(&[
        (
            "envoy.url.encode()",
            "what to encode must be a string, not nil",
        ),
        (
            "envoy.url.decode(1)",
            "what to decode must be a string, not number",
        ),
        (
            "envoy.url.parse_query()",
            "the query must be a string, not nil",
        ),
        (
            "envoy.url.parse_query('', 0)",
            "max_args must be from 1 to 10000",
        ),
        (
            "envoy.url.build_query('x')",
            "the parameters must be a table, not string",
        ),
        (
            "envoy.url.build_query({ 'x' })",
            "a parameter's name must be a string, not number",
        ),
        (
            "envoy.url.build_query({ x = { {} } })",
            "the value of parameter x must be a string, not table",
        ),
    ]);
}

#[test]
fn patterns_match_and_find() {
    assert_eq!(
        values(&[
            "envoy.re.match('x-42', '[0-9]+')",
            "envoy.re.match('x', '[0-9]+')",
            "envoy.re.match('', '')",
            "envoy.re.match('SHOP', '(?i)^shop$')",
            "envoy.re.find('a-42-7', '[0-9]+')",
            "envoy.re.find('a-42-7', '[0-9]+', 5)",
            "envoy.re.find('a-42-7', '[0-9]+', -1)",
            "envoy.re.find('a-42-7', '[0-9]+', 7)",
            "envoy.re.find('a-42-7', '$', 7)",
            "envoy.re.find('a-42-7', '', 8)",
            "envoy.re.find('aa', '^a', 2)",
            "envoy.re.find('\\255\\0x', '\\\\xFF.x')",
            "envoy.re.find('ä', '^.$')",
            "envoy.re.find('ä', '(?u)^.$')",
        ]),
        [
            "true", "false", "true", "true", "3\t4", "6\t6", "6\t6", "nil", "7\t6", "nil", "nil",
            "1\t3", "nil", "1\t2",
        ]
    );
}

#[test]
fn groups_are_captured_by_number_and_name() {
    let logs = logs_of(
        r#"
        local groups = envoy.re.captures("to=shop; id=7", "(?<key>\\w+)=([0-9]+)(x)?")
        print(groups[0], groups[1], groups[2], groups[3], groups.key, #groups)
        print(envoy.re.captures("none", "([0-9])"))
        print(envoy.re.captures("1 2", "([0-9])", 2)[1])
        print(envoy.re.captures("ab", "(a)?b$")[1], envoy.re.captures("b", "()b")[1] == "")
        "#,
    );
    assert_eq!(logs, ["id=7\tid\t7\tfalse\tid\t3", "nil", "2", "a\ttrue"]);
}

#[test]
fn matches_are_replaced() {
    assert_eq!(
        values(&[
            "envoy.re.replace('a-b-c', '-', '+')",
            "envoy.re.replace('a-b-c', '-', '+', 1)",
            "envoy.re.replace('a-b-c', '-', '+', 0)",
            "envoy.re.replace('/v1/cart', '^/v(?<n>[0-9]+)/(.*)', '/$2?version=${n}$$')",
            "envoy.re.replace('abc', 'x', 'y')",
            "(envoy.re.replace('card 1234-5678', '[0-9]', '*'))",
        ]),
        [
            "a+b+c\t2",
            "a+b-c\t1",
            "a-b-c\t0",
            "/cart?version=1$\t1",
            "abc\t0",
            "card ****-****"
        ]
    );
}

#[test]
fn patterns_that_are_none_raise_an_error_at_the_plugin_s_line() {
    refused(&[
        (
            "envoy.re.match('x', 'a(b')",
            "the pattern a(b is none: unclosed group (at character 2)",
        ),
        (
            "envoy.re.find('x', '(?=y)')",
            "the pattern (?=y) is none: look-around, including look-ahead and look-behind, is not supported (at character 1)",
        ),
        (
            "envoy.re.captures('x', '(?:a{1000}){1000}')",
            "the pattern (?:a{1000}){1000} is too large when it is compiled; use smaller counts",
        ),
        (
            "envoy.re.replace('x', '[', '')",
            "the pattern [ is none: unclosed character class (at character 1)",
        ),
        (
            "envoy.re.match(1, 'x')",
            "the text must be a string, not number",
        ),
        (
            "envoy.re.find('x', nil)",
            "the pattern must be a string, not nil",
        ),
        (
            "envoy.re.find('x', 'x', 'y')",
            "the place to begin at must be a number, not string",
        ),
        (
            "envoy.re.replace('x', 'x', 1)",
            "the replacement must be a string, not number",
        ),
        (
            "envoy.re.replace('x', 'x', 'y', -1)",
            "the limit must be a number from 0 to 2147483647",
        ),
    ]);
}

#[test]
fn a_replacement_ends_within_the_budgets() {
    use outrider_plugin_api::Cause;
    // Each search goes to the text's end: in all, its square.
    let slow = "local text = ('x'):rep(400000) envoy.re.replace(text, 'x*y|x', 'z')";
    let mut source = source(&[(
        "main.lua",
        &format!("return {{ on_request_header = function() pcall(function() {slow} end) end }}"),
    )]);
    source.time_budget = std::time::Duration::from_millis(10);
    let began = std::time::Instant::now();
    let fault = probe_with(source, "{}")
        .request(&mut FakeStream::new())
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Time, "{fault}");
    assert!(began.elapsed() < std::time::Duration::from_secs(2));
    let fault = fault_of("envoy.re.replace(('x'):rep(100000), 'x', ('y'):rep(1000))");
    assert_eq!(
        fault.message,
        "probe/main.lua:3: the result is larger than the memory budget of 8388608 bytes"
    );
}

#[test]
fn captures_survive_the_collection_of_their_text() {
    let probe = on_request(
        r#"
        for i = 1, 20000 do
            local groups = envoy.re.captures("key-" .. i .. "=value-" .. i, "([a-z]+-[0-9]+)=(.*)")
            if groups[1] ~= "key-" .. i or groups[2] ~= "value-" .. i then print(i, groups[1]) end
        end
        "#,
    );
    let mut stream = FakeStream::new();
    probe.request(&mut stream).unwrap();
    assert_eq!(stream.logged(), [""; 0]);
}
