//! What `outrider explain` says of a request is what the real Envoy does with it: random gateways, random requests.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::fmt::Write as _;

use outrider_e2e::{Gateway, GatewayOptions, outrider};
use outrider_lab::client::Request;
use outrider_lab::random::Random;
use serde_json::Value;

/// Says of each response that it passed, with its configuration.
const MARK: &str = "
local handler = { version = 'v2' }
function handler:on_response_header()
    envoy.resp.add_header('x-ran', envoy.plugin_name .. '=' .. envoy.json.encode(envoy.config()))
end
return handler
";

/// For each gateway. A command is run for each.
const REQUESTS: usize = 24;
const PLUGINS: [&str; 4] = ["mark-a", "mark-b", "mark-c", "mark-d"];
const HOSTS: [&str; 7] = [
    "shop.test",
    "*.shop.test",
    "*.eu.shop.test",
    "blog.*",
    "blog.test",
    "'*'",
    "api.test",
];
const PATHS: [&str; 6] = [
    "prefix: /",
    "prefix: /a",
    "prefix: /a/b",
    "path: /a",
    "path: /c/d",
    "regex: '/a/[0-9]+'",
];
const CONDITIONS: [&str; 14] = [
    "headers: [{name: host, exact: shop.test}]",
    "headers: [{name: host, suffix: ':8080', invert: true}]",
    "headers: [{name: te, present: true}]",
    "methods: [POST]",
    "methods: [GET, PUT]",
    "headers: [{name: x-forwarded-proto, exact: http}]",
    "headers: [{name: x-forwarded-proto, exact: https}]",
    "headers: [{name: x-request-id, present: true}]",
    "headers: [{name: x-envoy-retry-on, present: true}]",
    "headers: [{name: x-version, exact: v2}]",
    "headers: [{name: x-version, exact: v2, invert: true}]",
    "headers: [{name: x-forwarded-for, contains: '1.2.3.4'}]",
    "query: [{name: debug, present: true}]",
    "cookies: [{name: tier, exact: gold}]",
];
const ASKED_HOSTS: [&str; 7] = [
    "shop.test",
    "SHOP.test:8080",
    "a.shop.test",
    "a.eu.shop.test",
    "blog.test",
    "blog.example",
    "nobody.example",
];
const ASKED_PATHS: [&str; 11] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/7",
    "//a//b",
    "/x/../a/b",
    "/c/d",
    "/a?debug=1",
    "/a%2Fb",
    "/%61/b?x",
];
const ASKED_HEADERS: [(&str, &str); 9] = [
    ("te", "gzip"),
    ("te", "trailers"),
    ("x-forwarded-proto", "https"),
    ("x-request-id", "mine"),
    ("x-envoy-retry-on", "5xx"),
    ("x-version", "v2"),
    ("x-version", "v1"),
    ("x-forwarded-for", "1.2.3.4"),
    ("cookie", "a=b; tier=gold"),
];

/// A `use` list of some plugins, each with a configuration, or turned off where a wider scope may have it on.
fn uses(random: &mut Random, narrow: bool) -> String {
    let mut items = Vec::new();
    for plugin in PLUGINS {
        if !random.chance(45) {
            continue;
        }
        if narrow && random.chance(30) {
            items.push(format!("{{plugin: {plugin}, enabled: false}}"));
            continue;
        }
        let key = random.word(&["one", "two", "deep"]);
        let value = match key {
            "deep" => format!(
                "{{x: {}, {}: true}}",
                random.below(9),
                random.word(&["y", "z"])
            ),
            _ => random.below(100).to_string(),
        };
        items.push(format!("{{plugin: {plugin}, config: {{{key}: {value}}}}}"));
    }
    format!("[{}]", items.join(", "))
}

fn gateway(random: &mut Random) -> String {
    let mut yaml = format!(
        "gateway:\n  listeners: [{{address: '{{listen}}'}}]\n  admin: '{{admin}}'\n  workers: 1\n  use: {}\nplugins:\n",
        uses(random, false)
    );
    for plugin in PLUGINS {
        writeln!(yaml, "  {plugin}: {{source: {plugin}.lua}}").unwrap();
    }
    yaml.push_str("projects:\n");
    let mut hosts: Vec<&str> = HOSTS.to_vec();
    for project in 0..3 {
        let mut own = Vec::new();
        for _ in 0..=random.below(2) {
            own.push(hosts.swap_remove(usize::try_from(random.below(hosts.len() as u64)).unwrap()));
        }
        writeln!(
            yaml,
            "  - name: p{project}\n    hosts: [{}]\n    use: {}\n    routes:",
            own.join(", "),
            uses(random, true)
        )
        .unwrap();
        for route in 0..2 + random.below(3) {
            let condition = if random.chance(70) {
                format!(", {}", random.word(&CONDITIONS))
            } else {
                String::new()
            };
            writeln!(
                yaml,
                "      - {{name: r{route}, match: {{{}{condition}}}, use: {}, respond: {{status: 200, body: p{project}/r{route}}}}}",
                random.word(&PATHS),
                uses(random, true)
            )
            .unwrap();
        }
    }
    yaml
}

fn files() -> Vec<(String, String)> {
    let code = |name: &str| MARK.replace("envoy.plugin_name", &format!("'{name}'"));
    PLUGINS
        .iter()
        .map(|name| (format!("{name}.lua"), code(name)))
        .collect()
}

/// A gateway that `check` takes: of random routes, some can never match.
fn good_gateway(random: &mut Random) -> String {
    loop {
        let yaml = gateway(random);
        let folder = tempfile::tempdir().unwrap();
        for (name, code) in files() {
            std::fs::write(folder.path().join(name), code).unwrap();
        }
        let filled = yaml
            .replace("{listen}", "127.0.0.1:1")
            .replace("{admin}", "127.0.0.1:2");
        std::fs::write(folder.path().join("g.yaml"), filled).unwrap();
        if outrider(folder.path(), &["check", "g.yaml"], &[])
            .unwrap()
            .code
            == 0
        {
            return yaml;
        }
    }
}

/// Compares one request; answers whether a route took it.
async fn compare(gateway: &Gateway, random: &mut Random) -> bool {
    let (host, path) = (random.word(&ASKED_HOSTS), random.word(&ASKED_PATHS));
    let method = random.word(&["GET", "GET", "POST", "PUT"]);
    let headers: Vec<_> = ASKED_HEADERS.iter().filter(|_| random.chance(25)).collect();
    let url = format!("http://{host}{path}");
    let mut arguments = vec![
        "explain",
        "outrider.yaml",
        url.as_str(),
        "--json",
        "--method",
        method,
    ];
    let lines: Vec<String> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    for line in &lines {
        arguments.extend(["--header", line.as_str()]);
    }
    let run = outrider(gateway.folder(), &arguments, &[]).unwrap();
    let said: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run}"));

    let mut request = Request::new(method, path).host(host);
    for (name, value) in &headers {
        request = request.header(name, value);
    }
    let response = gateway.send(request).await.unwrap();
    let context = || {
        format!(
            "{arguments:?}\n{said:#}\n{} {}",
            response.status,
            response.text()
        )
    };
    let is_redirect = said["notes"]
        .to_string()
        .contains("answers with a redirect");
    if is_redirect {
        assert_eq!(response.status, 307, "{}", context());
        return false;
    }
    match (said["project"].as_str(), said["route"].as_str()) {
        (Some(project), Some(route)) => {
            assert_eq!(response.status, 200, "{}", context());
            assert_eq!(
                response.text(),
                format!("{project}/{route}"),
                "{}",
                context()
            );
        }
        _ => assert_eq!(response.status, 404, "{}", context()),
    }
    let ran: Vec<(String, Value)> = response
        .headers
        .all("x-ran")
        .into_iter()
        .map(|text| {
            let (name, config) = text.split_once('=').unwrap();
            (name.to_owned(), serde_json::from_str(config).unwrap())
        })
        .collect();
    let links = said["chain"].as_array().unwrap();
    let expected: Vec<(String, Value)> = links
        .iter()
        .rev()
        .map(|link| {
            (
                link["plugin"].as_str().unwrap().to_owned(),
                link["config"].clone(),
            )
        })
        .collect();
    assert_eq!(ran, expected, "{}", context());
    said["route"].is_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanations_are_what_envoy_does() {
    let mut taken = 0;
    for seed in 1..=3 {
        let mut random = Random::new(seed);
        let yaml = good_gateway(&mut random);
        let files = files();
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(name, code)| (name.as_str(), code.as_str()))
            .collect();
        let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
        for _ in 0..REQUESTS {
            taken += usize::from(compare(&gateway, &mut random).await);
        }
        gateway.stop().unwrap();
    }
    // Some of each kind, or the comparison says little.
    assert!((REQUESTS / 2..3 * REQUESTS).contains(&taken), "{taken}");
}
