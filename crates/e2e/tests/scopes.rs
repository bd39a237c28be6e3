//! Three scopes, one chain: what gateway, project and route say is merged, plugins run in their order,
//! and `outrider explain` tells the chain that the real gateway runs. Also what routes can do beside
//! plugins: matches, weights, redirects, responses, rewrites, timeouts, retries.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions, outrider};
use outrider_lab::client::{Request, Response};
use outrider_lab::echo::Echo;
use serde_json::{Value, json};

/// Plugins that write their name, and their configuration, into the request and the response.
fn tracer(name: &str) -> String {
    format!(
        "
local handler = {{ version = 'v2' }}
local function text()
  local parts = {{}}
  for key, value in pairs(envoy.config()) do parts[#parts + 1] = key .. '=' .. tostring(value) end
  table.sort(parts)
  table.insert(parts, 1, '{name}')
  return table.concat(parts, ' ')
end
function handler:on_request_header()
  envoy.req.add_header('x-chain', '{name}')
  envoy.req.add_header('x-config', text())
end
function handler:on_response_header()
  envoy.resp.add_header('x-chain', '{name}')
end
return handler
"
    )
}

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  use:
    - {plugin: alpha, config: {a: gateway, b: gateway, c: gateway}}
    - {plugin: beta, config: {a: gateway}}
    - late
plugins:
  alpha: {source: alpha.lua}
  beta: {source: beta.lua}
  gamma: {source: gamma.lua, group: authn}
  delta: {source: delta.lua, priority: 10}
  late: {source: late.lua, group: observe, priority: 100}
  early: {source: early.lua, group: authn, priority: 5}
projects:
  - name: shop
    hosts: [shop.example.com, '*.shop.example.com']
    use:
      - {plugin: alpha, config: {b: project, d: project}}
      - gamma
    routes:
      - name: everything
        match: {prefix: /everything}
        to: echo
        use: [early, delta, {plugin: alpha, config: {c: route, d: null, e: route}}]
      - name: bare
        match: {prefix: /bare}
        to: echo
        use: [{plugin: alpha, enabled: false}, {plugin: beta, enabled: false}, {plugin: gamma, enabled: false}, {plugin: late, enabled: false}]
      - name: without-beta
        match: {prefix: /without-beta}
        to: echo
        use: [{plugin: beta, enabled: false}]
      - {name: answered, match: {path: /answered}, respond: {status: 203, body: here, headers: {x-by: outrider}}}
      - {name: rest, match: {prefix: /}, to: echo}
  - name: blog
    hosts: ['blog.*']
    use: [{plugin: alpha, enabled: false}]
    routes:
      - name: again
        match: {prefix: /again}
        to: echo
        use: [{plugin: alpha, config: {f: route}}]
      - {name: rest, match: {prefix: /}, to: echo}
  - name: other
    hosts: ['*']
    routes: [{name: rest, match: {prefix: /}, to: echo}]
upstreams:
  echo: {endpoints: ['ECHO']}
";

fn start(yaml: &str, echo: &Echo) -> Gateway {
    let names = ["alpha", "beta", "gamma", "delta", "late", "early"];
    let codes = names.map(|name| (format!("{name}.lua"), tracer(name)));
    let files: Vec<(&str, &str)> = codes
        .iter()
        .map(|(file, code)| (file.as_str(), code.as_str()))
        .collect();
    let yaml = yaml.replace("ECHO", &echo.address().to_string());
    Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap()
}

fn list(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

/// The plugins' names as the response's headers tell them, the first that ran first.
fn response_chain(response: &Response) -> Vec<String> {
    response
        .headers
        .all("x-chain")
        .iter()
        .map(ToString::to_string)
        .collect()
}

async fn get(gateway: &Gateway, host: &str, path: &str) -> Response {
    gateway.send(Request::get(path).host(host)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_merge_and_plugins_run_in_their_order() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(GATEWAY, &echo);
    let cases: [(&str, &str, &[&str]); 7] = [
        (
            "shop.example.com",
            "/everything/x",
            &[
                "early",
                "gamma",
                "delta",
                "alpha a=gateway b=project c=route e=route",
                "beta a=gateway",
                "late",
            ],
        ),
        ("shop.example.com", "/bare", &[]),
        (
            "a.b.shop.example.com",
            "/without-beta",
            &[
                "gamma",
                "alpha a=gateway b=project c=gateway d=project",
                "late",
            ],
        ),
        (
            "shop.example.com",
            "/",
            &[
                "gamma",
                "alpha a=gateway b=project c=gateway d=project",
                "beta a=gateway",
                "late",
            ],
        ),
        ("blog.example.com", "/", &["beta a=gateway", "late"]),
        (
            "blog.example.com",
            "/again",
            &[
                "alpha a=gateway b=gateway c=gateway f=route",
                "beta a=gateway",
                "late",
            ],
        ),
        (
            "elsewhere",
            "/",
            &[
                "alpha a=gateway b=gateway c=gateway",
                "beta a=gateway",
                "late",
            ],
        ),
    ];
    for (host, path, expected) in cases {
        let response = get(&gateway, host, path).await;
        assert_eq!(response.status, 200, "{host}{path}");
        let seen = response.json();
        assert_eq!(list(&seen["headers"]["x-config"]), expected, "{host}{path}");
        let mut chain = list(&seen["headers"]["x-chain"]);
        chain.reverse();
        assert_eq!(
            response_chain(&response),
            chain,
            "responses run in reverse: {host}{path}"
        );
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_tells_the_chain_that_the_gateway_runs() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(GATEWAY, &echo);
    let mut compared = BTreeSet::new();
    for host in [
        "shop.example.com",
        "x.shop.example.com",
        "blog.org",
        "SHOP.example.com:80",
        "other",
    ] {
        for path in [
            "/everything",
            "/bare/x",
            "/without-beta?q=1",
            "/answered",
            "/",
            "/again/1",
            "/%61gain",
        ] {
            let response = get(&gateway, host, path).await;
            let run = outrider(
                gateway.folder(),
                &[
                    "explain",
                    "outrider.yaml",
                    "--host",
                    host,
                    "--path",
                    path,
                    "--json",
                ],
                &[],
            )
            .unwrap();
            assert_eq!(run.code, 0, "{run}");
            let explained: Value = serde_json::from_str(&run.stdout).unwrap();
            let chain: Vec<String> = explained["chain"]
                .as_array()
                .unwrap()
                .iter()
                .map(|link| link["plugin"].as_str().unwrap().to_owned())
                .collect();
            let mut ran = response_chain(&response);
            ran.reverse();
            assert_eq!(chain, ran, "{host}{path}: {}", run.stdout);
            // And with the same configuration, where the upstream tells of it.
            let configs = list(&response.json()["headers"]["x-config"]);
            for (link, config) in explained["chain"].as_array().unwrap().iter().zip(&configs) {
                let mut parts: Vec<String> = link["config"]
                    .as_object()
                    .unwrap()
                    .iter()
                    .map(|(key, value)| format!("{key}={}", value.as_str().unwrap()))
                    .collect();
                parts.sort();
                parts.insert(0, link["plugin"].as_str().unwrap().to_owned());
                assert_eq!(&parts.join(" "), config, "{host}{path}");
            }
            compared.insert(explained["route"].as_str().unwrap().to_owned());
        }
    }
    let routes: Vec<&String> = compared.iter().collect();
    assert_eq!(
        routes,
        [
            "again",
            "answered",
            "bare",
            "everything",
            "rest",
            "without-beta"
        ]
    );
    gateway.stop().unwrap();
    echo.stop().await;
}

/// Method, path, headers, and the route that takes the request.
type Asked = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
);

const MATCHES: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {name: exact, match: {path: /exact}, respond: {status: 200, body: exact}}
      - {name: regex, match: {regex: '/item/[0-9]+'}, respond: {status: 200, body: regex}}
      - {name: method, match: {prefix: /m, methods: [PUT, DELETE]}, respond: {status: 200, body: method}}
      - {name: header, match: {prefix: /h, headers: [{name: x-version, exact: v1}, {name: x-other, prefix: a, invert: true}]}, respond: {status: 200, body: header}}
      - {name: header-present, match: {prefix: /h, headers: [{name: x-there, present: true}, {name: x-gone, present: false}]}, respond: {status: 200, body: header-present}}
      - {name: query, match: {prefix: /q, query: [{name: debug, present: true}, {name: v, regex: '[0-9]+'}]}, respond: {status: 200, body: query}}
      - {name: cookie, match: {prefix: /c, cookies: [{name: tier, exact: gold}]}, respond: {status: 200, body: cookie}}
      - {name: no-cookie, match: {prefix: /c, cookies: [{name: tier, present: false}]}, respond: {status: 200, body: no-cookie}}
      - {name: rest, match: {prefix: /}, respond: {status: 404, body: rest}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_match_as_written_and_explain_agrees() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(MATCHES, &echo);
    let cases: [Asked; 22] = [
        ("GET", "/exact", &[], "exact"),
        ("GET", "/exact?x=1", &[], "exact"),
        ("GET", "/exact/", &[], "rest"),
        ("GET", "/item/17", &[], "regex"),
        ("GET", "/item/17/more", &[], "rest"),
        ("GET", "/item/x", &[], "rest"),
        ("PUT", "/m/1", &[], "method"),
        ("DELETE", "/m/1", &[], "method"),
        ("GET", "/m/1", &[], "rest"),
        ("GET", "/h", &[("x-version", "v1")], "header"),
        (
            "GET",
            "/h",
            &[("x-version", "v1"), ("x-other", "bc")],
            "header",
        ),
        (
            "GET",
            "/h",
            &[("x-version", "v1"), ("x-other", "abc")],
            "rest",
        ),
        ("GET", "/h", &[("x-version", "v2")], "rest"),
        ("GET", "/h", &[("x-there", "1")], "header-present"),
        ("GET", "/h", &[("x-there", "1"), ("x-gone", "1")], "rest"),
        ("GET", "/q?debug=1&v=12", &[], "query"),
        ("GET", "/q?v=12", &[], "rest"),
        ("GET", "/q?debug=1&v=x", &[], "rest"),
        ("GET", "/c", &[("cookie", "a=b; tier=gold")], "cookie"),
        ("GET", "/c", &[("cookie", "tier=silver")], "rest"),
        ("GET", "/c", &[("cookie", "a=b")], "no-cookie"),
        ("GET", "/c", &[], "no-cookie"),
    ];
    for (method, path, headers, expected) in cases {
        let mut request = Request::new(method, path);
        let mut arguments = vec![
            "explain",
            "outrider.yaml",
            "--host",
            "localhost",
            "--path",
            path,
            "--method",
            method,
            "--json",
        ];
        let fields: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}"))
            .collect();
        for field in &fields {
            arguments.extend(["--header", field]);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let what = format!("{method} {path} {headers:?}");
        let response = gateway.send(request).await.unwrap();
        assert_eq!(response.text(), expected, "{what}");
        let run = outrider(gateway.folder(), &arguments, &[]).unwrap();
        let explained: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(explained["route"], expected, "{what}: {run}");
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

const ACTIONS: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {name: split, match: {prefix: /split}, to: [{upstream: one, weight: 75}, {upstream: two, weight: 25}]}
      - {name: all-two, match: {prefix: /two}, to: [{upstream: one, weight: 0}, {upstream: two, weight: 1}]}
      - {name: moved, match: {prefix: /old}, redirect: {prefix: /new, status: 308}}
      - {name: secure, match: {path: /secure}, redirect: {scheme: https, host: secure.example.com, port: 8443}}
      - {name: landing, match: {path: /}, redirect: {path: '/start?from=root', status: 302}}
      - {name: answer, match: {path: /answer}, respond: {status: 503, body: '100% later', headers: {retry-after: '10', x-share: '50%'}}}
      - {name: api, match: {prefix: /api}, to: one, rewrite_prefix: /}
      - {name: v1, match: {prefix: /v1/}, to: one, rewrite_prefix: /internal/}
      - {name: one-page, match: {path: /page}, to: one, rewrite_prefix: /pages/7}
      - {name: hasty, match: {prefix: /hasty}, to: one, timeout: 100ms}
      - {name: patient, match: {prefix: /patient}, to: one, timeout: 0s}
      - {name: again, match: {prefix: /again}, to: one, retries: {attempts: 3, on: [5xx]}}
      - {name: again-slow, match: {prefix: /slow-again}, to: one, timeout: 5s, retries: {attempts: 2, on: [reset, gateway-error], per_try_timeout: 100ms}}
      - {name: again-reset, match: {prefix: /broken}, to: one, retries: {attempts: 2, on: [reset]}}
      - {name: never, match: {prefix: /never}, to: nobody, retries: {attempts: 1, on: [connect-failure]}}
upstreams:
  one: {endpoints: ['ECHO']}
  two: {endpoints: ['SECOND'], protocol: http2}
  nobody: {endpoints: ['NOBODY'], connect_timeout: 1s}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_do_what_they_say() {
    let echo = Echo::start("one").await.unwrap();
    let second = Echo::start("two").await.unwrap();
    let nobody = outrider_e2e::free_address().unwrap();
    let yaml = ACTIONS
        .replace("SECOND", &second.address().to_string())
        .replace("NOBODY", &nobody.to_string());
    let gateway = start(&yaml, &echo);
    let get = |path: &str| gateway.send(Request::get(path));

    let mut from = BTreeMap::from([("one".to_owned(), 0), ("two".to_owned(), 0)]);
    for _ in 0..200 {
        let response = get("/split").await.unwrap();
        *from
            .get_mut(response.headers.get("x-upstream").unwrap())
            .unwrap() += 1;
    }
    // 200 throws with a chance of 1/4: outside of 20 to 80 once in a billion runs.
    assert!((20..=80).contains(&from["two"]), "{from:?}");
    let response = get("/two").await.unwrap();
    assert_eq!(response.headers.get("x-upstream"), Some("two"));
    assert_eq!(response.json()["protocol"], "HTTP/2");

    let location = |response: &Response| response.headers.get("location").map(ToOwned::to_owned);
    let response = get("/old/cart?id=1").await.unwrap();
    assert_eq!(response.status, 308);
    assert_eq!(
        location(&response).unwrap(),
        "http://localhost/new/cart?id=1"
    );
    let response = get("/secure").await.unwrap();
    assert_eq!(response.status, 301);
    assert_eq!(
        location(&response).unwrap(),
        "https://secure.example.com:8443/secure"
    );
    let response = get("/").await.unwrap();
    assert_eq!(response.status, 302);
    assert_eq!(
        location(&response).unwrap(),
        "http://localhost/start?from=root"
    );

    let response = get("/answer").await.unwrap();
    assert_eq!(response.status, 503);
    assert_eq!(response.text(), "100% later");
    assert_eq!(response.headers.get("retry-after"), Some("10"));
    assert_eq!(response.headers.get("x-share"), Some("50%"));

    for (path, rewritten) in [
        ("/api/cart?id=1", "/cart?id=1"),
        ("/api", "/"),
        ("/v1/cart", "/internal/cart"),
        ("/page?q=1", "/pages/7?q=1"),
    ] {
        assert_eq!(get(path).await.unwrap().json()["path"], rewritten, "{path}");
    }

    let slow = |path: &str| gateway.send(Request::get(path).header("x-echo-delay-ms", "600"));
    let began = Instant::now();
    assert_eq!(slow("/hasty").await.unwrap().status, 504);
    assert!(
        began.elapsed() < Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(slow("/patient").await.unwrap().status, 200);

    let tries = async |request: Request| {
        let before = echo.request_count();
        let status = gateway.send(request).await.unwrap().status;
        (status, echo.request_count() - before)
    };
    let failing = Request::get("/again").header("x-echo-status", "503");
    assert_eq!(tries(failing).await, (503, 4));
    assert_eq!(
        tries(Request::get("/again").header("x-echo-status", "404")).await,
        (404, 1)
    );
    let slow = Request::get("/slow-again").header("x-echo-delay-ms", "300");
    assert_eq!(tries(slow).await, (504, 3));
    let reset = Request::get("/broken").header("x-echo-path", "/reset");
    assert_eq!(tries(reset).await, (503, 3));
    assert_eq!(get("/never").await.unwrap().status, 503);
    assert_eq!(gateway.stat("cluster.nobody.upstream_rq_retry").unwrap(), 1);
    assert_eq!(get("/nothing").await.unwrap().status, 404);
    gateway.stop().unwrap();
    echo.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_merging_removes_and_replaces() {
    // RFC 7396 on the real gateway: null removes, lists replace, mappings merge at every depth.
    let plugin = "
local handler = { version = 'v2' }
local function write(value)
  if type(value) ~= 'table' then return tostring(value) end
  local parts, keys = {}, {}
  for key in pairs(value) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local item = value[key]
    if item == nil then item = value[tonumber(key)] end
    parts[#parts + 1] = key .. ':' .. write(item)
  end
  return '{' .. table.concat(parts, ',') .. '}'
end
function handler:on_request_header() envoy.req.set_header('x-config', write(envoy.config())) end
return handler
";
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
  use: [{plugin: deep, config: {keep: 1, tree: {a: 1, b: {c: 2, d: 3}}, list: [1, 2, 3], gone: x}}]
plugins: {deep: {source: deep.lua}}
projects:
  - name: shop
    hosts: ['*']
    use: [{plugin: deep, config: {tree: {b: {c: null, e: 4}}, gone: null}}]
    routes:
      - match: {prefix: /route}
        to: echo
        use: [{plugin: deep, config: {tree: {a: {f: 5}, b: null}, list: [9], gone: {back: true}}}]
      - {match: {prefix: /}, to: echo}
upstreams: {echo: {endpoints: ['ECHO']}}
";
    let echo = Echo::start("echo").await.unwrap();
    let yaml = yaml.replace("ECHO", &echo.address().to_string());
    let gateway =
        Gateway::start_with(&yaml, &[("deep.lua", plugin)], GatewayOptions::default()).unwrap();
    for (path, expected) in [
        ("/", "{keep:1,list:{1:1,2:2,3:3},tree:{a:1,b:{d:3,e:4}}}"),
        (
            "/route",
            "{gone:{back:true},keep:1,list:{1:9},tree:{a:{f:5}}}",
        ),
    ] {
        let response = get(&gateway, "localhost", path).await;
        assert_eq!(
            response.json()["headers"]["x-config"],
            json!([expected]),
            "{path}"
        );
    }
    gateway.stop().unwrap();
    echo.stop().await;
}
