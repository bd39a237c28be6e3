//! Permissions of one plugin: upstreams that it may call, whether its requests may leave their project,
//! endpoints that it may choose, namespaces of dynamic metadata that it may write, headers and filter state that
//! steer the proxy.
//!
//! The chain's view of a stream enforces them for streams, and [`PluginBackground`](crate::PluginBackground) for
//! calls without a stream. A runtime hands the plugin the error and decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::callout::CalloutFailure;
use crate::framing::{HeaderError, Rule};
use crate::nearest::nearest;
use crate::stream::{FilterStateError, FilterStateKind};

/// Names that a permission lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    /// These names.
    Listed(BTreeSet<Box<str>>),
    /// Every name.
    All,
}

impl Default for Allowed {
    /// No name.
    fn default() -> Self {
        Self::Listed(BTreeSet::new())
    }
}

impl Allowed {
    /// Returns whether a name is allowed. A name that is not UTF-8 is allowed only by [`Allowed::All`].
    pub fn has(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Listed(names) => std::str::from_utf8(name).is_ok_and(|name| names.contains(name)),
        }
    }
}

/// Clusters for callouts by the name of their upstream. An upstream without one is called by its own name.
pub type CalloutClusters = Arc<BTreeMap<Box<str>, Box<str>>>;

/// Permissions of one plugin. The default denies everything but the plugin's own metadata.
#[derive(Debug, Default)]
pub struct Permissions {
    /// Upstreams that the plugin may call.
    pub upstreams: Allowed,
    /// Whether a request may take a route of another project after the plugin changed it.
    pub leave_project: bool,
    /// Whether the plugin may choose the endpoint that a request goes to.
    pub override_host: bool,
    /// Namespaces of dynamic metadata that the plugin may write, beside its own name and
    /// [`Permissions::LUA_NAMESPACE`].
    pub metadata: Allowed,
    /// Whether the plugin may set request headers that steer the proxy's router, on its streams and in callouts.
    pub router_headers: bool,
    /// Keys of filter state that the proxy reads itself and the plugin may set.
    pub typed_filter_state: Allowed,
    /// Clusters of callouts.
    pub callout_clusters: CalloutClusters,
    /// When a denial was last logged, in milliseconds since the Unix epoch; 0: never.
    pub(crate) logged_at: AtomicU64,
}

impl Permissions {
    /// Namespace in which scripts of Envoy's Lua filter keep their own values. Every plugin may write there.
    pub const LUA_NAMESPACE: &str = "envoy.filters.http.lua";

    /// Beginning of the keys of filter state that belong to the proxy.
    pub(crate) const PROXY_KEYS: &[u8] = b"envoy.";

    /// Beginning of the keys of filter state in which the proxy's configuration copies dynamic metadata for plugins. No
    /// plugin may write them: another one takes what is there for the proxy's word.
    pub(crate) const COPIES: &[u8] = b"outrider.";

    /// Least time between two log lines about denials to one plugin, in milliseconds.
    const LOG_INTERVAL_MS: u64 = 10_000;

    /// Permissions that allow everything.
    pub fn all() -> Self {
        Self {
            upstreams: Allowed::All,
            leave_project: true,
            override_host: true,
            metadata: Allowed::All,
            router_headers: true,
            typed_filter_state: Allowed::All,
            ..Self::default()
        }
    }

    /// Returns the cluster in which a callout to an upstream is made.
    ///
    /// # Errors
    /// [`CalloutFailure::NotAllowed`]: the plugin may not call the upstream.
    pub fn callout_cluster<'a>(&'a self, upstream: &'a [u8]) -> Result<&'a [u8], CalloutFailure> {
        if !self.upstreams.has(upstream) {
            return Err(CalloutFailure::NotAllowed);
        }
        let cluster = std::str::from_utf8(upstream)
            .ok()
            .and_then(|upstream| self.callout_clusters.get(upstream));
        Ok(cluster.map_or(upstream, |cluster| cluster.as_bytes()))
    }

    /// Returns the sentence about an upstream that a plugin may not call: the allowed one that was likely meant, and the
    /// key that allows another.
    pub fn upstream_denied(&self, plugin: &str, upstream: &[u8]) -> String {
        const SHOWN: usize = 256;
        let shown = String::from_utf8_lossy(upstream.get(..SHOWN).unwrap_or(upstream));
        let near = match &self.upstreams {
            Allowed::Listed(names) => nearest(&shown, names.iter().map(|name| &**name)),
            Allowed::All => None,
        };
        let near = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
        format!(
            "the plugin may not call the upstream `{shown}`{near}; if there is one, add it to \
             `plugins.{plugin}.allow.upstreams` in outrider.yaml"
        )
    }

    /// Checks that a callout has no header that steers the router, unless the plugin may set those.
    ///
    /// # Errors
    /// [`CalloutFailure::BadHeader`] with [`HeaderError::Router`].
    pub fn callout_headers(&self, headers: &[(&[u8], &[u8])]) -> Result<(), CalloutFailure> {
        if self.router_headers {
            return Ok(());
        }
        let steers = headers.iter().find_map(|(name, _)| match Rule::of(name) {
            Rule::Router(known) => Some(known),
            _ => None,
        });
        match steers {
            Some(name) => Err(CalloutFailure::BadHeader(HeaderError::Router(name))),
            None => Ok(()),
        }
    }

    /// Checks that a plugin may set an object of filter state. Keys that begin with `envoy.` are the proxy's, and it
    /// may read an object of any kind there.
    ///
    /// # Errors
    /// [`FilterStateError::NotAllowed`].
    pub fn set_filter_state(
        &self,
        key: &[u8],
        kind: FilterStateKind,
    ) -> Result<(), FilterStateError> {
        if key.starts_with(Self::COPIES) {
            return Err(FilterStateError::NotAllowed);
        }
        let steers = kind == FilterStateKind::Typed || key.starts_with(Self::PROXY_KEYS);
        if steers && !self.typed_filter_state.has(key) {
            return Err(FilterStateError::NotAllowed);
        }
        Ok(())
    }

    /// Checks that a plugin may write dynamic metadata in a namespace.
    ///
    /// # Errors
    /// [`MetadataDenied`].
    pub fn write_metadata(&self, plugin: &str, namespace: &[u8]) -> Result<(), MetadataDenied> {
        let own = [plugin.as_bytes(), Self::LUA_NAMESPACE.as_bytes()];
        if own.contains(&namespace) || self.metadata.has(namespace) {
            return Ok(());
        }
        Err(MetadataDenied {
            plugin: plugin.to_owned(),
            namespace: String::from_utf8_lossy(namespace).into_owned(),
        })
    }

    /// Returns whether a denial at `unix_ms` is logged: one each ten seconds.
    pub fn logs_denial(&self, unix_ms: u64) -> bool {
        let last = self.logged_at.load(Ordering::Relaxed);
        (last == 0 || unix_ms.saturating_sub(last) >= Self::LOG_INTERVAL_MS)
            && self
                .logged_at
                .compare_exchange(last, unix_ms.max(1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// A namespace of dynamic metadata that a plugin may not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the plugin may not write metadata in the namespace `{namespace}`; add it to \
     `plugins.{plugin}.allow.metadata` in outrider.yaml"
)]
pub struct MetadataDenied {
    /// The plugin's name.
    pub plugin: String,
    /// The namespace.
    pub namespace: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Allowed {
        Allowed::Listed(names.iter().map(|name| Box::from(*name)).collect())
    }

    #[test]
    fn callout_cluster_of_listed_upstream_is_its_callout_cluster() {
        let permissions = Permissions {
            upstreams: listed(&["users", "plain"]),
            callout_clusters: Arc::new([("users".into(), "users/callouts".into())].into()),
            ..Permissions::default()
        };
        assert_eq!(
            permissions.callout_cluster(b"users"),
            Ok(&b"users/callouts"[..])
        );
        assert_eq!(permissions.callout_cluster(b"plain"), Ok(&b"plain"[..]));
        for denied in [&b"victim"[..], b"users/callouts", b"", b"\xff"] {
            assert_eq!(
                permissions.callout_cluster(denied),
                Err(CalloutFailure::NotAllowed)
            );
        }
    }

    #[test]
    fn denial_of_an_upstream_names_the_allowed_one_that_is_near() {
        let permissions = Permissions {
            upstreams: listed(&["users", "orders"]),
            ..Permissions::default()
        };
        let denied = permissions.upstream_denied("tag", b"usres");
        assert!(
            denied.contains("`usres` (did you mean `users`?)"),
            "{denied}"
        );
        assert!(denied.contains("`plugins.tag.allow.upstreams`"), "{denied}");
        let denied = permissions.upstream_denied("tag", b"victim");
        assert!(!denied.contains("did you mean"), "{denied}");
    }

    #[test]
    fn default_permissions_allow_nothing_but_own_metadata() {
        let none = Permissions::default();
        assert!(none.callout_cluster(b"users").is_err());
        assert!(!none.leave_project);
        assert!(!none.override_host);
        assert_eq!(none.write_metadata("tag", b"tag"), Ok(()));
        assert_eq!(
            none.write_metadata("tag", b"envoy.filters.http.lua"),
            Ok(())
        );
        let denied = none.write_metadata("tag", b"envoy.lb").unwrap_err();
        assert!(
            denied.to_string().contains("plugins.tag.allow.metadata"),
            "{denied}"
        );
    }

    #[test]
    fn headers_and_filter_state_that_steer_the_proxy_need_a_permission() {
        let none = Permissions::default();
        let headers = |name| [(&b":method"[..], &b"GET"[..]), (name, &b"1"[..])];
        let denied = none.callout_headers(&headers(b"X-Envoy-Max-Retries"));
        let error = denied.unwrap_err().to_string();
        assert!(error.contains("`x-envoy-max-retries`"), "{error}");
        assert!(error.contains("`allow.router_headers: true`"), "{error}");
        assert!(none.callout_headers(&headers(b"x-envoy-internal")).is_ok());
        let all = Permissions::all();
        assert!(
            all.callout_headers(&headers(b"x-envoy-max-retries"))
                .is_ok()
        );

        let (bytes, typed) = (FilterStateKind::Bytes, FilterStateKind::Typed);
        let denied = Err(FilterStateError::NotAllowed);
        let sni = b"envoy.network.upstream_server_name";
        assert_eq!(none.set_filter_state(sni, typed), denied);
        assert_eq!(none.set_filter_state(sni, bytes), denied);
        assert_eq!(none.set_filter_state(b"own", typed), denied);
        assert_eq!(none.set_filter_state(b"own", bytes), Ok(()));
        let some = Permissions {
            typed_filter_state: listed(&["own"]),
            ..Permissions::default()
        };
        assert_eq!(some.set_filter_state(b"own", typed), Ok(()));
        assert_eq!(some.set_filter_state(sni, typed), denied);
        assert_eq!(all.set_filter_state(sni, typed), Ok(()));
        // A copy of metadata is the proxy's word, whoever asks.
        let copy = b"outrider.dynamic_metadata.envoy.filters.http.jwt_authn";
        assert_eq!(all.set_filter_state(copy, bytes), denied);
    }

    #[test]
    fn permissions_all_allow_every_name() {
        let all = Permissions::all();
        assert_eq!(all.callout_cluster(b"any"), Ok(&b"any"[..]));
        assert_eq!(all.write_metadata("tag", b"envoy.lb"), Ok(()));
        assert!(all.leave_project && all.override_host);
    }

    #[test]
    fn denials_are_logged_once_in_ten_seconds() {
        let permissions = Permissions::default();
        assert!(permissions.logs_denial(1_000));
        assert!(!permissions.logs_denial(10_999));
        assert!(permissions.logs_denial(11_000));
    }
}
