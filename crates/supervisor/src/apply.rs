//! The order in which changed files reach Envoy.
//!
//! Envoy takes clusters, plugins, routes and listeners up one file at a time, while streams flow. No
//! stream may meet a reference to something that is not there, so things appear before whatever refers
//! to them and disappear after: first clusters and plugins old and new together, then routes, then
//! listeners, then clusters and plugins without what nobody refers to any more. Certificates come first of all: listeners
//! and clusters name them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use outrider_gateway::envoy::{
    CDS_FILE, ECDS_FILE, FILTER_NAME, Files, LDS_FILE, RDS_FILE, ROUTE_CONFIGURATION,
    SECRET_PREFIX, secret_file,
};
use serde_json::Value;

use crate::courier::{Courier, Document, Verdict, replace};

/// Where clusters are in their document.
const CLUSTERS: &str = "/resources";
/// Where plugins are in theirs.
const PLUGINS: &str = "/resources/0/typed_config/filter_config/value/plugins";

/// One of the files that Envoy watches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// A certificate with its key, or authorities; by name.
    Secret(String),
    /// Clusters.
    Upstreams,
    /// The filter's configuration.
    Plugins,
    /// All routes.
    Routes,
    /// Listeners.
    Listeners,
}

impl Part {
    /// What it is, in a message.
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Self::Secret(_) => "certificates",
            Self::Upstreams => "upstreams",
            Self::Plugins => "plugins",
            Self::Routes => "routes",
            Self::Listeners => "listeners",
        }
    }

    /// Its file in the state folder.
    pub(crate) fn file_name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Secret(name) => return Cow::Owned(secret_file(name)),
            Self::Upstreams => CDS_FILE,
            Self::Plugins => ECDS_FILE,
            Self::Routes => RDS_FILE,
            Self::Listeners => LDS_FILE,
        })
    }

    /// Its content; `None`: a secret that these files have not.
    fn of<'f>(&self, files: &'f Files) -> Option<&'f Value> {
        Some(match self {
            Self::Secret(name) => return files.secrets.get(name),
            Self::Upstreams => &files.cds,
            Self::Plugins => &files.ecds,
            Self::Routes => &files.rds,
            Self::Listeners => &files.lds,
        })
    }

    fn document(&self, folder: &Path) -> Document {
        Document {
            path: folder.join(&*self.file_name()),
            counters: match self {
                Self::Secret(name) => format!(r"sds\.{name}"),
                Self::Upstreams => r"cluster_manager\.cds".to_owned(),
                Self::Plugins => {
                    format!(r"extension_config_discovery\.http_filter\.{FILTER_NAME}")
                }
                // All listeners share one subscription, which carries the name of one of them.
                Self::Routes => format!(r"http\..*\.rds\.{ROUTE_CONFIGURATION}"),
                Self::Listeners => r"listener_manager\.lds".to_owned(),
            },
        }
    }
}

/// One file to hand over.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step<'a> {
    part: Part,
    content: Cow<'a, Value>,
}

/// The steps from one configuration to another; none where Envoy is told the same.
pub(crate) fn steps<'a>(old: &'a Files, new: &'a Files) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    let upstreams = with_old_items(&old.cds, &new.cds, CLUSTERS);
    let plugins = with_old_items(&old.ecds, &new.ecds, PLUGINS);
    let last_upstreams = (upstreams != new.cds).then_some(&new.cds);
    let last_plugins = (plugins != new.ecds).then_some(&new.ecds);
    let mut step = |part: Part, content: Cow<'a, Value>| steps.push(Step { part, content });
    for (name, content) in &new.secrets {
        if old.secrets.get(name) != Some(content) {
            step(Part::Secret(name.clone()), Cow::Borrowed(content));
        }
    }
    if upstreams != old.cds {
        step(Part::Upstreams, Cow::Owned(upstreams));
    }
    if plugins != old.ecds {
        step(Part::Plugins, Cow::Owned(plugins));
    }
    // Routes may be many: they are not copied.
    if new.rds != old.rds {
        step(Part::Routes, Cow::Borrowed(&new.rds));
    }
    if new.lds != old.lds {
        step(Part::Listeners, Cow::Borrowed(&new.lds));
    }
    if let Some(plugins) = last_plugins {
        step(Part::Plugins, Cow::Borrowed(plugins));
    }
    if let Some(upstreams) = last_upstreams {
        step(Part::Upstreams, Cow::Borrowed(upstreams));
    }
    steps
}

/// All steps from configurations of which Envoy may serve any mixture.
fn steps_from_any<'a>(possible: &[&Files], new: &'a Files) -> Vec<Step<'a>> {
    let all = |pointer: &str, of: fn(&Files) -> &Value| {
        possible.iter().fold(of(new).clone(), |all, old| {
            with_old_items(of(old), &all, pointer)
        })
    };
    let step = |part: Part, content: Cow<'a, Value>| Step { part, content };
    let secrets = new
        .secrets
        .iter()
        .map(|(name, content)| step(Part::Secret(name.clone()), Cow::Borrowed(content)));
    let others = [
        step(
            Part::Upstreams,
            Cow::Owned(all(CLUSTERS, |files| &files.cds)),
        ),
        step(Part::Plugins, Cow::Owned(all(PLUGINS, |files| &files.ecds))),
        step(Part::Routes, Cow::Borrowed(&new.rds)),
        step(Part::Listeners, Cow::Borrowed(&new.lds)),
        step(Part::Plugins, Cow::Borrowed(&new.ecds)),
        step(Part::Upstreams, Cow::Borrowed(&new.cds)),
    ];
    secrets.chain(others).collect()
}

/// How [`apply`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Applied {
    /// Envoy serves by the new configuration; `false`: it did before.
    All(bool),
    /// Envoy refused a part, and serves by the old configuration; so say the files.
    Refused(Part, String),
}

/// Takes Envoy to the configuration `new`, or back to the first of `possible`: that it took whole before. If there are
/// more, any mixture of them may be what it serves.
///
/// # Errors
/// A file cannot be written, or Envoy gives no verdict. It may serve any mixture of all these configurations then.
pub(crate) fn apply(
    folder: &Path,
    courier: &Courier<'_>,
    possible: &[&Files],
    new: &Files,
) -> anyhow::Result<Applied> {
    let (steps, mut touched) = if let [old] = possible {
        (steps(old, new), Vec::new())
    } else {
        let secrets = possible.first().into_iter().flat_map(|old| &old.secrets);
        let secrets = secrets.map(|(name, _)| Part::Secret(name.clone()));
        let others = [
            Part::Upstreams,
            Part::Plugins,
            Part::Routes,
            Part::Listeners,
        ];
        let touched = secrets.chain(others).collect();
        (steps_from_any(possible, new), touched)
    };
    let is_change = !steps.is_empty();
    for Step { part, content } in steps {
        touched.push(part.clone());
        let verdict = courier.hand_over(&part.document(folder), &content.to_string())?;
        if let Verdict::Refused(reason) = verdict {
            if let Some(old) = possible.first() {
                go_back(folder, courier, old, &touched)?;
            }
            return Ok(Applied::Refused(part, reason));
        }
    }
    forget_secrets(folder, new);
    Ok(Applied::All(is_change))
}

/// Removes the files of all secrets, when no Envoy reads them any more.
pub(crate) fn forget_all_secrets(folder: &Path) {
    remove_secrets(folder, |_| true);
}

/// Removes the files of secrets that these have not: private keys that nobody names stay nowhere.
fn forget_secrets(folder: &Path, files: &Files) {
    remove_secrets(folder, |name| !files.secrets.contains_key(name));
}

fn remove_secrets(folder: &Path, is_removed: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|file| {
            let name = file.strip_prefix(SECRET_PREFIX)?;
            name.split_once('.').map(|(name, _)| name)
        }) else {
            continue;
        };
        if is_removed(name) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Puts the old files back, the last one touched first. Envoy took each of them before, so there is no
/// second refusal to tell.
fn go_back(
    folder: &Path,
    courier: &Courier<'_>,
    old: &Files,
    touched: &[Part],
) -> anyhow::Result<()> {
    let mut back = BTreeSet::new();
    for part in touched.iter().rev() {
        // Of a secret that is new there is nothing to go back to, and nobody names it.
        if back.insert(part)
            && let Some(content) = part.of(old)
        {
            courier.hand_over(&part.document(folder), &content.to_string())?;
        }
    }
    Ok(())
}

/// Writes every file of a configuration, before Envoy starts.
pub(crate) fn write_all(folder: &Path, files: &Files) -> anyhow::Result<()> {
    for (name, content) in &files.secrets {
        replace(&folder.join(secret_file(name)), &content.to_string())?;
    }
    for (name, content) in files.watched() {
        replace(&folder.join(name), &content.to_string())?;
    }
    forget_secrets(folder, files);
    Ok(())
}

/// `new`, whose list at `pointer` also has the items of `old` whose `name` it has not.
fn with_old_items(old: &Value, new: &Value, pointer: &str) -> Value {
    let mut both = new.clone();
    let old = old.pointer(pointer).and_then(Value::as_array);
    let (Some(old), Some(new)) = (old, both.pointer_mut(pointer).and_then(Value::as_array_mut))
    else {
        return both;
    };
    let names: BTreeSet<Option<String>> = new.iter().map(name).collect();
    new.extend(
        old.iter()
            .filter(|item| !names.contains(&name(item)))
            .cloned(),
    );
    both
}

fn name(item: &Value) -> Option<String> {
    item.get("name")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outrider_gateway::{Loader, PluginPackage, Problem, compile, envoy};
    use outrider_plugin_formats::{BodyModes, Group, Manifest, Places, PluginCode, Runtime};
    use serde_json::json;

    use super::*;

    fn files(clusters: &[&str], plugins: &[(&str, &str)], routes: &str, listener: &str) -> Files {
        let plugins: Vec<Value> = plugins
            .iter()
            .map(|(name, digest)| json!({"name": name, "digest": digest}))
            .collect();
        let clusters: Vec<Value> = clusters.iter().map(|name| json!({"name": name})).collect();
        Files {
            bootstrap: Value::Null,
            cds: json!({"resources": clusters}),
            ecds: json!({"resources": [{"typed_config": {"filter_config": {"value": {"plugins": plugins}}}}]}),
            rds: json!({"resources": [routes]}),
            lds: json!({"resources": [listener]}),
            secrets: BTreeMap::new(),
        }
    }

    fn told(old: &Files, new: &Files) -> Vec<String> {
        as_lines(&steps(old, new))
    }

    /// `cds.json: a b`, one line for each step.
    fn as_lines(steps: &[Step<'_>]) -> Vec<String> {
        steps
            .iter()
            .map(|step| {
                let pointer = match step.part {
                    Part::Plugins => PLUGINS,
                    _ => "/resources",
                };
                let items = step.content.pointer(pointer).unwrap().as_array().unwrap();
                let items: Vec<String> = items
                    .iter()
                    .map(|item| match item {
                        Value::String(text) => text.clone(),
                        item => name(item).unwrap() + item["digest"].as_str().unwrap_or_default(),
                    })
                    .collect();
                format!("{}: {}", step.part.file_name(), items.join(" "))
            })
            .collect()
    }

    #[test]
    fn nothing_changed() {
        let same = files(&["a"], &[("p", "1")], "r", "l");
        assert_eq!(told(&same, &same.clone()), [] as [&str; 0]);
    }

    #[test]
    fn only_what_changed_is_handed_over() {
        let old = files(&["a"], &[("p", "1")], "r", "l");
        assert_eq!(
            told(&old, &files(&["a"], &[("p", "1")], "r2", "l")),
            ["rds.json: r2"]
        );
        assert_eq!(
            told(&old, &files(&["a"], &[("p", "2")], "r", "l")),
            ["ecds.json: p2"]
        );
    }

    #[test]
    fn what_is_referred_to_comes_first_and_goes_last() {
        let old = files(&["a", "b"], &[("p", "1"), ("q", "1")], "r", "l");
        let new = files(&["b", "c"], &[("q", "2"), ("s", "1")], "r2", "l2");
        assert_eq!(
            told(&old, &new),
            [
                "cds.json: b c a",
                "ecds.json: q2 s1 p1",
                "rds.json: r2",
                "lds.json: l2",
                "ecds.json: q2 s1",
                "cds.json: b c",
            ]
        );
    }

    #[test]
    fn what_only_goes_goes_last() {
        let old = files(&["a", "b"], &[("p", "1"), ("q", "1")], "r", "l");
        let new = files(&["a"], &[("p", "1")], "r2", "l");
        assert_eq!(
            told(&old, &new),
            ["rds.json: r2", "ecds.json: p1", "cds.json: a"]
        );
    }

    fn with_secrets(mut files: Files, secrets: &[(&str, &str)]) -> Files {
        let document = |content: &str| json!({"resources": [content]});
        files.secrets = secrets
            .iter()
            .map(|(name, content)| ((*name).to_owned(), document(content)))
            .collect();
        files
    }

    #[test]
    fn certificates_come_before_what_names_them_and_a_renewed_one_alone() {
        let same = || files(&["a"], &[("p", "1")], "r", "l");
        let old = with_secrets(same(), &[("shop", "1"), ("blog", "1")]);
        let renewed = with_secrets(same(), &[("shop", "2"), ("blog", "1")]);
        assert_eq!(told(&old, &renewed), ["secret-shop.json: 2"]);
        let more = with_secrets(
            files(&["a"], &[("p", "1")], "r", "l2"),
            &[("shop", "1"), ("blog", "1"), ("new", "1")],
        );
        assert_eq!(told(&old, &more), ["secret-new.json: 1", "lds.json: l2"]);
        let mixture = as_lines(&steps_from_any(&[&old, &renewed], &old));
        assert_eq!(mixture[..2], ["secret-blog.json: 1", "secret-shop.json: 1"]);
    }

    /// Keys that no configuration names any more stay nowhere, a half-written one neither.
    #[test]
    fn files_of_other_secrets_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "secret-old.json",
            "secret-shop.json",
            "secret-old.new",
            "lds.json",
        ];
        for name in names {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        let new = with_secrets(files(&[], &[], "r", "l"), &[("shop", "1")]);
        forget_secrets(folder.path(), &new);
        let left: BTreeSet<_> = (fs::read_dir(folder.path()).unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let expected = ["lds.json", "secret-shop.json"].map(str::to_owned);
        assert_eq!(left, BTreeSet::from(expected));
    }

    #[test]
    fn from_a_mixture_every_part_is_handed_over_and_nothing_that_may_be_used_goes_first() {
        let old = files(&["a"], &[("p", "1")], "r", "l");
        let broken = files(&["b"], &[("q", "1")], "r2", "l");
        let told = as_lines(&steps_from_any(&[&old, &broken], &old));
        assert_eq!(
            told,
            [
                "cds.json: a b",
                "ecds.json: p1 q1",
                "rds.json: r",
                "lds.json: l",
                "ecds.json: p1",
                "cds.json: a",
            ]
        );
    }

    const PLUGIN: &str = "limit";

    const GATEWAY: &str = "
gateway:
  listeners: [{address: '127.0.0.1:10000'}]
  use: [limit]
plugins:
  limit: {source: limit}
upstreams:
  echo: {endpoints: ['127.0.0.1:8080']}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /}, to: echo}
";

    struct Memory;

    impl Loader for Memory {
        fn read(&self, _path: &str) -> Result<String, String> {
            Ok(GATEWAY.to_owned())
        }

        fn matching(&self, _pattern: &str) -> Result<Vec<String>, String> {
            Ok(Vec::new())
        }

        fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
            Ok(PluginPackage {
                manifest: Manifest {
                    name: source.to_owned(),
                    runtime: Runtime::Lua,
                    version: None,
                    description: None,
                    entry: Some("main.lua".to_owned()),
                    group: Group::default(),
                    priority: 0,
                    body: BodyModes::default(),
                    failure_policy: None,
                    budgets: None,
                    circuit: None,
                    build: None,
                    wasm: None,
                },
                places: Places::default(),
                digest: format!("sha256:{:064}", 0),
                code: PluginCode::Files(BTreeMap::from([("main.lua".to_owned(), String::new())])),
                schema: None,
                folder: source.to_owned(),
            })
        }

        fn is_folder(&self, _path: &str) -> bool {
            true
        }

        fn absolute(&self, path: &str) -> String {
            format!("/{path}")
        }
    }

    /// If the renderer had plugins or clusters elsewhere, a removal would be one step with the rest, and not the last.
    #[test]
    fn the_paths_are_those_of_the_renderer() {
        let mut plan = compile("outrider.yaml", &Memory).plan.unwrap();
        let layout = crate::rendered::layout(&plan, Path::new("/state"));
        let old = envoy::files(&plan, &layout);
        let clusters = old.cds.pointer(CLUSTERS).unwrap().as_array().unwrap();
        assert_eq!(clusters.len(), 1);
        let plugins = old.ecds.pointer(PLUGINS).unwrap().as_array().unwrap();
        assert_eq!(name(&plugins[0]).unwrap(), PLUGIN);
        // Removed: the lists without them come last, and are the only steps.
        plan.filter.plugins.clear();
        plan.upstreams.clear();
        let new = envoy::files(&plan, &layout);
        assert_eq!(told(&old, &new), ["ecds.json: ", "cds.json: "]);
        // Added: the lists with them come first. Taken from one to the other, both are there.
        let steps = steps_from_any(&[&old], &new);
        let told = as_lines(&steps[..2]);
        assert!(told[1].starts_with("ecds.json: limit"), "{told:?}");
        assert!(told[0].len() > "cds.json: ".len(), "{told:?}");
    }
}
