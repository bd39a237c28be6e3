//! A run whose differences are known, judged and rendered.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;

use outrider_lab_report::{
    Absent, Environment, Gate, Judgement, LatencyResult, Pair, Role, Run, SCHEMA, Settings, Slice,
    SliceKind, Variant, Verdict, compare_runs, render,
};
use outrider_load::{histogram_text, new_histogram};

const ROUNDS: usize = 12;

fn variant(name: &str, role: Role) -> Variant {
    Variant {
        group: "pass-through".to_owned(),
        about: "A handler that does nothing.".to_owned(),
        name: name.to_owned(),
        role,
        configuration: "0".repeat(64),
        note: String::new(),
    }
}

/// Costs in nanoseconds a request: 12,000, and what each variant adds; with noise of up to 150 that each round shares in
/// part.
fn run() -> Run {
    let variants = vec![
        variant("nothing", Role::Baseline),
        variant("nothing, again", Role::Twin),
        variant("Outrider Lua", Role::Measured),
        variant("Envoy's Lua filter", Role::Measured),
        variant("native <module>", Role::Measured),
        variant("always disturbed", Role::Measured),
    ];
    let added = [0, 0, 1_200, 3_200, 60, 900];
    let mut slices = Vec::new();
    for round in 0..ROUNDS {
        for (index, added) in added.into_iter().enumerate() {
            let noise = (round * 37 + index * 53) % 150;
            let cost = (12_000 + round as u64 * 40) + added + noise as u64;
            let mut slice = Slice {
                variant: index,
                kind: SliceKind::Cpu,
                round,
                at: (slices.len() as f64) * 0.5,
                seconds: 0.5,
                requests: 10_000,
                errors: BTreeMap::new(),
                cpu_ns: cost * 10_000,
                run_queue_ns: 0,
                generator_ns: 70_000_000,
                generator_share: 0.6,
                foreign_ns: 0,
                pressure_ns: Some(0),
                steal_ns: 0,
                memory_kib: 60_000,
                latency: None,
                failed: Vec::new(),
            };
            if index == 5 && round > 2 {
                slice.failed = vec![Gate::ForeignCpu, Gate::RunQueue];
            }
            slices.push(slice.clone());
            let mut latency = new_histogram();
            for request in 1..=1000_u64 {
                latency.record(request * 200 + added).unwrap();
            }
            slice.kind = SliceKind::Latency;
            slice.latency = Some(LatencyResult {
                latency: histogram_text(&latency),
                service: histogram_text(&latency),
                schedule_error_p99_ns: 900,
            });
            slices.push(slice);
        }
    }
    Run {
        schema: SCHEMA,
        scenario: "mechanisms".to_owned(),
        title: "What does a plugin cost?".to_owned(),
        about: "One Envoy, a listener for each variant.".to_owned(),
        started: "2026-11-24T12:00:00Z".to_owned(),
        seconds: 72.0,
        command: ["outrider", "lab", "run", "mechanisms"]
            .map(str::to_owned)
            .to_vec(),
        environment: Environment {
            processor: "A processor".to_owned(),
            cores: 2,
            ..Environment::default()
        },
        settings: Settings {
            connections: 16,
            cpu_slice: 0.5,
            latency_slice: 1.0,
            latency_rate: 2000.0,
            rounds: ROUNDS,
            seed: 1,
        },
        variants,
        pairs: vec![
            Pair {
                variant: 2,
                with: 3,
            },
            Pair {
                variant: 4,
                with: 2,
            },
        ],
        absent: vec![Absent {
            group: "pass-through".to_owned(),
            name: "native filter".to_owned(),
            reason: "Envoy has none that does nothing".to_owned(),
        }],
        slices,
    }
}

#[test]
fn differences_are_found_and_noise_is_not() {
    let judgement = Judgement::of(&run());
    let group = &judgement.groups[0];
    let change = |name: &str| {
        group
            .rows
            .iter()
            .find(|row| row.name == name)
            .unwrap()
            .added
            .unwrap()
    };
    let lua = change("Outrider Lua");
    assert_eq!(lua.verdict, Verdict::More);
    assert!((lua.effect.median - 1.2).abs() < 0.1, "{lua}");
    assert!(lua.effect.low <= lua.effect.median && lua.effect.median <= lua.effect.high);
    // 60 ns are within what the baseline differs from itself by.
    assert_eq!(change("native <module>").verdict, Verdict::NoDifference);
    assert_eq!(change("nothing, again").verdict, Verdict::NoDifference);
    assert!(
        change("nothing, again")
            .to_string()
            .starts_with("no difference seen")
    );
    // Three rounds are too few, however large the difference.
    assert_eq!(change("always disturbed").verdict, Verdict::ProvesNothing);
    assert!(
        change("always disturbed")
            .to_string()
            .contains("3 rounds kept, 5 are needed")
    );
    let comparison = &group.comparisons[0];
    assert_eq!(comparison.change.verdict, Verdict::Less);
    assert!(
        (comparison.share.unwrap() - 0.375).abs() < 0.03,
        "{comparison:?}"
    );
    // Nothing was seen of the native module, so no share can be told.
    assert_eq!(group.comparisons[1].share, None);
    assert_eq!(judgement.rejected[&Gate::ForeignCpu], 2 * (ROUNDS - 3));
}

#[test]
fn run_survives_its_file_and_other_files_are_refused() {
    let run = run();
    let text = run.write().unwrap();
    assert_eq!(Run::read(&text).unwrap(), run);
    let newer = text.replacen("\"schema\": 1", "\"schema\": 9", 1);
    assert!(
        Run::read(&newer)
            .unwrap_err()
            .to_string()
            .contains("schema 9")
    );
    assert!(
        Run::read("{}")
            .unwrap_err()
            .to_string()
            .starts_with("not a run of the lab")
    );
    let wrong = text.replacen("{\"variant\":0", "{\"variant\":99", 1);
    assert!(
        Run::read(&wrong)
            .unwrap_err()
            .to_string()
            .contains("slice 0")
    );
}

#[test]
fn report_has_all_files_needs_no_network_and_escapes_names() {
    let run = run();
    let rendered = render(&run).unwrap();
    let names: Vec<&str> = rendered
        .files
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        names[..4],
        ["report.html", "summary.md", "results.csv", "slices.csv"]
    );
    assert!(
        names.contains(&"pass-through-outrider-lua.hgrm"),
        "{names:?}"
    );
    let page = &rendered.files[0].1;
    assert!(page.contains("native &#60;module&#62;") && !page.contains("<module>"));
    let references = ["<script", "<link", "src=", "@import", "url("];
    for reference in references {
        assert!(!page.contains(reference), "{reference}");
    }
    let namespace = "http://www.w3.org/2000/svg";
    assert_eq!(
        page.matches("http").count(),
        page.matches(namespace).count()
    );
    assert_eq!(
        page.matches("<figure>").count(),
        page.matches("<figcaption>").count()
    );
    assert_eq!(page.matches("<svg").count(), 4);
    for chart in page.split("<svg").skip(1) {
        let chart = chart.split("</svg>").next().unwrap();
        assert!(
            chart.contains("<title") && !chart.contains("NaN") && !chart.contains("inf"),
            "{chart}"
        );
    }
    assert_eq!(render(&run).unwrap(), rendered, "two renderings are equal");
    insta::assert_snapshot!("summary", rendered.files[1].1);
    insta::assert_snapshot!("results", rendered.files[2].1);
}

#[test]
fn slower_version_is_seen_between_two_runs() {
    let before = run();
    let mut after = run();
    for slice in after.slices.iter_mut().filter(|slice| slice.variant == 2) {
        slice.cpu_ns += 900 * slice.requests;
    }
    let change = compare_runs(&before, &after, "pass-through", "Outrider Lua").unwrap();
    assert_eq!(change.verdict, Verdict::More);
    assert!((change.effect.median - 0.9).abs() < 0.05, "{change}");
    let same = compare_runs(&before, &before, "pass-through", "Outrider Lua").unwrap();
    assert_eq!(same.verdict, Verdict::NoDifference);
    assert!(compare_runs(&before, &after, "pass-through", "no such").is_none());
}
