//! Where the compiled code of Wasm plugins is kept.

use std::env;
use std::path::PathBuf;

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
