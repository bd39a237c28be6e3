//! Reading the documents that come through Envoy, and refusing them.

use std::fmt;

use outrider_plugin_api::LoadError;
use outrider_plugin_formats::FORMAT;
use serde::de::DeserializeOwned;

/// Why a configuration is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal(String);

impl Refusal {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Self {
        Self(error.to_string())
    }
}

/// A document that says which version of its format it is in.
pub(crate) trait Versioned {
    fn format(&self) -> u32;
}

impl Versioned for outrider_plugin_formats::FilterConfig {
    fn format(&self) -> u32 {
        self.format
    }
}

impl Versioned for outrider_plugin_formats::RouteConfig {
    fn format(&self) -> u32 {
        self.format
    }
}

/// Reads a document.
pub(crate) fn read<T: DeserializeOwned + Versioned>(json: &[u8]) -> Result<T, Refusal> {
    let document: T = serde_json::from_slice(json).map_err(|error| {
        Refusal::new(format!(
            "the document is not in the form of this module's version ({}): {error}; \
             it is written by `outrider`, of the same version",
            env!("CARGO_PKG_VERSION")
        ))
    })?;
    if document.format() == FORMAT {
        Ok(document)
    } else {
        Err(Refusal::new(format!(
            "the document is in format {}, and this module reads format {FORMAT}; use an `outrider` \
             of the module's version",
            document.format()
        )))
    }
}
