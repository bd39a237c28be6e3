//! Records to files: order, rotation, removal, flushing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use outrider_plugin_formats::{FileSink, Sink};
use outrider_telemetry::exporter;
use outrider_telemetry::stats::{self, Counter};

use support::{Event, scope, shared, text_log, wait_until};

fn file(path: &Path) -> Sink {
    Sink::File(FileSink {
        path: path.to_str().unwrap().to_owned(),
        rotate_at: None,
        keep: None,
    })
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

fn numbered(number: usize) -> Event {
    Event::default().with_header("x-number", number.to_string().as_bytes())
}

#[test]
fn records_of_all_threads_arrive_whole_and_in_order() {
    const RECORDS: usize = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/requests.log");
    let log = text_log("threads", "%REQ(X-THREAD)% %REQ(X-NUMBER)%\n");
    let logs = shared(&log, &file(&path));
    let threads: Vec<_> = (0..3)
        .map(|thread: usize| {
            let logs = std::sync::Arc::clone(&logs);
            std::thread::spawn(move || {
                for number in 0..RECORDS {
                    let name = thread.to_string();
                    logs.save(&mut numbered(number).with_header("x-thread", name.as_bytes()));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // The configuration is gone before its records are written.
    drop(logs);
    assert!(exporter::flush(Duration::from_secs(30)));
    let lines = lines(&path);
    assert_eq!(lines.len(), 3 * RECORDS);
    for thread in 0..3 {
        let begin = format!("{thread} ");
        let own = lines.iter().filter_map(|line| line.strip_prefix(&begin));
        let numbers: Vec<usize> = own.map(|number| number.parse().unwrap()).collect();
        assert!(numbers.iter().copied().eq(0..RECORDS));
    }
}

#[test]
fn moved_and_removed_files_are_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.log");
    let logs = scope(&text_log("moved", "%REQ(X-NUMBER)%\n"), &file(&path));
    logs.save(&mut numbered(1));
    wait_until("the first line", || lines(&path) == ["1"]);
    std::fs::rename(&path, folder.path().join("requests.log.old")).unwrap();
    // Until the exporter has looked at the name, lines go to the file that was moved.
    let mut number = 1;
    wait_until("a new file", || {
        number += 1;
        logs.save(&mut numbered(number));
        path.exists() && !lines(&path).is_empty()
    });
    std::fs::remove_file(&path).unwrap();
    wait_until("another new file", || {
        number += 1;
        logs.save(&mut numbered(number));
        path.exists() && !lines(&path).is_empty()
    });
    // As copytruncate does it.
    std::fs::write(&path, "").unwrap();
    logs.save(&mut numbered(0));
    wait_until("a line in the truncated file", || {
        lines(&path).contains(&"0".to_owned())
    });
    let old = lines(&folder.path().join("requests.log.old"));
    assert_eq!(old.first().map(String::as_str), Some("1"));
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte != 0));
}

#[test]
fn file_is_rotated_by_its_size_and_loses_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.log");
    let sink = Sink::File(FileSink {
        path: path.to_str().unwrap().to_owned(),
        rotate_at: Some(200_000),
        keep: Some(40),
    });
    let log = text_log("rotated", &format!("%REQ(X-NUMBER)% {}\n", "x".repeat(100)));
    let logs = scope(&log, &sink);
    for number in 0..12_000 {
        logs.save(&mut numbered(number));
        if number % 500 == 0 {
            assert!(exporter::flush(Duration::from_secs(30)));
        }
    }
    assert!(exporter::flush(Duration::from_secs(30)));
    let mut numbers = Vec::new();
    let mut files = 0;
    for place in (0..=40).rev() {
        let name = match place {
            0 => path.clone(),
            _ => folder.path().join(format!("requests.log.{place}")),
        };
        if !name.exists() {
            continue;
        }
        files += 1;
        assert!(std::fs::metadata(&name).unwrap().len() < 400_000);
        for line in lines(&name) {
            let (number, rest) = line.split_once(' ').unwrap();
            assert_eq!(rest.len(), 100);
            numbers.push(number.parse::<usize>().unwrap());
        }
    }
    assert!(files > 3, "{files} files");
    assert!(numbers.iter().copied().eq(0..12_000));
}

#[test]
fn unwritable_file_is_retried_until_it_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("requests.log");
    // A folder stands where the file should be.
    std::fs::create_dir(&path).unwrap();
    let logs = scope(&text_log("unwritable", "%REQ(X-NUMBER)%\n"), &file(&path));
    logs.save(&mut numbered(1));
    let place = path.display().to_string();
    wait_until("a failure", || {
        stats::sinks()
            .iter()
            .any(|sink| sink.place == place && sink.failure.is_some())
    });
    assert!(stats::value(Counter::Retries) > 0);
    std::fs::remove_dir(&path).unwrap();
    logs.save(&mut numbered(2));
    wait_until("both lines", || lines(&path) == ["1", "2"]);
}

#[test]
fn exporter_runs_at_sched_idle() {
    const SCHED_IDLE: &str = "5";
    let folder = tempfile::tempdir().unwrap();
    let _logs = scope(&text_log("idle", "\n"), &file(&folder.path().join("log")));
    let policy = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.into_iter().find_map(|task| {
            let path = task.unwrap().path();
            let comm = std::fs::read_to_string(path.join("comm")).ok()?;
            let stat = std::fs::read_to_string(path.join("stat")).ok()?;
            // The 41st field; the second one is in brackets.
            let (_, rest) = stat.rsplit_once(')')?;
            let policy = rest.split_whitespace().nth(38)?.to_owned();
            (comm.trim() == name).then_some(policy)
        })
    };
    // A thread sets its name and its policy itself, after it was started.
    wait_until("the exporter's policy", || {
        policy("outrider-logs").as_deref() == Some(SCHED_IDLE)
    });
    wait_until("the policy of the rescue thread", || {
        policy("outrider-rescue").as_deref() == Some("0")
    });
}
