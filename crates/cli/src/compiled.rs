//! Where the compiled code of Wasm plugins is kept, and what is told while it is made, which takes long
//! for a large module.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::output::{self, DIM, Styled};
use crate::trial::LoadLine;

/// What takes no longer than this is not told of.
const UNTOLD: Duration = Duration::from_millis(500);
/// How often is told that it goes on.
const AGAIN: Duration = Duration::from_secs(5);

/// The user's folder of compiled code, `outrider/compiled` in `$XDG_CACHE_HOME` or `~/.cache`; none where
/// neither is known. Envoy is told of it, and makes it if need be.
pub(crate) fn folder() -> Option<PathBuf> {
    // The XDG Base Directory Specification: a path that is not absolute counts as not set.
    let named = |variable: &str| {
        let path = env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let caches = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(caches.join("outrider").join("compiled"))
}

/// What there is to warn of about the folder, among what was logged while plugins loaded.
pub(crate) fn warnings(lines: &[LoadLine]) -> Vec<String> {
    let Some(folder) = folder() else {
        return Vec::new();
    };
    about(&folder, lines)
}

fn about(folder: &Path, lines: &[LoadLine]) -> Vec<String> {
    let folder = folder.display().to_string();
    lines
        .iter()
        .filter(|line| line.level == "warning" && line.message.contains(&folder))
        .map(|line| format!("plugin {}: {}", line.plugin, line.message))
        .collect()
}

/// Does work that may compile a module of `size` bytes, and starts its guest; if it takes long, says of which plugin it
/// is, and when it is done.
pub(crate) fn telling<T>(plugin: &str, size: usize, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let (done, wait) = channel::<()>();
    let plugin = plugin.to_owned();
    let teller = thread::spawn(move || {
        let mut next = UNTOLD;
        let mut was_told = false;
        // The sender sends nothing: it ends.
        while wait.recv_timeout(next) == Err(RecvTimeoutError::Timeout) {
            output::note(Styled(
                DIM,
                if was_told {
                    format!(
                        "  still compiling plugin {plugin}, or starting its guest: {}",
                        seconds(begun)
                    )
                } else {
                    format!(
                        "compiling plugin {plugin} ({} MiB), which is kept for the next time, and starting its guest",
                        tenths(size)
                    )
                },
            ));
            was_told = true;
            next = AGAIN;
        }
        if was_told {
            output::note(Styled(
                DIM,
                format!("  plugin {plugin} is loaded after {}", seconds(begun)),
            ));
        }
    });
    let result = work();
    drop(done);
    // It only prints; a failure to do so is no fault of the work.
    let _ = teller.join();
    result
}

fn seconds(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f64())
}

/// Bytes as MiB with one digit behind the point.
fn tenths(size: usize) -> String {
    let tenths = size.saturating_mul(10).div_ceil(1024 * 1024);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_those_about_the_folder() {
        let line = |level: &'static str, message: &str| LoadLine {
            plugin: "waf".to_owned(),
            level: level.into(),
            message: message.to_owned(),
        };
        let lines = [
            line(
                "warning",
                "/cache/compiled/ab is damaged; the module is compiled again",
            ),
            line("warning", "the rules are old"),
            line("info", "/cache/compiled is nice"),
        ];
        assert_eq!(
            about(Path::new("/cache/compiled"), &lines),
            ["plugin waf: /cache/compiled/ab is damaged; the module is compiled again"]
        );
    }
}
