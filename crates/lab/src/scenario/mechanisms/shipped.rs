//! Work of plugins that ship: basic-auth and fault-injection in Lua, Rust and Go, body-rewrite in Lua, and the same by
//! Envoy's own means.
//!
//! The trap: these are plugins as users run them, with what makes them safe (schemas, escapes, media types), beside scripts
//! that do the work and nothing else. So a cost here is that of a plugin, and not of its mechanism alone. That each
//! variant does its work is proved by a request before anything is measured.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Exchange, Made, Proof};
use crate::bench::Mechanism;
use crate::bench::bootstrap::Answers;
use crate::bench::filters::{Code, Rendered, envoy_lua, envoy_wasm, native};
use crate::bench::workload::BODY_BYTES;
use crate::client::Request;
use crate::experiment::Workshop;
use crate::scenario::LinkSettings;
use outrider_load::RequestTemplate;

/// The token that may pass, and the text that is replaced.
const SECRET: &str = "secret";
/// What it is replaced by.
const HIDDEN: &str = "******";
/// Body of a fault.
const FAULT: &str = "fault";

/// Work that a shipped plugin does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A token in a header is compared; requests without it get 403.
    BasicAuth,
    /// Every request is answered with 403.
    FaultInjection,
    /// A word in the request's body is replaced.
    BodyRewrite,
}

impl Work {
    /// The work of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "basic-auth" => Some(Self::BasicAuth),
            "fault-injection" => Some(Self::FaultInjection),
            "body-rewrite" => Some(Self::BodyRewrite),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::BasicAuth => "basic-auth",
            Self::FaultInjection => "fault-injection",
            Self::BodyRewrite => "body-rewrite",
        }
    }

    pub(crate) fn exchange(self) -> Exchange {
        let get = RequestTemplate::get("/").header("host", "lab.test");
        match self {
            Self::BasicAuth => Exchange {
                request: get.header("x-token", SECRET),
                answers: Answers::Envoy,
                status: 200,
            },
            Self::FaultInjection => Exchange {
                request: get,
                answers: Answers::Envoy,
                status: 403,
            },
            Self::BodyRewrite => Exchange {
                request: RequestTemplate {
                    method: "POST".to_owned(),
                    body: body().into(),
                    ..get.header("content-type", "text/plain")
                },
                answers: Answers::Upstream,
                status: 200,
            },
        }
    }

    pub(crate) fn proofs(self) -> Vec<Proof> {
        let proof = |request: Request, status: u16, has: &str| Proof {
            request: request.host("lab.test"),
            status,
            has: has.to_owned(),
        };
        match self {
            Self::BasicAuth => vec![
                proof(Request::get("/").header("x-token", SECRET), 200, "ok"),
                proof(Request::get("/").header("x-token", "guess"), 403, ""),
                proof(Request::get("/"), 403, ""),
            ],
            Self::FaultInjection => vec![proof(Request::get("/"), 403, FAULT)],
            Self::BodyRewrite => {
                let request = Request::post("/", body()).header("content-type", "text/plain");
                vec![proof(request, 200, HIDDEN)]
            }
        }
    }

    fn configuration(self) -> Value {
        match self {
            Self::BasicAuth => json!({ "token": { "value": SECRET } }),
            Self::FaultInjection => json!({ "abort": { "status": 403, "body": FAULT } }),
            Self::BodyRewrite => json!({ "request": [{ "find": SECRET, "replace": HIDDEN }] }),
        }
    }

    /// Envoy's own filter that does it.
    pub(crate) fn native_filter(self) -> anyhow::Result<Made> {
        let (note, filter) = match self {
            Self::BasicAuth => (
                "RBAC, which compares the header",
                json!({
                    "name": "rbac",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC",
                        "rules": { "action": "ALLOW", "policies": { "token": {
                            "permissions": [{ "any": true }],
                            "principals": [{ "header": {
                                "name": "x-token", "string_match": { "exact": SECRET },
                            } }],
                        } } },
                    },
                }),
            ),
            Self::FaultInjection => (
                "the fault filter",
                json!({
                    "name": "fault",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
                        "abort": { "http_status": 403, "percentage": { "numerator": 100 } },
                    },
                }),
            ),
            Self::BodyRewrite => anyhow::bail!("Envoy has no filter that replaces text in bodies"),
        };
        Ok(Made {
            note: note.to_owned(),
            filters: vec![filter],
        })
    }

    /// The filters of a plugin that does it.
    pub(crate) fn plugin(self, mechanism: Mechanism, workshop: &Workshop) -> anyhow::Result<Made> {
        let outrider = |language: &str| -> anyhow::Result<Made> {
            let code = match self.shipped_wasm(language, workshop) {
                Some(_) => self.shipped(language, workshop)?,
                None if language == "lua" => self.shipped(language, workshop)?,
                None => self.guest(language, workshop)?,
            };
            Ok(Made {
                note: self.note(language),
                filters: vec![Rendered::plugins(&workshop.sources, &[code])?.filter],
            })
        };
        let envoy = |language: &str| -> anyhow::Result<Made> {
            let code = match self.shipped_wasm(language, workshop) {
                Some(module) => {
                    there(&module)?;
                    Code::Wasm {
                        module,
                        configuration: self.configuration().to_string(),
                    }
                }
                None => self.guest(language, workshop)?,
            };
            Ok(Made {
                note: self.note(language),
                filters: envoy_wasm(1, &code).into_iter().collect(),
            })
        };
        match mechanism {
            Mechanism::OutriderLua => outrider("lua"),
            Mechanism::OutriderRust => outrider("rust"),
            Mechanism::OutriderGo => outrider("go"),
            Mechanism::EnvoyRust => envoy("rust"),
            Mechanism::EnvoyGo => envoy("go"),
            Mechanism::EnvoyLua => Ok(Made {
                note: "a script that does the work and nothing else".to_owned(),
                filters: vec![envoy_lua(1, &self.envoy_script())],
            }),
            Mechanism::Native => Ok(Made {
                note: "does the work and nothing else".to_owned(),
                filters: vec![native(1, self.native_work())],
            }),
            Mechanism::OutriderCpp | Mechanism::EnvoyCpp => {
                anyhow::bail!("no guest in C++ does it")
            }
        }
    }

    fn note(self, language: &str) -> String {
        let plugin = format!("{language}/{}", self.name());
        if self == Self::BodyRewrite && language != "lua" {
            "a guest of the lab, which does the work and nothing else".to_owned()
        } else {
            format!("the plugin that ships: plugins/{plugin}")
        }
    }

    /// The file of the Wasm plugin that ships. `None` where there is none in this language.
    fn shipped_wasm(self, language: &str, workshop: &Workshop) -> Option<PathBuf> {
        (language != "lua" && self != Self::BodyRewrite).then(|| {
            workshop
                .plugins
                .join(language)
                .join(self.name())
                .join("plugin.wasm")
        })
    }

    fn shipped(self, language: &str, workshop: &Workshop) -> anyhow::Result<Code> {
        let folder = workshop.plugins.join(language).join(self.name());
        there(&folder.join("plugin.yaml"))?;
        if let Some(module) = self.shipped_wasm(language, workshop) {
            there(&module)?;
        }
        Ok(Code::Shipped {
            folder,
            configuration: self.configuration(),
        })
    }

    /// The lab's own guest, which does what `bench-native` does.
    fn guest(self, language: &str, workshop: &Workshop) -> anyhow::Result<Code> {
        let module = workshop.sources.guests.join(language).join("plugin.wasm");
        there(&module)?;
        Ok(Code::Wasm {
            module: std::path::absolute(module)?,
            configuration: self.native_work().to_owned(),
        })
    }

    /// The configuration of `bench-native` and of the lab's guests.
    fn native_work(self) -> &'static str {
        match self {
            Self::BasicAuth => "token=1 header_bytes=0",
            Self::FaultInjection => "abort=1 header_bytes=0",
            Self::BodyRewrite => "rewrite=1 header_bytes=0",
        }
    }

    fn envoy_script(self) -> String {
        match self {
            Self::BasicAuth => format!(
                "function envoy_on_request(handle)
  if handle:headers():get(\"x-token\") ~= \"{SECRET}\" then
    handle:respond({{[\":status\"] = \"403\"}}, \"forbidden\")
  end
end
"
            ),
            Self::FaultInjection => format!(
                "function envoy_on_request(handle)
  handle:respond({{[\":status\"] = \"403\", [\"content-type\"] = \"text/plain\"}}, \"{FAULT}\")
end
"
            ),
            Self::BodyRewrite => format!(
                "function envoy_on_request(handle)
  local body = handle:body()
  local text = body:getBytes(0, body:length())
  local changed, count = text:gsub(\"{SECRET}\", \"{HIDDEN}\")
  if count > 0 then
    body:setBytes(changed)
  end
end
"
            ),
        }
    }
}

/// A body of a kibibyte with the word to replace in its middle.
fn body() -> Vec<u8> {
    let half = (BODY_BYTES - SECRET.len()) / 2;
    let mut body = vec![b'b'; BODY_BYTES];
    if let Some(place) = body.get_mut(half..half + SECRET.len()) {
        place.copy_from_slice(SECRET.as_bytes());
    }
    body
}

fn there(file: &std::path::Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        file.is_file(),
        "{} is not there; `make lab` builds it",
        file.file_name().map_or_else(
            || file.display().to_string(),
            |name| {
                let folder = file.parent().and_then(std::path::Path::file_name);
                format!(
                    "{}/{}",
                    folder.unwrap_or_default().display(),
                    name.display()
                )
            }
        )
    );
    Ok(())
}

/// The filter of a chain of Lua plugins that ship.
///
/// # Errors
///
/// A plugin is not there, or refuses its configuration.
pub(crate) fn chain(links: &[LinkSettings], workshop: &Workshop) -> anyhow::Result<Vec<Value>> {
    let codes = links
        .iter()
        .map(|link| {
            let folder = workshop.plugins.join("lua").join(&link.plugin);
            there(&folder.join("plugin.yaml"))?;
            Ok(Code::Shipped {
                folder,
                configuration: Value::Object(link.config.clone()),
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(vec![Rendered::plugins(&workshop.sources, &codes)?.filter])
}

/// A request that passes the plugins of the chain that ships.
pub(crate) fn chain_request() -> RequestTemplate {
    RequestTemplate {
        method: "POST".to_owned(),
        body: body().into(),
        ..RequestTemplate::get("/")
            .header("host", "lab.test")
            .header("content-type", "text/plain")
            .header("user-agent", "lab")
            .header("x-api-key", SECRET)
            .header("x-token", SECRET)
    }
}
