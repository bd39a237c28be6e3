//! Faults on purpose: a delay, an error, or a delay and then an error.

mod config;
mod waiting;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};

use config::{Abort, Config};
use waiting::Waiting;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(FaultInjection { config: None, waiting: Rc::default() }));
}}

/// How often the plugin looks whose wait is over, while anybody waits. Requests go on late by up to this.
const TICK: Duration = Duration::from_millis(5);

/// One configuration of the plugin.
struct FaultInjection {
    config: Option<Rc<Config>>,
    waiting: Rc<RefCell<Waiting>>,
}

impl Context for FaultInjection {}

impl RootContext for FaultInjection {
    fn on_configure(&mut self, _size: usize) -> bool {
        match Config::read(self.get_plugin_configuration().as_deref()) {
            Ok(config) => {
                self.config = Some(Rc::new(config));
                true
            }
            Err(reason) => {
                log::error!("{reason}");
                false
            }
        }
    }

    fn on_tick(&mut self) {
        let Some(config) = &self.config else { return };
        let mut waiting = self.waiting.borrow_mut();
        let due = waiting.take_due(self.get_current_time());
        if waiting.is_empty() {
            self.set_tick_period(Duration::ZERO);
        }
        drop(waiting);

        for (stream, aborted) in due {
            // A tick belongs to no stream; what follows is to happen to this one.
            if hostcalls::set_effective_context(stream).is_err() {
                continue;
            }
            match &config.abort {
                Some(abort) if aborted => abort.send(),
                _ => {
                    let _ = hostcalls::resume_http_request();
                }
            }
        }
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request {
            id,
            config: Rc::clone(self.config.as_ref()?),
            waiting: Rc::clone(&self.waiting),
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// One request.
struct Request {
    id: u32,
    config: Rc<Config>,
    waiting: Rc<RefCell<Waiting>>,
}

impl Context for Request {}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        let delay = self
            .config
            .delay
            .as_ref()
            .filter(|delay| struck(delay.percentage));
        let abort = self
            .config
            .abort
            .as_ref()
            .filter(|abort| struck(abort.percentage));

        if let Some(delay) = delay {
            let until = self.get_current_time() + delay.time;
            let mut waiting = self.waiting.borrow_mut();
            if waiting.is_empty() {
                let _ = hostcalls::set_tick_period(TICK);
            }
            waiting.add(self.id, until, abort.is_some());
            return Action::Pause;
        }
        abort.map_or(Action::Continue, |abort| {
            abort.send();
            Action::Pause
        })
    }
}

impl Drop for Request {
    /// A client may go while its request waits.
    fn drop(&mut self) {
        self.waiting.borrow_mut().remove(self.id);
    }
}

impl Abort {
    /// Answers the current request.
    fn send(&self) {
        let headers: Vec<(&str, &str)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        support::reply(
            self.status,
            &headers,
            self.body.as_bytes(),
            "outrider.fault-injection.abort",
        );
    }
}

/// Whether this request is one of `percentage` in a hundred. The dice is below 1, so 0 means never and 100
/// means always.
fn struck(percentage: f64) -> bool {
    fastrand::f64() * 100.0 < percentage
}
