//! What lanes cost a sidecar: instructions in Envoy, beside what article 000 does with Envoy's own Wasm filter and Lua.
//!
//! Each request has a trace id of its own, so that the table of traces is as full as in service: the requests that come
//! before those that are counted fill it. What is restored needs to have been remembered, in the same process and under
//! another header, so it is counted together with that.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use anyhow::Context as _;
use outrider_envoy_process::Search;
use serde_json::{Value, json};

use super::callgrind::Callgrind;
use super::environment::environment;
use super::filters::{Code, Rendered, Sources, envoy_lua, envoy_wasm};
use super::upstream::Upstream;
use super::variant::{BASELINE, EMPTY, Variant};
use super::workload::Shape;
use super::{BenchOptions, count};

/// Live traces in the table when instructions are counted.
const LIVE: u64 = 100_000;
const INBOUND: &str = "inbound: the lane is remembered";
const BOTH: &str = "inbound and outbound: remembered, and restored";
const TWO: &str = "two filters with no plugin";
const STAMP: &str = "outbound, strict: the lane is written";
const WASM: &str = "article 000's filter in Envoy's Wasm host: a fixed header";
const LUA: &str = "the same in Envoy's Lua filter";
const SCRIPT: &str =
    "function envoy_on_request(handle)\n  handle:headers():replace('version-tag', 'v2')\nend\n";

/// Counts, and returns the page.
///
/// # Errors
/// Something that is needed is missing, or a request had another answer than it should.
pub async fn lanes(options: &BenchOptions, out: &mut (dyn Write + Send)) -> anyhow::Result<String> {
    let envoy = Search::from_environment(options.envoy.clone())
        .find()?
        .binary;
    let modules = std::path::absolute(&options.modules)?;
    let sources = Sources {
        outrider: std::path::absolute(&options.outrider)?,
        guests: options.guests.clone(),
        coraza: options.coraza.clone(),
        compiled: modules.join("bench-compiled"),
    };
    let environment = environment(&envoy, &modules)?;
    let upstream = Upstream::start().await?;
    let mut per_request: BTreeMap<String, f64> = BTreeMap::new();
    // Only lanes keep anything of the requests before.
    for (variants, warming) in [
        (of_others(&sources)?, options.warming),
        (of_lanes(&sources)?, LIVE),
    ] {
        let callgrind = Callgrind {
            envoy: envoy.clone(),
            modules: modules.clone(),
            upstream: upstream.address(),
            warming,
        };
        let counted =
            tokio::task::block_in_place(|| count(&callgrind, &variants, options, out))?.counted;
        for (variant, counted) in variants.iter().zip(counted) {
            let [fewer, more] = counted.totals;
            let each = (more as f64 - fewer as f64) / options.counted(variant) as f64;
            per_request.insert(variant.workload.clone(), each);
        }
    }
    let of = |name: &str| {
        let each = per_request.get(name).copied();
        each.with_context(|| format!("{name} was not counted"))
    };
    let floor = of(BASELINE)?;
    let mut page = format!(
        "# What lanes cost\n\n\
         Written by `outrider-bench --lanes`: instructions in user mode that a stock Envoy {} takes more for a request than with no \
         filter ({floor:.0}), counted under {}; {} to {} requests, each with a `traceparent` of its own, beside {LIVE} live traces \
         in the table.\n\n| what | instructions |\n|---|---:|\n",
        environment.envoy, environment.valgrind, options.fewer, options.more
    );
    for name in [EMPTY, TWO, INBOUND, BOTH, STAMP, WASM, LUA] {
        let more = of(name)? - floor;
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {name} | {more:.0} |");
    }
    let hop = of(BOTH)? - of(TWO)?;
    let _ = write!(
        page,
        "\nA hop is one request that comes in and one that goes out, through two filters: what lanes add to them is {hop:.0} \
         instructions, with the header that Envoy sets and the route that it selects again. \"{EMPTY}\" is one filter of \
         Outrider that does nothing.\n"
    );
    Ok(page)
}

fn variant(name: &str, filters: Vec<Value>) -> Variant {
    Variant {
        workload: name.to_owned(),
        mechanism: None,
        shape: Shape::Traced,
        divisor: 1,
        filters,
    }
}

fn of_others(sources: &Sources) -> anyhow::Result<Vec<Variant>> {
    let module = sources
        .guests
        .join("../../../plugins/rust/propagate-headers/plugin.wasm");
    anyhow::ensure!(
        module.is_file(),
        "{} is not there; `make plugins-rust` builds it",
        module.display()
    );
    let wasm = Code::Wasm {
        module: std::path::absolute(module)?,
        configuration: json!({"head_tag_name": "version-tag", "head_tag_value": "v2"}).to_string(),
    };
    let empty = Rendered::plugins(sources, &[])?.filter;
    Ok(vec![
        variant(BASELINE, Vec::new()),
        variant(EMPTY, vec![empty.clone()]),
        variant(TWO, vec![empty.clone(), empty]),
        variant(WASM, envoy_wasm(1, &wasm).into_iter().collect()),
        variant(LUA, vec![envoy_lua(1, SCRIPT)]),
    ])
}

fn of_lanes(sources: &Sources) -> anyhow::Result<Vec<Variant>> {
    let empty = Rendered::plugins(sources, &[])?.filter;
    // The trace is known by the group's name; two headers let a request be remembered and restored.
    let filter = |name: &str, header: &str, role: Value| -> anyhow::Result<Value> {
        let mut filter = empty.clone();
        if let Some(object) = filter.as_object_mut() {
            object.insert("name".to_owned(), name.into());
        }
        let document = filter
            .pointer_mut("/typed_config/filter_config/value")
            .and_then(Value::as_object_mut)
            .context("the filter has no document")?;
        document.insert(
            "lane_groups".to_owned(),
            json!([{
                "name": "hello",
                "header": header,
                "baseline": "en",
                "correlate": [
                    "traceparent", "b3", "x-b3-traceid", "uber-trace-id", "x-datadog-trace-id", "x-request-id",
                ],
                "remember": 3600,
            }]),
        );
        document.insert(
            "lanes".to_owned(),
            json!([{"group": "hello", "role": role}]),
        );
        Ok(filter)
    };
    let inbound = || filter("inbound", "x-lane", json!("inbound"));
    Ok(vec![
        variant(INBOUND, vec![inbound()?]),
        variant(
            BOTH,
            vec![
                inbound()?,
                filter("outbound", "x-restored", json!("outbound"))?,
            ],
        ),
        variant(
            STAMP,
            vec![filter("outbound", "x-stamped", json!({"stamp": "fr"}))?],
        ),
    ])
}
