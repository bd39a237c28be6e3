//! A registry in memory, spoken through the scripted server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use outrider_plugin_registry::digest_of;

use super::server::{Asked, Reply, Server};

/// Blobs by digest, manifests by `NAME/REFERENCE`.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    pub(crate) manifests: BTreeMap<String, Vec<u8>>,
}

/// A registry without the referrers API.
pub(crate) struct Registry {
    pub(crate) server: Server,
    pub(crate) content: Arc<Mutex<Content>>,
}

impl Registry {
    pub(crate) fn start() -> Self {
        Self::guarded(|_| None)
    }

    /// A registry before whose answers `guard` may give another.
    pub(crate) fn guarded(guard: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let content = Arc::new(Mutex::new(Content::default()));
        let shared = Arc::clone(&content);
        let server = Server::start(move |asked, _| {
            guard(asked).unwrap_or_else(|| answer(&mut shared.lock().unwrap(), asked))
        });
        Self { server, content }
    }

    pub(crate) fn host(&self) -> &str {
        &self.server.host
    }

    pub(crate) fn blob(&self, bytes: &[u8]) -> String {
        let digest = digest_of(bytes);
        let mut content = self.content.lock().unwrap();
        content.blobs.insert(digest.clone(), bytes.to_vec());
        digest
    }

    pub(crate) fn manifest(&self, reference: &str, bytes: &[u8]) -> String {
        let digest = digest_of(bytes);
        let mut content = self.content.lock().unwrap();
        for reference in [reference, &digest] {
            content
                .manifests
                .insert(format!("waf/{reference}"), bytes.to_vec());
        }
        digest
    }
}

fn answer(content: &mut Content, asked: &Asked) -> Reply {
    let path = asked.path.strip_prefix("/v2/").unwrap_or_default();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    if let Some((name, reference)) = path.split_once("/manifests/") {
        let key = format!("{name}/{reference}");
        return match asked.method.as_str() {
            "PUT" => {
                let digest = digest_of(&asked.body);
                content.manifests.insert(key, asked.body.clone());
                content
                    .manifests
                    .insert(format!("{name}/{digest}"), asked.body.clone());
                Reply::new(201, "")
            }
            _ => match content.manifests.get(&key) {
                Some(bytes) => Reply::new(200, bytes.clone()),
                None => Reply::new(404, "no manifest"),
            },
        };
    }
    if let Some((name, _)) = path.split_once("/blobs/uploads/") {
        return if asked.method == "POST" {
            let location = format!("/v2/{name}/blobs/uploads/1?state=x");
            Reply::new(202, "").header("location", location)
        } else {
            let digest = query
                .split("digest=")
                .nth(1)
                .unwrap_or_default()
                .replace("%3A", ":");
            assert_eq!(digest, digest_of(&asked.body));
            content.blobs.insert(digest, asked.body.clone());
            Reply::new(201, "")
        };
    }
    if let Some((_, digest)) = path.split_once("/blobs/") {
        return match content.blobs.get(digest) {
            Some(bytes) => Reply::new(200, bytes.clone()),
            None => Reply::new(404, "no blob"),
        };
    }
    Reply::new(404, "")
}
