//! What the tests against the real Envoy share: finding what was built, a gateway run by `outrider
//! up` ([`Gateway`]), an Envoy with a configuration of the test's own ([`Direct`]).
//!
//! A test that lacks something fails and says what to run; it never passes without having run.

mod direct;
mod faulty;
mod gateway;
mod guest;
mod observed;
mod process;
mod run;
mod sent;
pub mod sides;
pub mod under_load;

pub use direct::{Direct, FilterPlugin, direct_config, inline_lua, module_file};
pub use faulty::{FaultyUpstream, UpstreamFault};
pub use gateway::{Gateway, GatewayOptions, Verdict};
pub use guest::{Guest, REFUSAL};
pub use observed::{call_lines, request_lines, response_lines};
pub use outrider_lab::free_address;
pub use outrider_plugin_replay::{
    Answer, AnswerBody, AnswerFailure, Fields, Output, Received, Scripted, values,
};
pub use process::{resident_memory, signal};
pub use run::{Run, finish, outrider};
pub use sent::Sent;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use outrider_envoy_process::Search;

/// The project's root.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}

/// The folder that cargo builds the command and the module into: the one this test was built into.
///
/// # Errors
/// The test was not started by cargo.
pub fn build_folder() -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folder = test
        .ancestors()
        .nth(2)
        .context("the test is not in a cargo target folder")?;
    Ok(folder.to_owned())
}

/// Where the commands under test keep compiled code: beside what was built, not with the user's own.
pub(crate) fn cache_folder() -> anyhow::Result<PathBuf> {
    Ok(build_folder()?.join("cache"))
}

fn built(name: &str) -> anyhow::Result<PathBuf> {
    let file = build_folder()?.join(name);
    if !file.is_file() {
        bail!(
            "{} is not built; run `make build`, or all of `make test`",
            file.display()
        );
    }
    Ok(file)
}

/// The `outrider` command.
///
/// # Errors
/// It is not built.
pub fn command() -> anyhow::Result<PathBuf> {
    built("outrider")
}

/// The module.
///
/// # Errors
/// It is not built.
pub fn module() -> anyhow::Result<PathBuf> {
    built("liboutrider.so")
}

/// The stock Envoy: `$OUTRIDER_ENVOY`, or the one that `make envoy` installed.
///
/// # Errors
/// There is none.
pub fn envoy() -> anyhow::Result<PathBuf> {
    let search = Search {
        explicit: std::env::var_os("OUTRIDER_ENVOY").map(PathBuf::from),
        homes: vec![root().join(".envoy")],
        path: None,
    };
    let found = search
        .find()
        .context("no stock Envoy; run `make envoy`, or all of `make test`")?;
    Ok(found.binary)
}
