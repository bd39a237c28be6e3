//! What a Kubernetes cluster is asked: to take a resource by server-side apply, to show one, to remove one, and how far a
//! Deployment is rolled out.
//!
//! Which cluster, and as who, a kubeconfig says, as for `kubectl`. Server-side apply is Kubernetes' own merge: each manager
//! owns the fields that it sets, and conflicts are told unless they are to be taken over
//! ([documentation](https://kubernetes.io/docs/reference/using-api/server-side-apply/)).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{GroupVersion, GroupVersionKind};
use kube::discovery::{ApiCapabilities, ApiResource, Scope, pinned_kind};
use kube::{Client, Config};
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// Wait for a connection to the API server, and for its answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks at a rollout.
const GLANCE: Duration = Duration::from_millis(500);

/// Reason why a cluster did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No usable kubeconfig.
    #[error(
        "no cluster to talk to: {0}; name a kubeconfig by `KUBECONFIG` or `--kubeconfig`, and a context by `--context`"
    )]
    Configuration(String),
    /// The cluster does not know this kind.
    #[error(
        "the cluster does not know {kind} of {api_version}: {why}; install its definitions first"
    )]
    UnknownKind {
        /// `apiVersion` of the resource.
        api_version: String,
        /// Its kind.
        kind: String,
        /// What the cluster said.
        why: String,
    },
    /// The API server refused, or did not answer.
    #[error("{resource}: {why}")]
    Refused {
        /// Kind, namespace and name.
        resource: String,
        /// What the API server said.
        why: String,
    },
    /// A resource without `apiVersion`, `kind` or name.
    #[error("a resource has no `{0}`")]
    Incomplete(&'static str),
    /// A Deployment is not rolled out in time.
    #[error("{resource} is not rolled out after {seconds} s: {state}")]
    NotRolledOut {
        /// Kind, namespace and name.
        resource: String,
        /// Time that was waited.
        seconds: u64,
        /// Numbers of its pods.
        state: String,
    },
}

/// A cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// Kinds that were looked up.
    kinds: BTreeMap<(String, String), (ApiResource, bool)>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// How a resource is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Apply {
    /// Take over fields of other managers; without it, they are a conflict.
    pub force: bool,
    /// Only say what would become of it.
    pub dry_run: bool,
}

impl Cluster {
    /// The cluster of a kubeconfig: of this file, or of `KUBECONFIG`, `~/.kube/config` or the pod that this runs in.
    ///
    /// # Errors
    /// See [`ClusterError::Configuration`].
    pub async fn connect(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
    ) -> Result<Self, ClusterError> {
        let wrong = |error: &dyn std::fmt::Display| ClusterError::Configuration(error.to_string());
        let options = KubeConfigOptions {
            context: context.map(str::to_owned),
            ..KubeConfigOptions::default()
        };
        let mut config = match kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
                Config::from_custom_kubeconfig(read, &options)
                    .await
                    .map_err(|error| wrong(&error))?
            }
            None if context.is_some() => Config::from_kubeconfig(&options)
                .await
                .map_err(|error| wrong(&error))?,
            None => Config::infer().await.map_err(|error| wrong(&error))?,
        };
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        let client = Client::try_from(config).map_err(|error| wrong(&error))?;
        Ok(Self {
            client,
            kinds: BTreeMap::new(),
        })
    }

    /// The API of a resource's kind, and its name.
    async fn api(
        &mut self,
        resource: &Value,
    ) -> Result<(Api<DynamicObject>, String), ClusterError> {
        let text = |pointer: &str| resource.pointer(pointer).and_then(Value::as_str);
        let api_version = text("/apiVersion").ok_or(ClusterError::Incomplete("apiVersion"))?;
        let kind = text("/kind").ok_or(ClusterError::Incomplete("kind"))?;
        let name = text("/metadata/name").ok_or(ClusterError::Incomplete("metadata.name"))?;
        let key = (api_version.to_owned(), kind.to_owned());
        let known = self.kinds.get(&key).cloned();
        let (resource_of_api, is_namespaced) = if let Some(known) = known {
            known
        } else {
            let found = self.look_up(api_version, kind).await?;
            self.kinds.insert(key, found.clone());
            found
        };
        let api = if is_namespaced {
            let namespace = text("/metadata/namespace").unwrap_or("default");
            Api::namespaced_with(self.client.clone(), namespace, &resource_of_api)
        } else {
            Api::all_with(self.client.clone(), &resource_of_api)
        };
        Ok((api, name.to_owned()))
    }

    /// A kind as the cluster knows it, and whether it has namespaces.
    async fn look_up(
        &self,
        api_version: &str,
        kind: &str,
    ) -> Result<(ApiResource, bool), ClusterError> {
        let unknown = |why: String| ClusterError::UnknownKind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            why,
        };
        let version: GroupVersion = api_version
            .parse()
            .map_err(|error| unknown(format!("{error}")))?;
        let wanted = GroupVersionKind::gvk(&version.group, &version.version, kind);
        let (found, capabilities): (ApiResource, ApiCapabilities) =
            pinned_kind(&self.client, &wanted)
                .await
                .map_err(|error| unknown(error.to_string()))?;
        Ok((found, capabilities.scope == Scope::Namespaced))
    }

    /// Server-side apply; answers the resource as it is then, or would be.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn apply(
        &mut self,
        resource: &Value,
        manager: &str,
        how: Apply,
    ) -> Result<Value, ClusterError> {
        let (api, name) = self.api(resource).await?;
        let parameters = PatchParams {
            field_manager: Some(manager.to_owned()),
            force: how.force,
            dry_run: how.dry_run,
            ..PatchParams::default()
        };
        let applied = api.patch(&name, &parameters, &Patch::Apply(resource)).await;
        applied
            .map(|object| serde_json::to_value(object).unwrap_or_default())
            .map_err(|error| refused(resource, &error))
    }

    /// The resource as the cluster has it.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn get(&mut self, resource: &Value) -> Result<Option<Value>, ClusterError> {
        let (api, name) = self.api(resource).await?;
        let found = api.get_opt(&name).await;
        found
            .map(|object| object.map(|object| serde_json::to_value(object).unwrap_or_default()))
            .map_err(|error| refused(resource, &error))
    }

    /// The resources of a kind and namespace that have these labels (`name=value`); `like` names the kind and the
    /// namespace. None where the cluster does not know the kind.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn list(&mut self, like: &Value, labels: &str) -> Result<Vec<Value>, ClusterError> {
        let (api, _) = match self.api(like).await {
            Err(ClusterError::UnknownKind { .. }) => return Ok(Vec::new()),
            found => found?,
        };
        let listed = api.list(&ListParams::default().labels(labels)).await;
        let listed = listed.map_err(|error| refused(like, &error))?;
        let mut all = Vec::new();
        for object in listed {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            // Items of a list do not say what they are.
            for key in ["apiVersion", "kind"] {
                if let (Some(object), Some(value)) = (object.as_object_mut(), like.get(key)) {
                    object.insert(key.to_owned(), value.clone());
                }
            }
            all.push(object);
        }
        Ok(all)
    }

    /// Removes the resource; `false`: there was none.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn delete(&mut self, resource: &Value) -> Result<bool, ClusterError> {
        let (api, name) = self.api(resource).await?;
        let at_once = DeleteParams::default().grace_period(0);
        match api.delete(&name, &at_once).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(refused(resource, &error)),
        }
    }

    /// Replaces parts of a resource's status.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn patch_status(
        &mut self,
        resource: &Value,
        status: &Value,
    ) -> Result<(), ClusterError> {
        let (api, name) = self.api(resource).await?;
        let patch = serde_json::json!({ "status": status });
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(|_| ())
            .map_err(|error| refused(resource, &error))
    }

    /// Asks the API server whatever its HTTP interface offers: a POST of JSON.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ClusterError> {
        let wrong = |why: String| ClusterError::Refused {
            resource: path.to_owned(),
            why,
        };
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| wrong(error.to_string()))?;
        let answered = self.client.request::<Value>(request).await;
        answered.map_err(|error| wrong(error.to_string()))
    }

    /// Waits until the pods of a Deployment are those of its newest template, and ready.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn wait_for_rollout(
        &mut self,
        deployment: &Value,
        patience: Duration,
    ) -> Result<(), ClusterError> {
        let deadline = Instant::now() + patience;
        loop {
            let found = self.get(deployment).await?.unwrap_or_default();
            let number = |pointer: &str| found.pointer(pointer).and_then(Value::as_i64);
            let wanted = number("/spec/replicas").unwrap_or(1);
            let count = |name: &str| number(&format!("/status/{name}")).unwrap_or(0);
            let is_seen = number("/status/observedGeneration") >= number("/metadata/generation");
            let (updated, all, available) = (
                count("updatedReplicas"),
                count("replicas"),
                count("availableReplicas"),
            );
            if is_seen && updated == wanted && all == wanted && available >= wanted {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(ClusterError::NotRolledOut {
                    resource: named(deployment),
                    seconds: patience.as_secs(),
                    state: format!(
                        "{updated} of {wanted} pods are new, {available} are available, {all} there are in all"
                    ),
                });
            }
            sleep(GLANCE).await;
        }
    }
}

/// Kind, namespace and name of a resource.
pub fn named(resource: &Value) -> String {
    let text = |pointer: &str| resource.pointer(pointer).and_then(Value::as_str);
    let name = text("/metadata/name").unwrap_or_default();
    let kind = text("/kind").unwrap_or_default();
    match text("/metadata/namespace") {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

fn refused(resource: &Value, error: &kube::Error) -> ClusterError {
    ClusterError::Refused {
        resource: named(resource),
        why: match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        },
    }
}
