//! Authentication by password (RFC 7617) or by a shared token.
//!
//! Who sends no valid password gets 401 and may try again; who sends no valid token gets 403.

mod config;
mod credentials;
mod secret;

use std::rc::Rc;

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, Bytes, ContextType, LogLevel, MapType};

use config::{Access, Config};
use credentials::Credentials;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(BasicAuth { config: None }));
}}

/// One configuration of the plugin.
struct BasicAuth {
    config: Option<Rc<Config>>,
}

impl Context for BasicAuth {}

impl RootContext for BasicAuth {
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
        let passes = match &self.config.access {
            Access::Users(users) => self.check_password(users),
            Access::Token { header, value } => self.check_token(header, value.as_bytes()),
        };
        if passes {
            Action::Continue
        } else {
            Action::Pause
        }
    }
}

impl Request {
    /// Whether the request carries a known user's password; it has its answer when not.
    fn check_password(&self, users: &config::Users) -> bool {
        if let Some(header) = &users.user_header {
            self.remove_http_request_header(header);
        }
        let Some(value) = single("authorization") else {
            return challenge(&users.challenge, "outrider.basic-auth.no_credentials");
        };
        let Some(Credentials { name, password }) = Credentials::parse(&value) else {
            return challenge(
                &users.challenge,
                "outrider.basic-auth.malformed_credentials",
            );
        };

        // A name that is not known is compared too, so that time does not tell which names are.
        let known = users.passwords.get(&name);
        let expected = known.map_or(&b"\0"[..], String::as_bytes);
        if !secret::equal(&password, expected) || known.is_none() {
            return challenge(&users.challenge, "outrider.basic-auth.wrong_credentials");
        }

        if let Some(header) = &users.user_header {
            self.set_http_request_header_bytes(header, Some(&name));
        }
        if self.config.hide_credentials {
            self.remove_http_request_header("authorization");
        }
        true
    }

    /// Whether the request carries the token; it has its answer when not.
    fn check_token(&self, header: &str, token: &[u8]) -> bool {
        if !single(header).is_some_and(|given| secret::equal(&given, token)) {
            support::reply(
                403,
                &[("content-type", "text/plain")],
                b"forbidden\n",
                "outrider.basic-auth.wrong_token",
            );
            return false;
        }
        if self.config.hide_credentials {
            self.remove_http_request_header(header);
        }
        true
    }
}

/// The value of a request header, or `None` when it is missing or there are several: two credentials in
/// one request mean that somebody hopes the two of us read different ones.
fn single(name: &str) -> Option<Bytes> {
    let headers = hostcalls::get_map_bytes(MapType::HttpRequestHeaders).ok()?;
    let mut values = headers
        .into_iter()
        .filter(|(key, _)| key.eq_ignore_ascii_case(name));
    let (_, value) = values.next()?;
    values.next().is_none().then_some(value)
}

/// Asks for a password; `details` says why in access logs.
fn challenge(challenge: &str, details: &str) -> bool {
    support::reply(
        401,
        &[
            ("content-type", "text/plain"),
            ("www-authenticate", challenge),
        ],
        b"unauthorized\n",
        details,
    );
    false
}
