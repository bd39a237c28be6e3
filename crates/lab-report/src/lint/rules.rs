//! The rules. Where a threshold is a measured one, its source is docs/lab.md.

use super::{Finding, Rule, Severity, Tool, ToolRun};

/// Resolution of a histogram that an unknown tool may have had: fortio's default.
const DEFAULT_RESOLUTION: f64 = 0.001;
/// Share of its ceiling above which a tool may have been the limit.
const NEAR_CEILING: f64 = 0.8;
/// Seconds below which a run is short.
const SHORT: f64 = 10.0;

pub(super) fn check(runs: &[ToolRun]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for run in runs {
        let found = [
            resolution(run),
            mean_against_percentiles(run),
            contradiction(run),
            tool_bound(run),
            truncated(run),
            omission(run),
            errors(run),
            overrun(run),
            too_short(run),
            rate_not_reached(run),
            mean_only(run),
        ];
        for finding in found.into_iter().flatten() {
            merge(&mut findings, finding);
        }
    }
    findings.extend(littles_law(runs));
    findings.extend(single_run(runs));
    findings
}

/// Adds a finding, or its run to the same finding of another run.
fn merge(findings: &mut Vec<Finding>, finding: Finding) {
    let same = findings
        .iter_mut()
        .find(|one| one.rule == finding.rule && one.problem == finding.problem);
    match same {
        Some(same) => same.runs.extend(finding.runs),
        None => findings.push(finding),
    }
}

fn finding(
    run: &ToolRun,
    rule: Rule,
    severity: Severity,
    problem: String,
    advice: &str,
) -> Finding {
    Finding {
        rule,
        severity,
        runs: vec![run.name.clone()],
        problem,
        advice: advice.to_owned(),
    }
}

fn milliseconds(seconds: f64) -> String {
    let text = format!("{:.3}", seconds * 1e3);
    format!("{} ms", text.trim_end_matches('0').trim_end_matches('.'))
}

fn resolution(run: &ToolRun) -> Option<Finding> {
    let resolution = match (run.tool, run.resolution) {
        (_, Some(resolution)) => resolution,
        (Tool::Table, None) => DEFAULT_RESOLUTION,
        _ => return None,
    };
    // Interpolation within the first bucket puts percentile p at p times its width.
    let below = run
        .percentiles
        .iter()
        .filter(|(percentile, _)| (40.0..=99.5).contains(percentile));
    let below: Vec<&(f64, f64)> = below
        .filter(|(_, latency)| *latency < resolution * 1.02)
        .collect();
    let is_linear = below
        .iter()
        .all(|(percentile, latency)| (latency / resolution - percentile / 100.0).abs() < 0.06);
    (below.len() >= 3 && is_linear).then(|| {
        let shown: Vec<String> = below
            .iter()
            .map(|(percentile, latency)| format!("p{percentile} {}", milliseconds(*latency)))
            .collect();
        finding(
            run,
            Rule::ResolutionArtefact,
            Severity::Void,
            format!(
                "{} lie on a straight line up to {}: they are interpolated within one bucket of a histogram, and were \
                 never measured",
                shown.join(", "),
                milliseconds(resolution)
            ),
            "measure again with a resolution of microseconds (fortio: -r 0.000001)",
        )
    })
}

fn mean_against_percentiles(run: &ToolRun) -> Option<Finding> {
    let mean = run.mean?;
    let (mut lowest, mut highest) = (0.0, 0.0);
    let mut before = (0.0, run.min.unwrap_or_default());
    for (percentile, latency) in run.percentiles.iter().copied() {
        let share = (percentile - before.0) / 100.0;
        lowest += share * before.1;
        highest += share * latency;
        before = (percentile, latency);
    }
    let rest = (100.0 - before.0) / 100.0;
    lowest += rest * before.1;
    highest = run.max.map_or(f64::INFINITY, |max| highest + rest * max);
    // Printed numbers are rounded.
    let problem = if !run.percentiles.is_empty() && mean < lowest * 0.97 {
        format!(
            "with these percentiles the mean is at least {}, but {} is reported",
            milliseconds(lowest),
            milliseconds(mean)
        )
    } else if !run.percentiles.is_empty() && mean > highest * 1.03 {
        format!(
            "with these percentiles the mean is at most {}, but {} is reported",
            milliseconds(highest),
            milliseconds(mean)
        )
    } else if run.min.is_some_and(|min| mean < min * 0.97)
        || run.max.is_some_and(|max| mean > max * 1.03)
    {
        format!(
            "the mean, {}, does not lie between the shortest and the longest latency",
            milliseconds(mean)
        )
    } else {
        return None;
    };
    Some(finding(
        run,
        Rule::MeanAgainstPercentiles,
        Severity::Void,
        problem,
        "one of the two is wrong, most often the percentiles, by the resolution of a histogram: measure again",
    ))
}

fn contradiction(run: &ToolRun) -> Option<Finding> {
    let (connections, mean, rate) = (run.connections?, run.mean?, run.rate?);
    let waiting = mean * rate;
    (waiting > connections * 1.15).then(|| {
        finding(
            run,
            Rule::LittlesLawContradiction,
            Severity::Void,
            format!(
                "{rate:.0} requests a second of {} each are {waiting:.0} at once (Little's law), but there were \
                 {connections:.0} connections",
                milliseconds(mean)
            ),
            "find out which of the three numbers is wrong before using any of them",
        )
    })
}

/// Of runs with as many requests under way as connections, rate and mean are one number.
fn littles_law(runs: &[ToolRun]) -> Option<Finding> {
    let closed: Vec<(&ToolRun, f64)> = runs
        .iter()
        .filter(|run| run.asked_rate.is_none())
        .filter_map(|run| Some((run, run.mean? * run.rate?)))
        .collect();
    let (_, first) = closed.first()?;
    let nearest = first.round();
    let is_known = closed.iter().all(|(run, waiting)| {
        run.connections
            .is_some_and(|connections| (waiting / connections - 1.0).abs() < 0.1)
    });
    // Without a number of connections, several rows with the same product show it.
    let is_same = closed.len() >= 2
        && nearest >= 1.0
        && closed
            .iter()
            .all(|(_, waiting)| (waiting / nearest - 1.0).abs() < 0.02);
    (is_known || is_same).then(|| Finding {
        rule: Rule::LittlesLaw,
        severity: Severity::Doubtful,
        runs: closed.iter().map(|(run, _)| run.name.clone()).collect(),
        problem: format!(
            "rate times mean latency is {first:.1}, the number of connections: a closed loop, in which rate and mean \
             latency are one number printed twice"
        ),
        advice: "compare latencies at the same rate below saturation, sent by a schedule (an open loop)".to_owned(),
    })
}

fn tool_bound(run: &ToolRun) -> Option<Finding> {
    // Requests a second that a core can send to a target that answers at once.
    let ceiling = match run.tool {
        Tool::Hey => 68_000.0,
        Tool::Oha => 104_000.0,
        Tool::Fortio => 110_000.0,
        Tool::Wrk => 135_000.0,
        Tool::Table => return None,
    };
    let rate = run.rate.filter(|rate| *rate > ceiling * NEAR_CEILING)?;
    Some(finding(
        run,
        Rule::ToolBound,
        Severity::Doubtful,
        format!(
            "{rate:.0} requests a second are near what a core of the generator can send ({ceiling:.0})"
        ),
        "show the generator's own CPU time beside the result, or use a cheaper one or more threads",
    ))
}

fn truncated(run: &ToolRun) -> Option<Finding> {
    let limit = match run.tool {
        Tool::Wrk => 2.0,
        Tool::Hey => 20.0,
        _ => f64::INFINITY,
    };
    let is_near = run
        .max
        .is_some_and(|max| max > limit * 0.95 && max <= limit * 1.01);
    let problem = match (run.timeouts > 0.0, is_near) {
        (true, _) => format!(
            "{:.0} requests timed out, and their latencies are not among the numbers",
            run.timeouts
        ),
        (false, true) => format!(
            "the longest latency, {:.2} s, is the tool's time limit",
            run.max.unwrap_or(limit)
        ),
        (false, false) => return None,
    };
    Some(finding(
        run,
        Rule::TruncatedTimeouts,
        Severity::Doubtful,
        problem,
        "set a time limit that no request reaches, and count a timeout as a latency of at least the limit",
    ))
}

fn omission(run: &ToolRun) -> Option<Finding> {
    let (severity, problem) = match (run.tool, run.is_corrected) {
        (_, Some(true)) | (Tool::Table, _) => return None,
        (Tool::Wrk, _) => (
            Severity::Note,
            "a closed loop: wrk adds estimated latencies for requests that a stall kept it from sending",
        ),
        (Tool::Oha, None) => (
            Severity::Note,
            "latencies count from the actual send, unless oha ran with --latency-correction, which its output does not say",
        ),
        _ => (
            Severity::Doubtful,
            "latencies count from the actual send: while the target stalls nothing is sent, so the stall shows once for \
             each connection (coordinated omission)",
        ),
    };
    Some(finding(
        run,
        Rule::CoordinatedOmission,
        severity,
        problem.to_owned(),
        "count latencies from the intended send time (oha --latency-correction, wrk2, outrider lab load --rate)",
    ))
}

fn errors(run: &ToolRun) -> Option<Finding> {
    let mut parts = Vec::new();
    if run.failed > 0.0 {
        parts.push(format!("{:.0} requests failed", run.failed));
    }
    if run.unsuccessful > 0.0 {
        let unit = if run.statuses.is_empty() && run.tool == Tool::Oha {
            " % of the"
        } else {
            ""
        };
        parts.push(format!(
            "{:.0}{unit} responses were no success",
            run.unsuccessful
        ));
    }
    (!parts.is_empty()).then(|| {
        finding(
            run,
            Rule::Errors,
            Severity::Doubtful,
            format!(
                "{}: errors are often faster than answers, and are among the numbers",
                parts.join(", ")
            ),
            "find their cause, and report latencies of successes only",
        )
    })
}

fn overrun(run: &ToolRun) -> Option<Finding> {
    let (asked, took) = (run.asked_seconds?, run.seconds?);
    (took > asked * 1.05 + 0.2).then(|| {
        finding(
            run,
            Rule::Overrun,
            Severity::Doubtful,
            format!("the run took {took:.1} s instead of {asked:.1} s: requests of its end did not come back in time"),
            "look for stalls; the rate is that of the longer time",
        )
    })
}

fn too_short(run: &ToolRun) -> Option<Finding> {
    let seconds = run.seconds.filter(|seconds| *seconds < SHORT - 0.5)?;
    Some(finding(
        run,
        Rule::TooShort,
        Severity::Note,
        format!("the run took {seconds:.1} s, its first moments included"),
        "leave a warm-up out, and measure for longer or more often",
    ))
}

fn rate_not_reached(run: &ToolRun) -> Option<Finding> {
    let (asked, rate) = (run.asked_rate?, run.rate?);
    (rate < asked * 0.98).then(|| {
        finding(
            run,
            Rule::RateNotReached,
            Severity::Doubtful,
            format!("{asked:.0} requests a second were asked for, and {rate:.0} were sent: the load was another one"),
            "report latencies only at rates that were reached, or count requests that were not sent",
        )
    })
}

fn mean_only(run: &ToolRun) -> Option<Finding> {
    run.percentiles.is_empty().then(|| {
        finding(
            run,
            Rule::MeanOnly,
            Severity::Doubtful,
            "no percentiles: a mean hides both the usual latency and the long ones".to_owned(),
            "print percentiles (wrk: --latency)",
        )
    })
}

fn single_run(runs: &[ToolRun]) -> Option<Finding> {
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    let is_table = runs.iter().all(|run| run.tool == Tool::Table);
    let repeats = |name: &&str| names.iter().filter(|one| *one == name).count() > 1;
    let is_single = if is_table {
        !names.iter().any(repeats)
    } else {
        runs.len() == 1
    };
    (is_single && !runs.is_empty()).then(|| Finding {
        rule: Rule::SingleRun,
        severity: Severity::Doubtful,
        runs: names.iter().map(|name| (*name).to_owned()).collect(),
        problem: "one run of each variant: how much it differs from itself is not known, so no difference can be told \
                  from noise"
            .to_owned(),
        advice: "repeat every variant, one after another in turns, and give an interval".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Rule, lint, read_output};

    fn rules(text: &str) -> Vec<Rule> {
        let mut rules: Vec<Rule> = lint(&read_output(text).unwrap())
            .into_iter()
            .map(|finding| finding.rule)
            .collect();
        rules.sort();
        rules.dedup();
        rules
    }

    /// Article 003: fortio with its default resolution, 10 connections, one run for each variant.
    const ARTICLE_003: &str = "\
| filter | min | avg | max | P50 | P75 | P90 | P99 | QPS |
|---|---|---|---|---|---|---|---|---|
| base | 0.08 | 0.22 | 9.1 | 0.53 | 0.767 | 0.908 | 0.992 | 45454 |
| lua | 0.09 | 0.25 | 12.5 | 0.53 | 0.767 | 0.908 | 0.992 | 40000 |
";

    /// Article 001: wrk, 30 s, which took 36.3 s, with timeouts.
    const ARTICLE_001: &str = "\
Running 30s test @ http://127.0.0.1:9080/
  2 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.41ms   14.55ms   1.93s    99.31%
    Req/Sec     9.01k     1.12k   12.45k    71.12%
  649870 requests in 36.30s, 150.11MB read
  Socket errors: connect 0, read 0, write 0, timeout 63
Requests/sec:  17902.75
Transfer/sec:      4.13MB
";

    /// Article 000: hey with 2,000 connections.
    const ARTICLE_000: &str = "\
Summary:
  Total:\t31.2000 secs
  Slowest:\t3.1000 secs
  Fastest:\t0.1010 secs
  Average:\t0.6300 secs
  Requests/sec:\t3174.6032

Latency distribution:
  10% in 0.4100 secs
  50% in 0.6000 secs
  99% in 1.4000 secs

Status code distribution:
  [200]\t99000 responses
";

    const FORTIO: &str = "\
Fortio 1.66.5 running at 0 queries per second, 2->2 procs, for 10s: http://127.0.0.1:10000/
Starting at max qps with 16 thread(s) [gomax 2] for 10s
Ended after 10.00042 s : 706590 calls. qps=70658
Aggregated Function Time : count 706590 avg 0.00014103 +/- 0.00011 min 4.7e-05 max 0.0089 sum 99.6
# target 50% 0.000512
# target 75% 0.000756
# target 90% 0.000903
# target 99% 0.000992
# target 99.9% 0.001366
Code 200 : 706590 (100.0 %)
";

    const SOUND: &str = r#"{"summary": {"successRate": 1.0, "total": 30.0, "slowest": 0.02, "fastest": 0.0001,
 "average": 0.0004, "requestsPerSec": 1000.0}, "latencyPercentiles": {"p50": 0.0003, "p90": 0.0007, "p99": 0.0021},
 "statusCodeDistribution": {"200": 30000}, "errorDistribution": {}}"#;

    #[test]
    fn article_003_is_void_and_only_a_closed_loop_besides() {
        let expected = [
            Rule::ResolutionArtefact,
            Rule::MeanAgainstPercentiles,
            Rule::LittlesLaw,
            Rule::SingleRun,
        ];
        assert_eq!(
            rules(ARTICLE_003),
            expected.into_iter().chain([]).collect::<Vec<_>>()
        );
        let findings = lint(&read_output(ARTICLE_003).unwrap());
        assert_eq!(findings[0].runs, ["base", "lua"], "{findings:?}");
        assert!(
            findings[0].problem.contains("p50 0.53 ms"),
            "{}",
            findings[0].problem
        );
        let law = findings
            .iter()
            .find(|finding| finding.rule == Rule::LittlesLaw)
            .unwrap();
        assert!(
            law.problem.contains("is 10.0, the number of connections"),
            "{}",
            law.problem
        );
    }

    #[test]
    fn article_001_overran_and_cut_its_tail_off() {
        let expected = [
            Rule::TruncatedTimeouts,
            Rule::CoordinatedOmission,
            Rule::SingleRun,
            Rule::Overrun,
            Rule::MeanOnly,
        ];
        let mut found = rules(ARTICLE_001);
        // Timeouts make rate times mean another number than the connections; either may be named.
        found.retain(|rule| !matches!(rule, Rule::LittlesLaw | Rule::LittlesLawContradiction));
        assert_eq!(found, expected);
    }

    #[test]
    fn article_000_is_a_closed_loop() {
        let mut runs = read_output(ARTICLE_000).unwrap();
        assert_eq!(
            runs[0].percentiles,
            [(10.0, 0.41), (50.0, 0.6), (99.0, 1.4)]
        );
        runs[0].connections = Some(2000.0);
        let found: Vec<Rule> = lint(&runs)
            .into_iter()
            .map(|finding| finding.rule)
            .collect();
        assert_eq!(
            found,
            [Rule::LittlesLaw, Rule::CoordinatedOmission, Rule::SingleRun]
        );
    }

    #[test]
    fn default_resolution_of_fortio_is_found() {
        let found = rules(FORTIO);
        assert!(
            found.contains(&Rule::ResolutionArtefact)
                && found.contains(&Rule::MeanAgainstPercentiles),
            "{found:?}"
        );
        // The same run with a resolution of a microsecond, whose percentiles are no line.
        let fine = FORTIO
            .replace("0.000512", "0.000130")
            .replace("0.000756", "0.000152")
            .replace("0.000903", "0.000187")
            .replace("0.000992", "0.000310");
        let found = rules(&fine);
        assert!(
            !found.contains(&Rule::ResolutionArtefact)
                && !found.contains(&Rule::MeanAgainstPercentiles),
            "{found:?}"
        );
    }

    #[test]
    fn sound_run_is_only_a_single_one() {
        assert_eq!(rules(SOUND), [Rule::CoordinatedOmission, Rule::SingleRun]);
        let findings = lint(&read_output(SOUND).unwrap());
        assert!(
            findings
                .iter()
                .any(|finding| finding.severity == super::Severity::Note)
        );
        // Twice the same run is no single one.
        let twice = format!("{SOUND}\n{SOUND}");
        assert!(!rules(&twice).contains(&Rule::SingleRun));
    }

    #[test]
    fn errors_rates_and_ceilings_are_found() {
        let failing = SOUND
            .replace("{\"200\": 30000}", "{\"200\": 29000, \"503\": 1000}")
            .replace(
                "\"errorDistribution\": {}",
                "\"errorDistribution\": {\"connection reset\": 3, \"timeout\": 2}",
            );
        let found = rules(&failing);
        assert!(
            found.contains(&Rule::Errors) && found.contains(&Rule::TruncatedTimeouts),
            "{found:?}"
        );
        let slow = FORTIO.replace("running at 0 queries", "running at 90000 queries");
        assert!(rules(&slow).contains(&Rule::RateNotReached));
        let fast = SOUND
            .replace("1000.0}, \"lat", "99000.0}, \"lat")
            .replace("0.0004", "0.00004");
        assert!(
            rules(&fast).contains(&Rule::ToolBound),
            "{:?}",
            rules(&fast)
        );
        let short = SOUND.replace("\"total\": 30.0", "\"total\": 3.0");
        assert!(rules(&short).contains(&Rule::TooShort));
        let impossible = ARTICLE_001.replace("1.41ms", "14.1ms");
        assert!(rules(&impossible).contains(&Rule::LittlesLawContradiction));
    }

    #[test]
    fn text_that_is_no_output_is_refused() {
        for text in [
            "",
            "hello",
            "{\"a\": 1}",
            "{\"summary\"",
            "| a | b |\n|---|---|\n| 1 | 2 |\n",
        ] {
            let error = read_output(text).unwrap_err().to_string();
            assert!(
                error.starts_with("no output of wrk, hey, fortio or oha"),
                "{text}: {error}"
            );
        }
    }
}
