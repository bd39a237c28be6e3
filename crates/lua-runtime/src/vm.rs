//! One VM with a plugin in it: its pooled coroutines, the configurations that it holds, and what
//! happens when it uses up its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{Metrics, Slot, Stream, Wake};

use crate::ffi::{Context, Entry, LuaError, LuaErrorKind, Outcome, State, Step, Thread};
use crate::outcomes::Verdict;
use crate::shared::Shared;
use crate::streams::Streams;

/// How long loading, or taking a configuration in, may take: these are rare, and may do more than a
/// request's call.
const LOAD_BUDGET: Duration = Duration::from_secs(1);
/// How many free coroutines are kept.
const POOL: usize = 64;

/// A configuration's documents, as a VM takes them in.
#[derive(Debug, Clone)]
pub(crate) struct Documents {
    pub(crate) id: i32,
    pub(crate) effective: Arc<str>,
    pub(crate) base: Option<Arc<str>>,
    pub(crate) route: Option<Arc<str>>,
}

/// Whether a configuration is taken in for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intake {
    /// The plugin's validators run.
    Check,
    /// They have run elsewhere.
    Checked,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) state: State,
    /// The number that streams know the VM by.
    pub(crate) generation: u32,
    /// In bytes.
    memory_budget: usize,
    pool: Vec<Thread>,
    configurations: BTreeSet<i32>,
    /// The one that was used last, which mostly is the one that is used next.
    latest: i32,
    /// Those that `on_configure` refused here, with the reason.
    refused: BTreeMap<i32, LuaError>,
    /// All configurations up to this number are loaded, as far as maker threads have loaded them.
    pub(crate) configured_up_to: i32,
}

impl Vm {
    /// Makes a VM and loads the plugin in it. Answers what the plugin reported, too.
    ///
    /// # Errors
    /// The plugin does not load.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        memory_budget: usize,
        generation: u32,
        metrics: Option<&mut dyn Metrics>,
    ) -> Result<(Self, Vec<(i32, String)>), LuaError> {
        let mut state = State::new(Arc::clone(shared), Streams::new(generation), memory_budget)?;
        let mut texts: Vec<Arc<str>> =
            vec![shared.folder.as_str().into(), shared.entry.as_str().into()];
        texts.extend(shared.files.keys().map(|name| Arc::from(name.as_str())));
        let results = state.enter(Entry::LoadPlugin, &[], texts, metrics, LOAD_BUDGET)?;
        let vm = Self {
            state,
            generation,
            memory_budget,
            pool: Vec::new(),
            configurations: BTreeSet::new(),
            latest: 0,
            refused: BTreeMap::new(),
            configured_up_to: 0,
        };
        Ok((vm, results))
    }

    /// Whether the configuration was the last that was taken in or asked for.
    #[inline]
    pub(crate) fn is_configured(&self, documents: &Documents) -> bool {
        self.latest == documents.id && self.state.unusable().is_none()
    }

    /// Takes a configuration in, unless it is there.
    ///
    /// # Errors
    /// A validator or `on_configure` refuses it.
    pub(crate) fn configure(
        &mut self,
        documents: &Documents,
        intake: Intake,
        metrics: Option<&mut dyn Metrics>,
    ) -> Result<(), LuaError> {
        if self.configurations.contains(&documents.id) {
            self.latest = documents.id;
            return Ok(());
        }
        if let Some(error) = self.refused.get(&documents.id) {
            return Err(error.clone());
        }
        let nothing: Arc<str> = Arc::from("");
        let texts = vec![
            Arc::clone(&documents.effective),
            documents
                .base
                .clone()
                .unwrap_or_else(|| Arc::clone(&nothing)),
            documents.route.clone().unwrap_or(nothing),
        ];
        let numbers = [documents.id, i32::from(intake == Intake::Check)];
        let taken = self
            .state
            .enter(Entry::LoadConfig, &numbers, texts, metrics, LOAD_BUDGET);
        match taken {
            Ok(_) => {
                self.configurations.insert(documents.id);
                self.latest = documents.id;
                Ok(())
            }
            Err(error) => {
                if error.kind != LuaErrorKind::Memory {
                    self.unload(documents.id);
                    if intake == Intake::Checked {
                        self.refused.insert(documents.id, error.clone());
                    }
                }
                Err(error)
            }
        }
    }

    /// Whether the configuration is loaded, or was refused here.
    pub(crate) fn has(&self, documents: &Documents) -> bool {
        self.configurations.contains(&documents.id) || self.refused.contains_key(&documents.id)
    }

    /// The configurations that it has and that are not among `known`.
    pub(crate) fn without(&self, known: &BTreeMap<i32, Documents>) -> Vec<i32> {
        let own = self.configurations.iter().chain(self.refused.keys());
        own.filter(|id| !known.contains_key(id)).copied().collect()
    }

    /// Forgets a configuration.
    pub(crate) fn release_configuration(&mut self, id: i32) {
        if self.latest == id {
            self.latest = 0;
        }
        self.refused.remove(&id);
        if self.configurations.remove(&id) {
            self.unload(id);
        }
    }

    fn unload(&mut self, id: i32) {
        // Clears a place in a table; a VM that cannot do that reports so at its next call.
        let _ = self
            .state
            .enter(Entry::UnloadConfig, &[id], Vec::new(), None, LOAD_BUDGET);
    }

    /// A free coroutine.
    ///
    /// # Errors
    /// The memory budget is used up.
    #[inline]
    pub(crate) fn thread(&mut self) -> Result<Thread, LuaError> {
        match self.pool.pop() {
            Some(thread) => Ok(thread),
            None => self.state.thread(),
        }
    }

    /// A coroutine whose handler has returned.
    pub(crate) fn reuse(&mut self, thread: Thread) {
        if self.pool.len() < POOL {
            self.pool.push(thread);
        } else {
            self.state.release(thread);
        }
    }

    /// Goes on with a coroutine after an event. What it does not take of the event is kept; parts of HTTP
    /// streams are always taken from what is kept.
    pub(crate) fn resume(
        &mut self,
        thread: &Thread,
        wake: &Wake<'_>,
        mut context: Context<'_, '_>,
    ) -> Outcome {
        if matches!(wake, Wake::HttpStream(..)) {
            let mut slot = context.slot;
            self.keep(&mut slot, wake, context.stream);
            context.slot = slot;
            return self.state.resume(thread, context);
        }
        let mut outcome = self.state.resume(thread, context);
        if !outcome.wake_taken && !matches!(outcome.step, Step::Failed(_)) {
            let budget = self.memory_budget;
            self.state.streams().keep(&mut outcome.slot, wake, budget);
        }
        outcome
    }

    /// Keeps what came until a handler asks for it. An HTTP stream of which more comes than is kept ends.
    pub(crate) fn keep(&mut self, slot: &mut Slot, wake: &Wake<'_>, stream: &mut dyn Stream) {
        let budget = self.memory_budget;
        if let Verdict::Cancel(id) = self.state.streams().keep(slot, wake, budget) {
            stream.cancel(id);
        }
    }

    /// Ends a stream's shared table.
    pub(crate) fn end_shared(&mut self, index: u32) {
        // Empties a table; as `unload`.
        let _ = self.state.enter(
            Entry::EndStream,
            &[i32::try_from(index).unwrap_or(-1)],
            Vec::new(),
            None,
            LOAD_BUDGET,
        );
    }
}
