//! Marks every request with a header, the way a version of a service marks what it asks of others, so that
//! routes further on can tell which version of a call chain a request belongs to.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};
use serde::Deserialize;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(PropagateHeaders { config: None }));
}}

/// The configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The header's name.
    head_tag_name: String,
    /// The header's value.
    head_tag_value: String,
    /// Whether a request that has the header keeps what it has.
    #[serde(default)]
    keep_existing: bool,
}

impl Config {
    /// What the types do not say; the schema says the same to those who read it.
    fn checked(self) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+.^_`|~-".contains(&byte);
        if self.head_tag_name.is_empty() || !self.head_tag_name.bytes().all(allowed) {
            return Err(format!(
                "`head_tag_name`: {:?} cannot be a header's name",
                self.head_tag_name
            ));
        }
        let reserved = ["content-length", "transfer-encoding", "host"];
        if reserved
            .iter()
            .any(|name| self.head_tag_name.eq_ignore_ascii_case(name))
        {
            return Err(format!(
                "`head_tag_name`: `{}` is the proxy's; choose a header of your own, for example version-tag",
                self.head_tag_name
            ));
        }
        if self.head_tag_value.is_empty()
            || self
                .head_tag_value
                .contains(|c: char| c.is_ascii_control() && c != '\t')
        {
            return Err(format!(
                "`head_tag_value`: {:?} cannot be a header's value",
                self.head_tag_value
            ));
        }
        Ok(self)
    }
}

/// One configuration of the plugin.
struct PropagateHeaders {
    config: Option<Rc<Config>>,
}

impl Context for PropagateHeaders {}

impl RootContext for PropagateHeaders {
    fn on_configure(&mut self, _size: usize) -> bool {
        let configuration = self.get_plugin_configuration();
        match support::configuration(configuration.as_deref()).and_then(Config::checked) {
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

    fn create_http_context(&self, _id: u32) -> Option<Box<dyn HttpContext>> {
        let config = Rc::clone(self.config.as_ref()?);
        Some(Box::new(Request { config }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// One request.
struct Request {
    config: Rc<Config>,
}

impl Context for Request {}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        let config = &self.config;
        // As bytes: a client may send a value that is not UTF-8.
        let keep = config.keep_existing
            && self
                .get_http_request_header_bytes(&config.head_tag_name)
                .is_some();
        if !keep {
            self.set_http_request_header(&config.head_tag_name, Some(&config.head_tag_value));
        }
        Action::Continue
    }
}
