//! A run whose differences are known, judged and rendered.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod known_run;

use known_run::{ROUNDS, run, run_at_rates};
use outrider_lab_report::{Gate, Judgement, Run, Verdict, compare_runs, render};

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
fn rates_stages_steps_and_measures_are_judged_and_drawn() {
    let run = run_at_rates();
    assert_eq!(Run::read(&run.write().unwrap()).unwrap(), run);
    let judgement = Judgement::of(&run);
    let group = &judgement.groups[0];
    let keeps: Vec<Option<f64>> = group
        .curves
        .iter()
        .map(outrider_lab_report::Curve::highest_sustained)
        .collect();
    assert_eq!(keeps, [Some(4000.0), Some(4000.0), Some(3000.0)]);
    assert_eq!(group.first_unsustained(), Some((4000.0, "Outrider Lua")));
    assert_eq!(group.highest_sustained(), Some(3000.0));
    let point = &group.curves[2].points[0];
    assert!((point.latency_us[2] - 401.0).abs() < 1.0, "{point:?}");
    assert!((point.cpu["server sidecar"] - 0.2).abs() < 1e-9);
    assert!((point.memory_mib["client sidecar"] - 50.0).abs() < 1e-9);
    // The twin is not a step of a chain: the first one is from the baseline.
    assert_eq!(group.steps.len(), 1);
    assert_eq!(group.steps[0].with, "nothing");
    assert!((group.measures[0].median - 71.0).abs() < 1e-9);
    assert_eq!(judgement.groups[1].stages.len(), 2);
    let rendered = render(&run).unwrap();
    let file = |name: &str| {
        let found = rendered.files.iter().find(|(one, _)| one == name);
        found.unwrap().1.clone()
    };
    let page = file("report.html");
    assert_eq!(page.matches("<svg").count(), 9);
    for text in [
        "keeps up to 3000 requests a second.",
        "keeps up to 4000 requests a second, the highest rate that was tried.",
        "Envoy&#39;s memory: 71 MiB (median of 3, 70 MiB to 72 MiB)",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"));
    assert_eq!(file("rates.csv").lines().count(), 1 + 3 * 4);
    insta::assert_snapshot!("summary_of_rates", file("summary.md"));
}

#[test]
fn difference_of_a_percentile_needs_more_than_its_noise() {
    let mut run = run();
    for slice in &mut run.slices {
        if let (3, Some(latency)) = (slice.variant, &mut slice.latency) {
            let mut slower = outrider_load::new_histogram();
            for request in 1..=1000_u64 {
                slower.record(request * 300).unwrap();
            }
            latency.latency = outrider_load::histogram_text(&slower);
        }
    }
    let judgement = Judgement::of(&run);
    let p99 = |name: &str| {
        let rows = &judgement.groups[0].rows;
        rows.iter().find(|row| row.name == name).unwrap().p99
    };
    let slower = p99("Envoy's Lua filter").unwrap();
    assert_eq!(slower.verdict, Verdict::More);
    assert!((slower.effect.median - 99.0).abs() < 1.0, "{slower}");
    assert_eq!(
        p99("nothing, again").unwrap().verdict,
        Verdict::NoDifference
    );
    assert_eq!(p99("nothing"), None);
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
