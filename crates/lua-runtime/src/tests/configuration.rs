//! Configurations: checked when they load, seen by handlers, forgotten when they are over.

use outrider_plugin_api::{LoadError, Phase, ScopedConfig, Slot};

use super::fake::{FakeMetrics, FakeStream, Probe, config, probe, try_load};

fn refused(main: &str, config: &ScopedConfig) -> String {
    let plugin = try_load(&[("main.lua", main)]).unwrap();
    plugin
        .configure(config, &mut FakeMetrics::default())
        .map(|_| ())
        .unwrap_err()
        .to_string()
}

fn route(base: Option<&str>, route: &str, effective: &str) -> ScopedConfig {
    ScopedConfig {
        scope: "project shop, route cart".to_owned(),
        base: base.map(Into::into),
        route: Some(route.into()),
        effective: effective.into(),
        place: None,
    }
}

const SHOW: &str = r#"
    local function show(value) return value == nil and "nil" or envoy.json.encode(value) end
    return { on_log = function()
        envoy.logInfo(show(envoy.config()))
        envoy.logInfo(show(envoy.get_base_config()))
        envoy.logInfo(show(envoy.get_route_config()))
    end }
"#;

fn shown(probe: &Probe, config: &ScopedConfig) -> Vec<String> {
    let configured = probe
        .plugin
        .configure(config, &mut FakeMetrics::default())
        .unwrap();
    let mut stream = FakeStream::new();
    configured
        .call(
            &mut Slot::default(),
            super::fake::call(Phase::Log),
            &mut stream,
        )
        .unwrap();
    stream.logged()
}

#[test]
fn handlers_see_each_scope_s_configuration() {
    let probe = probe(SHOW);
    assert_eq!(
        shown(&probe, &config(r#"{"a":1}"#)),
        [r#"{"a":1}"#, r#"{"a":1}"#, "nil"]
    );
    let merged = route(Some(r#"{"a":1}"#), r#"{"b":[]}"#, r#"{"b":[]}"#);
    assert_eq!(
        shown(&probe, &merged),
        [r#"{"b":[]}"#, r#"{"a":1}"#, r#"{"b":[]}"#]
    );
    let only_route = route(None, r#"{"a":null}"#, "{}");
    assert_eq!(shown(&probe, &only_route), ["{}", "nil", "{}"]);
}

#[test]
fn on_configure_may_refuse_in_three_ways() {
    let with = |body: &str| {
        let main = format!(
            "local h = {{ on_log = print }}\nfunction h:on_configure(config)\n{body}\nend\nreturn h"
        );
        refused(&main, &config(r#"{"limit": -1}"#))
    };
    assert_eq!(
        with("if config.limit < 0 then error('limit must not be negative') end"),
        "plugin probe: probe/main.lua:3: limit must not be negative (configuration of gateway)"
    );
    assert_eq!(
        with("return nil, 'limit is wrong'"),
        "plugin probe: probe/main.lua:2: limit is wrong (configuration of gateway)"
    );
    assert_eq!(
        with("return false"),
        "plugin probe: probe/main.lua:2: the configuration is refused (configuration of gateway)"
    );
    assert_eq!(
        with("while true do end"),
        "plugin probe: probe/main.lua:3: the time budget of the call is used up (it was loading) \
         (configuration of gateway)"
    );
    assert_eq!(
        with("envoy.req.get_header('x')"),
        "plugin probe: probe/main.lua:3: there is no stream here: call this from a handler, not while \
         the plugin loads or from on_configure (configuration of gateway)"
    );
}

#[test]
fn what_on_configure_prepares_is_there_for_handlers() {
    let probe = probe(
        r#"
        local prepared = {}
        local h = {}
        function h:on_configure(config)
            assert(config == envoy.config() and config == envoy.get_base_config())
            prepared[config] = (config.name or "none"):upper()
        end
        function h:on_log() envoy.logInfo(prepared[envoy.config()]) end
        return h
        "#,
    );
    assert_eq!(shown(&probe, &config(r#"{"name":"one"}"#)), ["ONE"]);
    assert_eq!(shown(&probe, &config(r#"{"name":"two"}"#)), ["TWO"]);
}

#[test]
fn a_refused_configuration_leaves_the_plugin_usable() {
    let probe = probe(
        "return { on_log = function() envoy.logInfo(envoy.config().n) end,
            on_configure = function(_, config)
                if config.n == 1 then error('one') end
                if config.n == 2 then string.rep('x', 1e9) end
            end }",
    );
    let check = |effective: &str| -> Result<(), LoadError> {
        probe
            .plugin
            .configure(&config(effective), &mut FakeMetrics::default())
            .map(|_| ())
    };
    assert!(
        check(r#"{"n":1}"#)
            .unwrap_err()
            .message
            .starts_with("probe/main.lua:3: one")
    );
    assert!(
        check(r#"{"n":2}"#)
            .unwrap_err()
            .message
            .contains("memory budget")
    );
    assert_eq!(shown(&probe, &config(r#"{"n":3}"#)), ["3"]);
}

const SCHEMAS: &str = r#"
    local validator = require("rider.json_validator")
    validator.register_validator(
        { type = "object", properties = { source = { type = "string" } }, required = { "source" } },
        { type = "object", properties = {}, required = {} , additionalProperties = false })
    return { on_request = function() end }
"#;

#[test]
fn schemas_check_the_part_that_they_are_for() {
    assert_eq!(
        refused(SCHEMAS, &config(r#"{"source": 1}"#)),
        "plugin probe: probe/main.lua:3: the base configuration does not fit the schema registered \
         here: /source: 1 is not of type \"string\" (configuration of gateway)"
    );
    assert_eq!(
        refused(
            SCHEMAS,
            &route(
                Some(r#"{"source": "x"}"#),
                r#"{"other": 1}"#,
                r#"{"other": 1}"#
            )
        ),
        "plugin probe: probe/main.lua:3: the route configuration does not fit the schema registered \
         here: Additional properties are not allowed ('other' was unexpected) (configuration of \
         project shop, route cart)"
    );
    let plugin = try_load(&[("main.lua", SCHEMAS)]).unwrap();
    for accepted in [config(r#"{"source": "x"}"#), route(None, "{}", "{}")] {
        plugin
            .configure(&accepted, &mut FakeMetrics::default())
            .unwrap();
    }
}

#[test]
fn a_schema_that_is_none_does_not_load() {
    let message = try_load(&[(
        "main.lua",
        "require('rider.json_validator').register_validator({ type = 'text' })\nreturn {on_log = print}",
    )])
    .unwrap_err()
    .message;
    assert!(
        message.starts_with("probe/main.lua:1: this is no JSON Schema"),
        "{message}"
    );
}

#[test]
fn functions_may_validate() {
    let main = r#"
        local config = require("rider.config")
        config.register_config_validator(
            function(base) return base.ok and config.VALIDATE_OK or config.VALIDATE_FAIL, "base!" end,
            function(route)
                if not route.ok then return config.VALIDATE_FAIL, "route!" end
                return config.VALIDATE_OK
            end)
        return { on_request = function() end }
    "#;
    assert_eq!(
        refused(main, &config("{}")),
        "plugin probe: probe/main.lua:4: base! (configuration of gateway)"
    );
    assert_eq!(
        refused(main, &route(Some(r#"{"ok":true}"#), "{}", "{}")),
        "plugin probe: probe/main.lua:5: route! (configuration of project shop, route cart)"
    );
}

#[test]
fn the_configuration_takes_no_new_members() {
    let probe = probe(
        r"
        return { on_log = function()
            local config = envoy.config()
            envoy.logInfo(select(2, pcall(function() config.new = 1 end)))
            envoy.logInfo(select(2, pcall(function() config.list[2] = 1 end)))
            envoy.logInfo(tostring(pcall(setmetatable, config, {})))
            local seen = 0
            for _ in pairs(config) do seen = seen + 1 end
            for _ in ipairs(config.list) do seen = seen + 1 end
            envoy.logInfo(seen .. #config.list)
        end }
        ",
    );
    let refusal =
        "the configuration is shared by all streams and cannot be changed; copy what you need";
    assert_eq!(
        shown(&probe, &config(r#"{"list":["x"],"a":1}"#)),
        [
            format!("probe/main.lua:4: {refusal}"),
            format!("probe/main.lua:5: {refusal}"),
            "false".to_owned(),
            "31".to_owned()
        ]
    );
}

#[test]
fn configurations_that_are_over_are_forgotten() {
    let probe = probe(
        r#"
        local held = setmetatable({}, { __mode = "k" })
        return { on_log = function()
            held[envoy.config()] = true
            for i = 1, 1e5 do churn = { i } end
            local count = 0
            for _ in pairs(held) do count = count + 1 end
            envoy.logInfo(count)
        end }
        "#,
    );
    let mut counts = Vec::new();
    for i in 0..20 {
        counts.extend(shown(&probe, &config(&format!(r#"{{"n":{i}}}"#))));
    }
    let last: u32 = counts.last().unwrap().parse().unwrap();
    assert!(last < 6, "{counts:?}");
}
