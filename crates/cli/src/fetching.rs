//! How this command fetches plugins: the arguments that say so, and the fetcher made of them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::Args;
use outrider_plugin_api::escaped;
use outrider_plugin_formats::{Distribution, RegistrySettings};
use outrider_plugin_registry::{FetchError, Fetcher, Options, Progress, Reference};

use crate::output::{self, BAD, DIM, GOOD, Styled};

/// Where fetched plugins are kept, and whether any may be fetched.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FetchArguments {
    /// Keep fetched plugins in this folder. Default: outrider/plugins in $XDG_CACHE_HOME or ~/.cache
    #[arg(
        long,
        value_name = "FOLDER",
        env = "OUTRIDER_PLUGIN_CACHE",
        hide_env_values = true
    )]
    plugin_cache: Option<PathBuf>,
    /// Fetch nothing: use what was fetched before
    #[arg(long)]
    offline: bool,
}

/// How the registry of a command line is spoken with.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RegistryArguments {
    /// Speak HTTP without TLS. Default: with localhost and loopback addresses only
    #[arg(long)]
    plain_http: bool,
    /// Certificate authorities of the registry, in PEM, instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Another host, HOST or HOST:PORT, whose token server may get the credentials
    #[arg(long, value_name = "HOST")]
    token_server: Option<String>,
}

impl RegistryArguments {
    /// The settings for the registry of an image.
    pub(crate) fn distribution(&self, reference: &Reference) -> Distribution {
        let settings = RegistrySettings {
            plain_http: self.plain_http.then_some(true),
            ca: self.ca.as_ref().map(|file| file.display().to_string()),
            token_server: self.token_server.clone(),
            ..RegistrySettings::default()
        };
        Distribution {
            registries: [(reference.host.clone(), settings)].into(),
            ..Distribution::default()
        }
    }
}

/// Arguments of the command that runs; commands that read a gateway's file reach them through the loader.
static ARGUMENTS: OnceLock<FetchArguments> = OnceLock::new();

/// Notes of fetches go to standard error.
struct Notes;

impl Progress for Notes {
    fn note(&self, line: &str) {
        // Servers are quoted in it.
        output::note(Styled(DIM, escaped(line)));
    }
}

impl FetchArguments {
    /// Has the loader of gateways' files fetch by these arguments.
    pub(crate) fn apply(&self) {
        let _ = ARGUMENTS.set(self.clone());
    }

    /// A fetcher by these arguments.
    ///
    /// # Errors
    /// There is no directory for the store.
    pub(crate) fn fetcher(&self) -> Result<Fetcher<'static>, FetchError> {
        let mut options = Options::new(self.plugin_cache.clone())?;
        options.offline = self.offline;
        Ok(Fetcher::new(options, &Notes))
    }
}

/// The fetcher of the command that runs.
///
/// # Errors
/// There is no directory for the store.
pub(crate) fn fetcher() -> Result<Fetcher<'static>, FetchError> {
    ARGUMENTS.get().cloned().unwrap_or_default().fetcher()
}

/// Prints a failure of one source.
pub(crate) fn print_failure(source: &str, error: &FetchError) {
    let message = error.to_string();
    output::note(format_args!(
        "{} {}: {}",
        Styled(BAD, "error:"),
        escaped(source),
        escaped(&message)
    ));
    if let Some(mend) = &error.mend {
        output::note(format_args!("    {}", Styled(GOOD, escaped(mend))));
    }
}

/// A path for people, `.` for the current folder.
pub(crate) fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    if text.is_empty() {
        ".".to_owned()
    } else {
        text
    }
}
