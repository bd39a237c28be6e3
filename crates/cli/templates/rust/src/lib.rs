//! my-plugin: a request has to say who sends it, in a header, or it is refused.
//!
//! This is a plugin to begin with: it works, and has in it what most plugins need. Make it yours, and
//! cases/my-plugin.yaml along with it; `outrider plugin test` says whether the two agree.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};
use serde::Deserialize;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Plugin { config: Rc::default() }));
}}

/// The configuration, as config.schema.json describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    header: String,
    values: Option<Vec<String>>,
    message: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            header: "x-client-id".to_owned(),
            values: None,
            message: "say who you are\n".to_owned(),
        }
    }
}

/// The plugin with one configuration: the gateway's, or what a project or a route makes of it.
struct Plugin {
    config: Rc<Config>,
}

impl Context for Plugin {}

impl RootContext for Plugin {
    /// Called with each configuration before it is used. By then it satisfies config.schema.json; what a
    /// schema cannot say is refused here, with `false` after a line of log that says why.
    fn on_configure(&mut self, _size: usize) -> bool {
        let text = self
            .get_plugin_configuration()
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| b"{}".to_vec());
        match serde_json::from_slice(&text) {
            Ok(config) => {
                self.config = Rc::new(config);
                true
            }
            Err(error) => {
                log::error!("configuration: {error}");
                false
            }
        }
    }

    fn create_http_context(&self, _id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request {
            config: Rc::clone(&self.config),
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// One request with its response; it lives as long as they do.
struct Request {
    config: Rc<Config>,
}

impl Context for Request {}

impl HttpContext for Request {
    /// Called when a request's headers are there. The other phases have callbacks of their own; a body's
    /// comes with each part of it.
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        let config = &self.config;
        // As bytes: clients may send what is no text, and the SDK ends the VM when it is asked for one.
        let value = self
            .get_http_request_header_bytes(&config.header)
            .unwrap_or_default();
        let known = config
            .values
            .as_ref()
            .is_none_or(|values| values.iter().any(|known| known.as_bytes() == value));
        if value.is_empty() || !known {
            self.send_http_response(
                400,
                vec![("content-type", "text/plain")],
                Some(config.message.as_bytes()),
            );
            // What has an answer goes no further.
            return Action::Pause;
        }
        // Of a header that came twice, only the value that was looked at goes on.
        self.set_http_request_header_bytes(&config.header, Some(&value));
        Action::Continue
    }
}
