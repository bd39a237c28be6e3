//! Many reads and changes of headers in one hook, on the real Envoy: what the module answers out of what it
//! has learned is what Envoy holds.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use outrider_e2e::{Direct, FilterPlugin, direct_config};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;
use serde_json::{Value, json};

/// Reads, sets, adds to and removes thirty headers in an order that the seed decides, and keeps a model of
/// them. What was read otherwise than the model says goes into `x-wrong`, the model into `x-model`.
const CHANGES: &str = r#"
local handler = { version = "v2" }
function handler:on_request_header()
    local req = envoy.req
    local state = tonumber(req.get_header("x-seed"))
    -- Park and Miller's generator: its products are exact in a double.
    local function pick(choices)
        state = state * 16807 % 2147483647
        return math.floor(state / 1024) % choices + 1
    end
    local model, wrong = {}, {}
    for step = 1, 400 do
        local name = "x-n-" .. pick(30)
        local spelled = pick(4) == 1 and name:upper() or name
        local what, value = pick(8), "value " .. step
        if what <= 2 then
            req.set_header(spelled, value)
            model[name] = { value }
        elseif what == 3 then
            req.add_header(spelled, value)
            model[name] = model[name] or {}
            table.insert(model[name], value)
        elseif what <= 5 then
            req.remove_header(spelled)
            model[name] = nil
        else
            local values = model[name] or {}
            local first, count = req.get_header(spelled), req.get_header_size(spelled)
            if first ~= values[1] or count ~= #values then
                table.insert(wrong, step .. ": " .. spelled .. " is " .. tostring(first) .. " of " .. count)
            end
        end
    end
    if req.get_header("host") ~= req.get_header(":authority") then
        table.insert(wrong, "host is " .. tostring(req.get_header("host")))
    end
    req.set_header("Host", "set.example")
    if req.get_header(":authority") ~= "set.example" then
        table.insert(wrong, "the authority is " .. tostring(req.get_header(":authority")))
    end
    req.set_header("x-wrong", table.concat(wrong, ", ") .. ".")
    req.set_header("x-model", envoy.json.encode(model))
end
return handler
"#;

#[tokio::test]
async fn what_is_learned_of_headers_is_what_envoy_holds() {
    let echo = Echo::start("one").await.unwrap();
    let plugin = FilterPlugin {
        name: "changes".to_owned(),
        code: CHANGES.to_owned(),
        module: None,
        body: "stream",
        priority: 0,
        config: json!({}),
    };
    let envoy = Direct::start(&direct_config(&[vec![vec![plugin]]], echo.address()), 1).unwrap();
    let target = envoy.http1("listener-0").unwrap();
    for seed in 1..=30 {
        echo.forget_requests();
        let mut request = Request::get("/").header("x-seed", &(seed * 7919).to_string());
        // Others are there, too.
        for name in ["x-other", "x-third", "x-fourth"] {
            request = request.header(name, "there");
        }
        let response = target.send(request).await.unwrap();
        assert_eq!(response.status, 200, "seed {seed}: {}", response.text());
        let requests = echo.requests();
        let [reached] = requests.as_slice() else {
            panic!("seed {seed}: {} requests", requests.len());
        };
        assert_eq!(reached.headers.get("x-wrong"), Some("."), "seed {seed}");
        assert_eq!(reached.host, "set.example", "seed {seed}");
        let model: Value = serde_json::from_str(reached.headers.get("x-model").unwrap()).unwrap();
        for number in 1..=30 {
            let name = format!("x-n-{number}");
            let expected: Vec<&str> = model[&name]
                .as_array()
                .map(|values| values.iter().map(|value| value.as_str().unwrap()).collect())
                .unwrap_or_default();
            assert_eq!(reached.headers.all(&name), expected, "seed {seed}: {name}");
        }
    }
    envoy.stop().unwrap();
}
