//! Whose place a configuration takes.

use std::sync::{Arc, Mutex, Weak};

use outrider_plugin_api::{
    Call, ConfigPlace, ConfiguredPlugin, Decision, Direction, Fault, Interest, LoadError, Metrics,
    Plugin, PluginStatus, ScopedConfig, Slot, Stream, Wake,
};
use outrider_plugin_formats as formats;
use serde_json::{Value, json};

use super::{ACCEPTS_ALL, document, plugin};
use crate::document::read;
use crate::generation::{Code, Core};
use crate::plugin::{CodeKey, Place};

/// A plugin that notes what it is configured for.
#[derive(Debug, Clone, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Noting {
    fn note(&self, what: &str, place: Option<&ConfigPlace>) {
        let place = place.map(|place| format!("{} {}", place.name, place.generation));
        let line = format!("{what} {}", place.as_deref().unwrap_or("nobody's"));
        self.0.lock().unwrap().push(line);
    }
}

impl Plugin for Noting {
    fn interest(&self) -> Interest {
        Interest::default()
    }

    fn configure(
        &self,
        config: &ScopedConfig,
        _metrics: &mut dyn Metrics,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError> {
        self.note("new:", config.place.as_ref());
        Ok(Arc::new(self.clone()))
    }

    fn status(&self) -> PluginStatus {
        PluginStatus::default()
    }
}

impl ConfiguredPlugin for Noting {
    fn call(
        &self,
        _slot: &mut Slot,
        _call: Call,
        _stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        Ok(Decision::Continue)
    }

    fn resume(
        &self,
        _slot: &mut Slot,
        _direction: Direction,
        _wake: Wake<'_>,
        _stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        Ok(Decision::Continue)
    }

    fn also_for(&self, place: Option<&ConfigPlace>) {
        self.note("also:", place);
    }

    fn end(&self, _slot: Slot, _worker: usize) {}
}

#[test]
fn a_configuration_takes_the_place_of_its_filter_and_scope() {
    let parsed: formats::FilterConfig =
        read(&document(&[plugin("p", ACCEPTS_ALL, json!({}))])).unwrap();
    let place = Place {
        workers: 1,
        log_folder: None,
        compiled_folder: None,
    };
    let noting = Noting::default();
    let key = CodeKey::new(&parsed.plugins[0], &place);
    let mut known = Code::from([(key, Arc::new(noting.clone()) as Arc<dyn Plugin>)]);
    let core = Core::load(7, "shop", Weak::new(), parsed, 1, &mut known).unwrap();
    let change = |config: Value| formats::RoutePlugin {
        name: "p".to_owned(),
        enabled: None,
        config: Some(config),
    };
    let mut links = Vec::new();
    for (scope, changes) in [
        ("route a", vec![change(json!({"k": 1}))]),
        ("route b", vec![change(json!({"k": 1}))]),
        ("route c", vec![]),
        ("a route", vec![change(json!({"k": 2}))]),
        ("a route", vec![]),
    ] {
        let (made, refusals) = core.links(scope, &changes, &[]);
        assert_eq!(refusals.len(), 0);
        links.push(made);
    }
    assert_eq!(
        *noting.0.lock().unwrap(),
        [
            "new: shop gateway 7",
            "new: shop route a 7",
            "also: shop route b 7",
            "also: shop route c 7",
            "new: nobody's",
            "also: nobody's",
        ]
    );
}

#[test]
fn unchanged_plugin_is_not_configured_again_by_a_new_generation() {
    let place = Place {
        workers: 1,
        log_folder: None,
        compiled_folder: None,
    };
    let noting = Noting::default();
    let code: Arc<dyn Plugin> = Arc::new(noting.clone());
    let load = |id: u64, config: Value| {
        let plugins = [
            plugin("p", ACCEPTS_ALL, json!({ "config": config })),
            plugin(&format!("other-{id}"), ACCEPTS_ALL, json!({})),
        ];
        let parsed: formats::FilterConfig = read(&document(&plugins)).unwrap();
        let key = CodeKey::new(&parsed.plugins[0], &place);
        let other = CodeKey::new(&parsed.plugins[1], &place);
        let mut known = Code::from([
            (key, Arc::clone(&code)),
            (other, Arc::new(Noting::default()) as Arc<dyn Plugin>),
        ]);
        Core::load(id, "shop", Weak::new(), parsed, 1, &mut known).unwrap()
    };
    let _first = load(1, json!({"k": 1}));
    let _second = load(2, json!({"k": 1}));
    let _third = load(3, json!({"k": 2}));
    assert_eq!(
        *noting.0.lock().unwrap(),
        [
            "new: shop gateway 1",
            "also: shop gateway 2",
            "new: shop gateway 3",
        ]
    );
}
