//! What one plugin may ask of the proxy without a stream: the proxy's [`Background`] behind the plugin's
//! permissions and its log budget.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::background::{Background, CalloutDone, HttpStreamHandle, HttpStreamTold};
use crate::callout::{CalloutFailure, CalloutRequest, HttpStreamRequest};
use crate::log_budget::{LogAdmission, LogBudget, log_line};
use crate::memory::{ENTRY_COST, MemoryAccount, MemoryExceeded, Reservation, headers_cost};
use crate::metric::MetricId;
use crate::permissions::Permissions;
use crate::stream::LogLevel;

/// Permissions, log budget and memory account of one plugin as its newest configuration has them. Code that several
/// configurations share sees the newest.
#[derive(Debug, Default)]
pub struct PluginLimits {
    permissions: RwLock<Arc<Permissions>>,
    logs: Arc<LogBudget>,
    memory: Arc<MemoryAccount>,
}

impl PluginLimits {
    /// Limits with these permissions, the default log budget and the default memory account.
    pub fn new(permissions: Permissions) -> Self {
        Self {
            permissions: RwLock::new(Arc::new(permissions)),
            logs: Arc::default(),
            memory: Arc::default(),
        }
    }

    /// The plugin's permissions now.
    pub fn permissions(&self) -> Arc<Permissions> {
        // The lock holds an `Arc`, which is valid whatever panicked.
        Arc::clone(
            &self
                .permissions
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Replaces the permissions, for calls that follow.
    pub fn set_permissions(&self, permissions: Arc<Permissions>) {
        *self
            .permissions
            .write()
            .unwrap_or_else(PoisonError::into_inner) = permissions;
    }

    /// The plugin's log budget.
    pub fn logs(&self) -> &Arc<LogBudget> {
        &self.logs
    }

    /// The plugin's memory account.
    pub fn memory(&self) -> &Arc<MemoryAccount> {
        &self.memory
    }
}

/// The proxy's background services for one plugin.
#[derive(Debug)]
pub struct PluginBackground {
    proxy: Arc<dyn Background>,
    plugin: Arc<str>,
    limits: Arc<PluginLimits>,
    log_dropped: Option<MetricId>,
}

impl PluginBackground {
    /// The services of `proxy` for a plugin. `log_dropped` counts log lines that its budget drops.
    pub fn new(
        proxy: Arc<dyn Background>,
        plugin: &str,
        limits: Arc<PluginLimits>,
        log_dropped: Option<MetricId>,
    ) -> Self {
        Self {
            proxy,
            plugin: plugin.into(),
            limits,
            log_dropped,
        }
    }

    /// Reserves the memory of a request that the plugin sends.
    fn reserve_request(
        &self,
        headers: &[(&[u8], &[u8])],
        body: &[u8],
    ) -> Result<Reservation, MemoryExceeded> {
        let bytes = ENTRY_COST + headers_cost(headers) + body.len();
        let reserved = self.limits.memory.reserve(bytes);
        reserved.inspect_err(|exceeded| self.log_exceeded(*exceeded))
    }

    fn log_exceeded(&self, exceeded: MemoryExceeded) {
        if self.limits.memory.logs_refusal(unix_millis()) {
            let message = log_line(&exceeded.to_string()).into_owned();
            self.proxy.log(LogLevel::Warn, &self.plugin, &message);
        }
    }

    /// Returns the cluster for a callout with these headers; logs a denial.
    fn cluster_of<'a>(
        &self,
        permissions: &'a Permissions,
        upstream: &'a [u8],
        headers: &[(&[u8], &[u8])],
    ) -> Result<&'a [u8], CalloutFailure> {
        let cluster = permissions
            .callout_cluster(upstream)
            .inspect_err(|_denied| {
                self.log_denial(
                    permissions,
                    &permissions.upstream_denied(&self.plugin, upstream),
                );
            })?;
        permissions
            .callout_headers(headers)
            .inspect_err(|denied| self.log_denial(permissions, &denied.to_string()))?;
        Ok(cluster)
    }

    fn log_denial(&self, permissions: &Permissions, message: &str) {
        if permissions.logs_denial(unix_millis()) {
            self.proxy
                .log(LogLevel::Warn, &self.plugin, &log_line(message));
        }
    }
}

fn unix_millis() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// An HTTP stream with the memory of what was sent on it, which is freed with the handle.
#[derive(Debug)]
struct CountedHandle {
    // First, so that the stream is reset before its memory counts as free.
    handle: Box<dyn HttpStreamHandle>,
    memory: Mutex<Reservation>,
}

impl HttpStreamHandle for CountedHandle {
    fn send(&self, data: &[u8], end_of_stream: bool) -> Result<(), CalloutFailure> {
        // A number is valid whatever panicked.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.grow(data.len())?;
        drop(memory);
        self.handle.send(data, end_of_stream)
    }
}

impl Background for PluginBackground {
    fn is_there(&self) -> bool {
        self.proxy.is_there()
    }

    fn ring_in(&self, delay: Duration) {
        self.proxy.ring_in(delay);
    }

    fn start_callout(
        &self,
        request: &CalloutRequest<'_>,
        done: CalloutDone,
    ) -> Result<(), CalloutFailure> {
        let permissions = self.limits.permissions();
        let cluster = self.cluster_of(&permissions, request.cluster, request.headers)?;
        let memory = self.reserve_request(request.headers, request.body)?;
        let request = CalloutRequest {
            cluster,
            ..*request
        };
        // Until the callout is over, or the proxy drops it.
        let done: CalloutDone = Box::new(move |outcome| {
            drop(memory);
            done(outcome);
        });
        self.proxy.start_callout(&request, done)
    }

    fn start_http_stream(
        &self,
        request: &HttpStreamRequest<'_>,
        told: HttpStreamTold,
    ) -> Result<Box<dyn HttpStreamHandle>, CalloutFailure> {
        let permissions = self.limits.permissions();
        let cluster = self.cluster_of(&permissions, request.cluster, request.headers)?;
        let memory = Mutex::new(self.reserve_request(request.headers, request.body)?);
        let request = HttpStreamRequest {
            cluster,
            ..*request
        };
        let handle = self.proxy.start_http_stream(&request, told)?;
        Ok(Box::new(CountedHandle { handle, memory }))
    }

    fn reserve(&self, bytes: usize) -> Result<Option<Reservation>, MemoryExceeded> {
        let reserved = self.limits.memory.reserve(bytes).map(Some);
        reserved.inspect_err(|exceeded| self.log_exceeded(*exceeded))
    }

    fn add_metric(&self, metric: MetricId, amount: i64) -> bool {
        self.proxy.add_metric(metric, amount)
    }

    fn record_metric(&self, metric: MetricId, value: u64) -> bool {
        self.proxy.record_metric(metric, value)
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        self.proxy.log_enabled(level)
    }

    fn log(&self, level: LogLevel, plugin: &str, message: &str) {
        if !self.proxy.log_enabled(level) {
            return;
        }
        let line = log_line(message);
        match self.limits.logs.admit(line.len()) {
            LogAdmission::Written => self.proxy.log(level, plugin, &line),
            LogAdmission::Dropped => {}
            LogAdmission::Reported(report) => self.proxy.log(LogLevel::Warn, plugin, &report),
        }
        let dropped = self.limits.logs.take_dropped();
        if dropped > 0
            && let Some(metric) = self.log_dropped
        {
            self.proxy
                .add_metric(metric, i64::try_from(dropped).unwrap_or(i64::MAX));
        }
    }
}
