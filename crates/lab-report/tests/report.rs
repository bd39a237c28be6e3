//! A run whose differences are known, judged and rendered.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod known_run;

use known_run::{ROUNDS, run};
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
