//! What the caller says of a plugin that is to be loaded.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrider_plugin_api::{Background, LateMetrics};
use outrider_vm_pool::ThreadClock;

/// A plugin's file and its settings.
#[derive(Debug, Clone)]
pub struct WasmSource {
    /// The plugin's name.
    pub name: String,
    /// Its file as its author knows it, relative to the plugin's folder, for messages.
    pub file: String,
    /// Its module.
    pub module: WasmModule,
    /// How many bytes each VM's memory may have.
    pub memory_budget: usize,
    /// How long one call may take.
    pub time_budget: Duration,
    /// Where compiled code is kept, and found again by the module's digest; none: it is compiled each time.
    pub compiled_folder: Option<PathBuf>,
    /// How it is run.
    pub options: WasmOptions,
    /// What time it is.
    pub clock: Clock,
    /// What the proxy does for plugins where there is no stream; none: nothing, so that what would be done there
    /// is done while streams pass.
    pub background: Option<Arc<dyn Background>>,
    /// Where metrics are defined that guests define after their configuration; `None`: such metrics are counted for
    /// the guests alone.
    pub late_metrics: Option<Arc<dyn LateMetrics>>,
    /// The part of each worker's CPU time that the plugin may use over a short window, in per cent; 100: any.
    pub share: u32,
    /// Reads the CPU time of threads, for time budgets and shares.
    pub cpu_clock: &'static dyn ThreadClock,
}

/// SHA-256 of a module's file.
pub type Digest = [u8; 32];

/// A plugin's module: its file's bytes, or where to read them if need be.
#[derive(Clone)]
pub struct WasmModule {
    digest: Digest,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Memory(Arc<[u8]>),
    File(PathBuf),
}

impl WasmModule {
    /// The module in a file of this digest. The file is read, and compared with the digest, only where the
    /// module's compiled code is not at hand.
    pub fn in_file(file: PathBuf, digest: Digest) -> Self {
        Self {
            digest,
            place: Place::File(file),
        }
    }

    /// The file's digest.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// The file cannot be read, or is another one; the text goes on after the file's name.
    pub(crate) fn bytes(&self) -> Result<Arc<[u8]>, String> {
        let file = match &self.place {
            Place::Memory(bytes) => return Ok(Arc::clone(bytes)),
            Place::File(file) => file,
        };
        let bytes = fs::read(file)
            .map_err(|error| format!("({}) cannot be read: {error}", file.display()))?;
        let digest = digest(&bytes);
        if digest == self.digest {
            Ok(bytes.into())
        } else {
            Err(format!(
                "({}) has the digest {}, but the configuration was made for {}; make the configuration anew from \
                 the file as it is now",
                file.display(),
                written(&digest),
                written(&self.digest)
            ))
        }
    }
}

impl From<Arc<[u8]>> for WasmModule {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self {
            digest: digest(&bytes),
            place: Place::Memory(bytes),
        }
    }
}

impl std::fmt::Debug for WasmModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&written(&self.digest))
    }
}

fn digest(bytes: &[u8]) -> Digest {
    let mut result = [0; 32];
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    for (byte, from) in result.iter_mut().zip(digest.as_ref()) {
        *byte = *from;
    }
    result
}

/// A digest as documents have it.
fn written(digest: &Digest) -> String {
    let mut text = "sha256:".to_owned();
    for byte in digest {
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
    text
}

/// What guests are told the time is. Tests put their own in the place of the system's.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// A clock that answers the time since the Unix epoch.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Time since the Unix epoch.
    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Clock {
    /// The system's.
    fn default() -> Self {
        Self::new(|| {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
        })
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// How a plugin is run.
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasmOptions {
    /// Host functions answer what helps plugins' authors, where Envoy's host does not.
    pub relaxed: bool,
    /// `StopIteration` of a headers callback stops the headers only: body callbacks still come.
    pub allow_on_headers_stop_iteration: bool,
    /// Environment variables of the guest.
    pub environment: BTreeMap<String, String>,
    /// Keys of shared data and names of queues are apart for each.
    pub vm_id: String,
    /// Plugins that have the same one have their shared data and queues in common; empty: the plugin's own.
    pub shared: String,
    /// The property `plugin_root_id`.
    pub root_id: String,
    /// What `proxy_on_vm_start` may read.
    pub vm_configuration: Vec<u8>,
    /// Each call across the boundary is logged.
    pub trace: bool,
    /// Jumps of Go's code are made direct before the module is compiled.
    pub jump_threading: bool,
}

impl Default for WasmOptions {
    fn default() -> Self {
        Self {
            relaxed: false,
            allow_on_headers_stop_iteration: false,
            environment: BTreeMap::new(),
            vm_id: String::new(),
            shared: String::new(),
            root_id: String::new(),
            vm_configuration: Vec::new(),
            trace: false,
            jump_threading: true,
        }
    }
}
