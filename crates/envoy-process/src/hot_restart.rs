//! Envoy's hot restart: a new Envoy gets the listening sockets of the one before it, with the connections that wait in
//! them, and has it drain.
//!
//! Both have the same base id and the same path of sockets, and the new one an epoch that is one higher
//! (<https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/operations/hot_restart>). What the new one says of
//! connections and requests includes those of the other until that has ended; so do its counters, from its first flush of
//! statistics on ([`FIRST_FLUSH`]).
//!
//! The trap: the new Envoy asks the other for statistics every 5 s, and aborts where nobody answers. So nobody may end the
//! other but the new one, after [`HotRestart::ends_after`].

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// By then an Envoy has added what the one before it counted to its own counters: its first flush of statistics is after
/// 5 s.
pub const FIRST_FLUSH: Duration = Duration::from_secs(7);

/// The longest name that Envoy puts after the path of its sockets.
const LONGEST_SUFFIX: &str = "_udp_parent_18446744073709551615";
/// `sun_path` of unix(7), with the zero byte at the end.
const LONGEST_ADDRESS: usize = 108;

/// An Envoy among those that take over from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// What they have in common.
    pub base_id: u32,
    /// How many there were before it.
    pub epoch: u32,
}

/// How an Envoy is started that can be taken over from.
#[derive(Debug, Clone)]
pub struct HotRestart {
    /// A folder that only this user may enter, for sockets: [`HotRestart::fits`].
    pub folder: PathBuf,
    /// The Envoy that this one takes over from, if any.
    pub from: Option<Generation>,
    /// The Envoy that this one takes over from is ended by this one after this time; at least 1 s.
    pub ends_after: Duration,
}

impl HotRestart {
    /// Whether the addresses of sockets in this folder are short enough.
    pub fn fits(folder: &Path) -> bool {
        path(folder).as_os_str().len() + LONGEST_SUFFIX.len() < LONGEST_ADDRESS
    }

    pub(crate) fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = vec![
            "--socket-path".into(),
            path(&self.folder).into(),
            "--socket-mode".into(),
            "600".into(),
            "--parent-shutdown-time-s".into(),
            self.ends_after.as_secs().max(1).to_string().into(),
        ];
        match self.from {
            Some(from) => arguments.extend([
                "--base-id".into(),
                from.base_id.to_string().into(),
                "--restart-epoch".into(),
                (from.epoch + 1).to_string().into(),
            ]),
            None => arguments.extend([
                "--use-dynamic-base-id".into(),
                "--base-id-path".into(),
                self.base_id_file().into(),
            ]),
        }
        arguments
    }

    /// Which one the Envoy is that was started so. `None`: it has not said so yet.
    pub(crate) fn generation(&self) -> Option<Generation> {
        if let Some(from) = self.from {
            return Some(Generation {
                base_id: from.base_id,
                epoch: from.epoch + 1,
            });
        }
        let text = fs::read_to_string(self.base_id_file()).ok()?;
        Some(Generation {
            base_id: text.trim().parse().ok()?,
            epoch: 0,
        })
    }

    /// Removes what the last Envoy of a base id leaves: a page of shared memory.
    pub(crate) fn clean(&self) {
        if let Some(Generation { base_id, .. }) = self.generation() {
            // Envoy multiplies it by ten.
            let name = format!("envoy_shared_memory_{}", u64::from(base_id) * 10);
            let _ = fs::remove_file(Path::new("/dev/shm").join(name));
        }
        let _ = fs::remove_file(self.base_id_file());
    }

    fn base_id_file(&self) -> PathBuf {
        self.folder.join("base-id")
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("e")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_folders_do_not_fit() {
        assert!(HotRestart::fits(Path::new(
            "/run/user/1000/outrider-1234abcd"
        )));
        assert!(!HotRestart::fits(Path::new(&format!(
            "/{}",
            "f".repeat(80)
        ))));
    }

    #[test]
    fn the_first_says_its_base_id_in_a_file_and_the_next_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = HotRestart {
            folder: folder.path().to_owned(),
            from: None,
            ends_after: Duration::from_secs(9),
        };
        assert_eq!(first.generation(), None);
        fs::write(folder.path().join("base-id"), "253328390\n").unwrap();
        let from = first.generation().unwrap();
        assert_eq!((from.base_id, from.epoch), (253_328_390, 0));
        let second = HotRestart {
            from: Some(from),
            ..first
        };
        assert_eq!(second.generation().unwrap().epoch, 1);
        let arguments = second.arguments().join(" ".as_ref());
        let arguments = arguments.to_str().unwrap();
        assert!(
            arguments.contains("--base-id 253328390 --restart-epoch 1"),
            "{arguments}"
        );
        assert!(
            arguments.contains("--parent-shutdown-time-s 9"),
            "{arguments}"
        );
    }
}
