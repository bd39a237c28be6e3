//! Turns what Envoy writes when it refuses something into one sentence.
//!
//! Envoy's messages are true and long: whole protobuf messages, chains of causes. The rules here know
//! the faults that users meet; anything else is shortened, never hidden.

use crate::log::{Level, LogLine};

/// What ends a process at once, without a word in its log.
const KILL: i32 = 9;

/// The sentence for the end of an Envoy that wrote these lines last, and that a signal ended if one
/// is named.
pub(crate) fn of_end(lines: &[LogLine], signal: Option<i32>) -> String {
    if signal == Some(KILL) {
        return "something killed it; if nobody did, the kernel may have, for want of memory"
            .to_owned();
    }
    let told = |at_least: Level| {
        lines.iter().rev().find(move |line| {
            line.level >= at_least && !["stderr", "backtrace"].contains(&line.component.as_str())
        })
    };
    // A crash is told before its many frames.
    let crash = lines
        .iter()
        .rev()
        .find(|line| line.component == "backtrace" && line.message.starts_with("Caught "));
    // Faults of the kind that ends Envoy come before the last words, which only repeat them.
    let last = crash
        .or_else(|| told(Level::Critical))
        .or_else(|| told(Level::Error))
        .or_else(|| lines.last());
    last.map_or_else(
        || "it wrote nothing".to_owned(),
        |line| reason(&line.message),
    )
}

/// Envoy's reason for refusing something, as one sentence without a full stop.
pub fn reason(message: &str) -> String {
    let message = message.trim();
    // What follows is the configuration, which may contain anything.
    let message = between(message, "error `", "` initializing config").unwrap_or(message);
    known(message).unwrap_or_else(|| shorten(message))
}

fn known(message: &str) -> Option<String> {
    if let Some(address) = between(message, "cannot bind '", "'") {
        let why = if message.contains("Address already in use") {
            "another process listens there"
        } else if message.contains("Permission denied") {
            "this user may not listen there"
        } else if message.contains("Cannot assign requested address") {
            "this machine does not have that address"
        } else {
            message
                .rsplit_once("': ")
                .map_or(message, |(_, why)| why)
                .trim()
        };
        return Some(format!("Envoy cannot listen on {address}: {why}"));
    }
    if message.contains("Failed to load dynamic module")
        || message.contains("Unable to load dynamic module")
    {
        let why = if message.contains("cannot open shared object file") {
            "it is not in the folder that Envoy searches"
        } else {
            message.rsplit_once(": ").map_or(message, |(_, why)| why)
        };
        return Some(format!(
            "Envoy cannot load Outrider's module liboutrider.so: {}",
            why.trim()
        ));
    }
    for (start, what) in [
        ("Failed to load certificate chain from ", "certificate"),
        ("Failed to load incomplete certificate from ", "certificate"),
        ("Failed to load private key from ", "private key"),
    ] {
        if let Some((_, rest)) = message.split_once(start) {
            let file = rest.split([',', '\n']).next().unwrap_or(rest);
            let file = file.split(": ").next().unwrap_or(file).trim();
            let why = if message.contains("KEY_VALUES_MISMATCH") {
                "it does not belong to the certificate"
            } else {
                "it is damaged, or not a PEM file of this kind"
            };
            return Some(format!("Envoy cannot use the {what} {file}: {why}"));
        }
    }
    if let Some(path) = between(message, "Invalid path: ", "`").or_else(|| {
        message
            .rsplit_once("Invalid path: ")
            .map(|(_, path)| path.trim())
    }) {
        return Some(format!("Envoy cannot read the file {path}"));
    }
    None
}

/// The innermost cause of a message that no rule knows, in at most 600 characters.
fn shorten(message: &str) -> String {
    let mut text = message;
    if let Some((_, rest)) = text.split_once("Filesystem config update rejected: ") {
        text = rest;
    }
    if let Some((_, rest)) = text.rsplit_once("Proto constraint validation failed ") {
        text = rest
            .rsplit_once("caused by ")
            .map_or(rest, |(_, cause)| cause)
            .trim_matches(['(', ')', ' ', '\n']);
    }
    let mut short: String = text.trim().chars().take(600).collect();
    if short.chars().count() == 600 {
        short.push('…');
    }
    short
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(inner, _)| inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each message as a stock Envoy 1.40 wrote it.
    #[test]
    fn faults_that_users_meet() {
        let cases = [
            (
                "error `cannot bind '127.0.0.1:18991': Address already in use` initializing config 'goo.gle/debugproto  b2.yaml'",
                "Envoy cannot listen on 127.0.0.1:18991: another process listens there",
            ),
            (
                "Error adding/updating listener(s) main: cannot bind '10.9.8.7:80': Cannot assign requested address\n",
                "Envoy cannot listen on 10.9.8.7:80: this machine does not have that address",
            ),
            (
                "Failed to load dynamic module: Failed to load dynamic module: liboutrider.so not found in any search path: /a/liboutrider.so or failed to initialize: Failed to load dynamic module: liboutrider.so : liboutrider.so: cannot open shared object file: No such file or directory",
                "Envoy cannot load Outrider's module liboutrider.so: it is not in the folder that Envoy searches",
            ),
            (
                "error `Failed to load dynamic module: /a/liboutrider.so : /a/liboutrider.so: file too short` initializing config ' {layers: [{name: a}]} /b/bootstrap.json'",
                "Envoy cannot load Outrider's module liboutrider.so: file too short",
            ),
            (
                "Failed to load dynamic module: /a/liboutrider.so : /a/liboutrider.so: invalid ELF header",
                "Envoy cannot load Outrider's module liboutrider.so: invalid ELF header",
            ),
            (
                "error `Invalid path: nope.yaml` initializing config 'goo.gle/debugonly nope.yaml'",
                "Envoy cannot read the file nope.yaml",
            ),
            (
                "Filesystem config update rejected: name: \"main\"\n: Proto constraint validation failed (RouteConfigurationValidationError.VirtualHosts[0]: embedded message failed validation | caused by DirectResponseActionValidationError.Status: value must be inside range [200, 600))",
                "DirectResponseActionValidationError.Status: value must be inside range [200, 600",
            ),
            (
                "Error adding/updating listener(s) main: Failed to load certificate chain from /a/bad.pem\n",
                "Envoy cannot use the certificate /a/bad.pem: it is damaged, or not a PEM file of this kind",
            ),
            (
                "Error adding/updating listener(s) main: Failed to load private key from /a/k2.pem, Cause: error:0b000074:X.509 certificate routines:OPENSSL_internal:KEY_VALUES_MISMATCH\n",
                "Envoy cannot use the private key /a/k2.pem: it does not belong to the certificate",
            ),
            (
                "Error adding/updating listener(s) main: Failed to load incomplete certificate from /a/none.pem: certificate chain not set\n",
                "Envoy cannot use the certificate /a/none.pem: it is damaged, or not a PEM file of this kind",
            ),
            ("something else\n", "something else"),
        ];
        for (message, sentence) in cases {
            assert_eq!(reason(message), sentence);
        }
    }

    #[test]
    fn the_end_is_told_by_the_gravest_line() {
        let lines: Vec<LogLine> = [
            "[t][info][main] starting",
            "[t][critical][main] error `yaml-cpp: error at line 2` initializing config 'b'",
            "yaml-cpp: error at line 2",
            "[t][info][main] exiting",
        ]
        .into_iter()
        .map(LogLine::parse)
        .collect();
        assert_eq!(of_end(&lines, None), "yaml-cpp: error at line 2");
        let crash: Vec<LogLine> = [
            "[t][error][dynamic_modules] plugin a: main.lua:3: oh",
            "[t][critical][backtrace] Caught Segmentation fault, suspect faulting address 0x6e4",
            "[t][critical][backtrace] #0: [0x7f024997c050]",
        ]
        .into_iter()
        .map(LogLine::parse)
        .collect();
        assert_eq!(
            of_end(&crash, Some(11)),
            "Caught Segmentation fault, suspect faulting address 0x6e4"
        );
        assert_eq!(of_end(&lines[2..3], None), "yaml-cpp: error at line 2");
        assert_eq!(of_end(&[], None), "it wrote nothing");
    }

    #[test]
    fn who_is_killed_does_not_blame_its_last_line() {
        let line = LogLine::parse("[t][info][upstream] lds: add/update listener 'main'");
        assert_eq!(
            of_end(&[line], Some(KILL)),
            "something killed it; if nobody did, the kernel may have, for want of memory"
        );
    }
}
