//! Limits of a plugin: what `outrider.yaml` or the default grants, and what the plugin's manifest makes of it.
//!
//! Authors of plugins are not trusted, so a manifest makes a limit stricter and never laxer. A manifest that asks
//! for more is a warning with the line that grants it, unless `outrider.yaml` has a value for the key.

use outrider_plugin_formats::{
    Budgets, Circuit, CircuitLimits, CircuitOff, Manifest, Places, Problem,
};
use outrider_yaml::{Field, Location, Shape};

use super::Origin;
use crate::model;
use crate::plan::{Limit, Place};

/// Limits that hold for a plugin.
pub(super) struct Granted {
    pub(super) budgets: Budgets,
    pub(super) circuit: Circuit,
    /// Each value with its source.
    pub(super) limits: Vec<Limit>,
    /// Values of the manifest that exceed the default, and values of `outrider.yaml` that the manifest undercuts.
    pub(super) warnings: Vec<Problem>,
}

/// The plugin's declaration and its manifest.
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) origin: &'a Origin,
    pub(super) declared: &'a model::Plugin,
    pub(super) manifest: &'a Manifest,
    pub(super) places: &'a Places,
}

/// Which of two values of a limit is the stricter.
#[derive(Clone, Copy)]
enum Stricter {
    Smaller,
    Larger,
}

/// A value of `outrider.yaml`.
#[derive(Clone, Copy)]
struct Written {
    value: u32,
    location: Location,
}

impl Written {
    fn of<const MIN: u32, const MAX: u32>(field: &Field<model::Number<MIN, MAX>>) -> Option<Self> {
        field.get().map(|number| Self {
            value: number.value.0,
            location: number.location,
        })
    }
}

/// Returns the limits that hold for a plugin.
pub(super) fn grant(request: &Request<'_>) -> Granted {
    let mut collector = Collector {
        request,
        limits: Vec::new(),
        warnings: Vec::new(),
    };
    let budgets = collector.budgets();
    let circuit = collector.circuit();
    collector.shared_data();
    Granted {
        budgets,
        circuit,
        limits: collector.limits,
        warnings: collector.warnings,
    }
}

struct Collector<'a> {
    request: &'a Request<'a>,
    limits: Vec<Limit>,
    warnings: Vec<Problem>,
}

impl Collector<'_> {
    fn budgets(&mut self) -> Budgets {
        let default = Budgets::of(self.request.manifest.runtime);
        let asked = self.request.manifest.budgets.unwrap_or_default();
        let form = self.request.declared.budgets.value();
        let (mut time, mut memory, mut share) = (None, None, None);
        if let Some(form) = form {
            time = Written::of(&form.time_ms);
            memory = Written::of(&form.memory_mib);
            share = Written::of(&form.share);
        }
        let mut least = |key, written, default, asked| {
            self.limit(key, Stricter::Smaller, written, default, asked)
        };
        Budgets {
            time_ms: least("budgets.time_ms", time, default.time_ms, asked.time_ms),
            memory_mib: least(
                "budgets.memory_mib",
                memory,
                default.memory_mib,
                asked.memory_mib,
            ),
            share: least("budgets.share", share, default.share, asked.share),
        }
    }

    /// A circuit is the stricter, the fewer failures open it, and the longer it is open.
    fn circuit(&mut self) -> Circuit {
        let asked = self.request.manifest.circuit;
        let form = match self.request.declared.circuit.get() {
            Some(field) => match &field.value {
                Shape::Text(off) => return self.circuit_that_is_off(*off, field.location, asked),
                Shape::Mapping(form) => Some(form),
            },
            None => None,
        };
        let default = CircuitLimits::default();
        if let (Some(Circuit::Off(_)), None) = (asked, form) {
            let granted = format!("one that opens after {} failures", default.failures);
            self.warn_denied("circuit", "off", &granted);
        }
        let asked = |key: &str, value: fn(CircuitLimits) -> u32| {
            let limits = asked.and_then(Circuit::limits)?;
            self.request.places.has(key).then(|| value(limits))
        };
        let failures = asked("circuit.failures", |limits| limits.failures);
        let pause = asked("circuit.pause_ms", |limits| limits.pause_ms);
        let longest = asked("circuit.longest_pause_ms", |limits| limits.longest_pause_ms);
        Circuit::On(CircuitLimits {
            failures: self.limit(
                "circuit.failures",
                Stricter::Smaller,
                form.and_then(|form| Written::of(&form.failures)),
                default.failures,
                failures,
            ),
            pause_ms: self.limit(
                "circuit.pause_ms",
                Stricter::Larger,
                form.and_then(|form| Written::of(&form.pause_ms)),
                default.pause_ms,
                pause,
            ),
            longest_pause_ms: self.limit(
                "circuit.longest_pause_ms",
                Stricter::Larger,
                form.and_then(|form| Written::of(&form.longest_pause_ms)),
                default.longest_pause_ms,
                longest,
            ),
        })
    }

    /// `circuit: off` in `outrider.yaml`, which a manifest with a circuit of its own undercuts.
    fn circuit_that_is_off(
        &mut self,
        off: CircuitOff,
        location: Location,
        asked: Option<Circuit>,
    ) -> Circuit {
        match asked {
            Some(circuit @ Circuit::On(_)) => {
                self.warn_undercut("circuit", "off", location);
                circuit
            }
            _ => Circuit::Off(off),
        }
    }

    /// Shared data joins plugins, which only `outrider.yaml` may do.
    fn shared_data(&mut self) {
        let Some(wasm) = &self.request.manifest.wasm else {
            return;
        };
        let form = self.request.declared.wasm.value();
        let is_decided = form.is_some_and(|form| !form.shared.is_missing());
        if !wasm.shared.is_empty() && !is_decided {
            self.warn_denied("wasm.shared", &wasm.shared, "shared data of its own");
        }
    }

    /// Returns the stricter of two values, and records its source.
    fn limit(
        &mut self,
        key: &'static str,
        stricter: Stricter,
        written: Option<Written>,
        default: u32,
        asked: Option<u32>,
    ) -> u32 {
        let granted = written.map_or(default, |written| written.value);
        let mut set_by = written.map(|written| Place {
            file: self.request.origin.file.to_string(),
            line: written.location.line,
        });
        let mut value = granted;
        if let Some(asked) = asked.filter(|asked| *asked != granted) {
            let is_stricter = match stricter {
                Stricter::Smaller => asked < granted,
                Stricter::Larger => asked > granted,
            };
            if is_stricter {
                value = asked;
                set_by = Some(Place {
                    file: self.request.places.file.clone(),
                    line: self.request.places.of(key).0,
                });
                if let Some(written) = written {
                    self.warn_undercut(key, &granted.to_string(), written.location);
                }
            } else if written.is_none() {
                // A value in `outrider.yaml` is a decision that needs no warning.
                self.warn_denied(key, &asked.to_string(), &granted.to_string());
            }
        }
        self.limits.push(Limit { key, value, set_by });
        value
    }

    /// The manifest asks for more than is granted.
    fn warn_denied(&mut self, key: &str, asked: &str, granted: &str) {
        let Request { name, places, .. } = self.request;
        let (line, column) = places.of(key);
        self.warnings.push(Problem {
            file: places.file.clone(),
            line,
            column,
            message: format!(
                "the plugin `{name}` asks for `{key}: {asked}` and gets {granted}: a manifest does not widen limits"
            ),
            mend: Some(format!(
                "to grant it, write `plugins.{name}.{key}: {asked}` in outrider.yaml"
            )),
        });
    }

    /// The manifest has a stricter value than `outrider.yaml`.
    fn warn_undercut(&mut self, key: &str, granted: &str, location: Location) {
        let Request {
            name,
            places,
            origin,
            ..
        } = self.request;
        self.warnings.push(Problem {
            file: origin.file.to_string(),
            line: location.line,
            column: location.column,
            message: format!(
                "`{key}: {granted}` has no effect: the manifest of the plugin `{name}` has a stricter value, \
                 {}:{}",
                places.file,
                places.of(key).0
            ),
            mend: Some(format!("remove `{key}` from the manifest, or from here")),
        });
    }
}
