//! Sources that are fetched: the requests that the compiler makes of them, and the files that it watches for them.

use std::cell::RefCell;

use outrider_gateway::{Loader, compile};
use outrider_plugin_formats::{
    Distribution, PluginLocation, PluginPackage, PluginRequest, Problem, PullPolicy, SecretValue,
};

const FILE: &str = "
gateway:
  listeners: [{address: '127.0.0.1:10000'}]
registries:
  registry.example.com:5000: {username: '${env:REGISTRY_USER}', password: '${file:secrets/p}', ca: ca.pem, mirrors: [mirror.example.com]}
plugin_policy:
  - {sources: ['oci://registry.example.com/*'], keys: [keys/team.pub]}
  - {sources: ['*'], unsigned: true}
plugins:
  tag: {source: 'oci://registry.example.com/team/waf:1.0', pull: Always}
  pinned: {source: 'oci://registry.example.com/waf@sha256:0000000000000000000000000000000000000000000000000000000000000000'}
  https: {source: 'https://example.com/x.wasm', sha256: 00000000000000000000000000000000000000000000000000000000000000AB}
  archive: {source: plugins/x.tar.gz}
  builtin: {source: 'builtin:cors'}
projects: []
";

#[derive(Default)]
struct Recorder(RefCell<Vec<(PluginRequest, Distribution)>>);

impl Loader for Recorder {
    fn read(&self, _path: &str) -> Result<String, String> {
        Ok(FILE.to_owned())
    }

    fn matching(&self, _pattern: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
        Err(vec![Problem {
            file: String::new(),
            line: 0,
            column: 0,
            message: format!("{source} is not local"),
            mend: None,
        }])
    }

    fn fetch(
        &self,
        request: &PluginRequest,
        distribution: &Distribution,
    ) -> Result<(PluginPackage, Vec<String>), Vec<Problem>> {
        let mut requests = self.0.borrow_mut();
        requests.push((request.clone(), distribution.clone()));
        Err(Vec::new())
    }

    fn is_folder(&self, _path: &str) -> bool {
        true
    }

    fn absolute(&self, path: &str) -> String {
        path.to_owned()
    }
}

#[test]
fn sources_become_requests() {
    let recorder = Recorder::default();
    let compiled = compile("etc/outrider.yaml", &recorder);
    assert!(compiled.problems.is_empty(), "{:?}", compiled.problems);
    let requests = recorder.0.into_inner();
    let of = |name: &str| {
        let found = requests.iter().find(|(request, _)| request.name == name);
        found.unwrap().0.clone()
    };
    let tag = of("tag");
    let image = "registry.example.com/team/waf:1.0".to_owned();
    assert_eq!(tag.location, PluginLocation::Oci(image));
    assert_eq!((tag.digest, tag.pull), (None, Some(PullPolicy::Always)));
    let pinned = of("pinned");
    let image = "registry.example.com/waf".to_owned();
    assert_eq!(pinned.location, PluginLocation::Oci(image));
    assert_eq!(pinned.digest, Some(format!("sha256:{:064}", 0)));
    let https = of("https");
    assert_eq!(https.digest, Some(format!("sha256:{:0>64}", "ab")));
    let archive = PluginLocation::Archive("etc/plugins/x.tar.gz".to_owned());
    assert_eq!(of("archive").location, archive);
    let builtin = PluginLocation::Builtin("cors".to_owned());
    assert_eq!(of("builtin").location, builtin);

    let distribution = &requests[0].1;
    let registry = &distribution.registries["registry.example.com:5000"];
    let user = SecretValue::Environment("REGISTRY_USER".to_owned());
    assert_eq!(registry.username, Some(user));
    let password = SecretValue::File("etc/secrets/p".to_owned());
    assert_eq!(registry.password, Some(password));
    assert_eq!(registry.ca.as_deref(), Some("etc/ca.pem"));
    let policy = distribution.policy.as_ref().unwrap();
    assert_eq!(policy[0].keys, ["etc/keys/team.pub"]);
    assert_eq!(policy[0].place, "etc/outrider.yaml:7");
    assert!(policy[1].keys.is_empty());
}

/// `outrider plugin update`, a new archive and a new key change what is served.
#[test]
fn files_beside_the_gateways_are_watched() {
    let compiled = compile("etc/outrider.yaml", &Recorder::default());
    assert_eq!(
        compiled.files,
        [
            "etc/keys/team.pub",
            "etc/outrider.lock",
            "etc/outrider.yaml",
            "etc/plugins/x.tar.gz",
        ]
    );
}
