//! Why Envoy refused configuration, out of its log: its counters tell only that it did.

use std::sync::{Arc, Mutex, PoisonError};

use outrider_envoy_process::{LogLine, reason};

/// How Envoy begins the message that a file was refused.
const REFUSED: &str = "Filesystem config update rejected: ";
/// The component that a dynamic module's log lines carry.
const MODULE: &str = "dynamic_modules";
/// How the module's reason for a refusal follows upon what is refused. Envoy's own message, which comes
/// next, names none.
const OF_MODULE: &str = " is refused: ";

/// Who tells of a refusal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Teller {
    /// The log: the file came from someone else.
    #[default]
    Log,
    /// The supervisor, which handed the file over and waits for the verdict.
    Supervisor,
}

/// Why files were refused, one sentence (or one line for each fault of a plugin) for each refusal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusals(Arc<Mutex<Collected>>);

#[derive(Debug, Default)]
struct Collected {
    reasons: Vec<String>,
    /// What the module said since Envoy's last refusal.
    of_module: Vec<String>,
    teller: Teller,
}

impl Refusals {
    /// From now on, refusals are told by `teller`.
    pub(crate) fn expect(&self, teller: Teller) {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        collected.teller = teller;
    }

    /// Takes what has been collected.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        collected.of_module.clear();
        std::mem::take(&mut collected.reasons)
    }

    /// Collects from one line; true where it is a reason that the supervisor itself tells.
    pub(crate) fn collect(&self, line: &LogLine) -> bool {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if collected.teller == Teller::Log {
            return false;
        }
        if let Some(message) = line.message.strip_prefix(REFUSED) {
            let of_module = std::mem::take(&mut collected.of_module);
            collected.reasons.push(if of_module.is_empty() {
                reason(message)
            } else {
                of_module.join("\n")
            });
            return true;
        }
        if line.component == MODULE
            && line.message.starts_with("filter ")
            && let Some((_, why)) = line.message.split_once(OF_MODULE)
        {
            collected.of_module.push(why.to_owned());
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_kept() {
        let refusals = Refusals::default();
        refusals.expect(Teller::Supervisor);
        let write = |line: &str| refusals.collect(&LogLine::parse(line));
        assert!(write(
            "[t][warning][config] Filesystem config update rejected: no such cluster"
        ));
        assert_eq!(refusals.take(), ["no such cluster"]);
        assert_eq!(refusals.take(), [] as [&str; 0]);
        for why in ["a.lua:1: no", "b.lua:2: nor"] {
            assert!(write(&format!(
                "[t][error][dynamic_modules] filter outrider: the plugins' configuration is refused: {why}"
            )));
        }
        write(
            "[t][warning][config] Filesystem config update rejected: Failed to initialize dynamic module",
        );
        assert_eq!(refusals.take(), ["a.lua:1: no\nb.lua:2: nor"]);
        assert!(!write("[t][warning][config] something else"));
    }
}
