//! Config-level HTTP streams over a stub table of Envoy's functions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrider_plugin_api::{Background as _, Decision};

use super::*;
use crate::background::{
    EnvoyBackground, add_cluster, add_config, on_main, remove_cluster, remove_config,
};
use crate::module::FilterConfig;
use crate::raw::ClusterPtr;
use crate::stub::{Asked, TestConfig, TestPlugin, asked, envoy, pointer};

/// The configurations and the cluster are the process's: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(crate) struct TestProcess {
    pub(crate) cluster: ClusterPtr,
    id: u64,
    _guard: MutexGuard<'static, ()>,
}

impl TestProcess {
    pub(crate) fn new() -> Self {
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        envoy();
        let cluster = pointer();
        // SAFETY: removed when the test ends.
        let id = unsafe { add_cluster(cluster) }.unwrap();
        Self {
            cluster,
            id,
            _guard: guard,
        }
    }

    pub(crate) fn run_main(&self) {
        // SAFETY: this thread stands for the main thread.
        unsafe { on_main(self.cluster, self.id) }
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        remove_cluster(self.id);
    }
}

struct TestFilterConfig {
    made: Arc<dyn FilterConfig>,
    key: usize,
    pointer: ConfigPtr,
}

impl TestFilterConfig {
    fn new() -> Self {
        let plugin = Arc::new(TestPlugin::new(|_, _| Ok(Decision::Continue)));
        let config = Self {
            made: TestConfig::of(&plugin),
            key: pointer() as usize,
            pointer: pointer(),
        };
        add_config(config.key, config.pointer, &config.made);
        end_all_later();
        config
    }

    /// As Envoy's destroy hook.
    fn destroy(self) -> ConfigPtr {
        let pointer = remove_config(self.key).unwrap();
        abandon(pointer);
        drop(self.made);
        pointer
    }
}

type Heard = Arc<Mutex<Vec<String>>>;

fn open() -> (Box<dyn HttpStreamHandle>, Heard) {
    let heard = Heard::default();
    let noted = Arc::clone(&heard);
    let request = HttpStreamRequest {
        cluster: b"upstream",
        headers: &[
            (b":method", b"POST"),
            (b":path", b"/"),
            (b":authority", b"upstream"),
        ],
        body: b"",
        end_of_stream: false,
        timeout: None,
    };
    let told = Box::new(move |event: HttpStreamEvent<'_>| {
        noted.lock().unwrap().push(format!("{event:?}"));
    });
    let handle = EnvoyBackground.start_http_stream(&request, told).unwrap();
    (handle, heard)
}

fn started(config: &TestFilterConfig) -> u64 {
    match asked(config.pointer).as_slice() {
        [Asked::StartHttpStream(id)] => *id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn stream_of_a_destroyed_configuration_fails_and_envoy_is_not_called_with_it() {
    let process = TestProcess::new();
    let older = TestFilterConfig::new();
    let newer = TestFilterConfig::new();
    let (handle, heard) = open();
    process.run_main();
    started(&newer);
    handle.send(b"one", false).unwrap();
    process.run_main();
    assert_eq!(asked(newer.pointer).len(), 1);
    let gone = newer.destroy();
    assert!(
        heard.lock().unwrap().is_empty(),
        "told outside of the main thread"
    );
    handle.send(b"two", false).unwrap();
    process.run_main();
    assert_eq!(*heard.lock().unwrap(), ["Failed(Reset)"]);
    // Another configuration comes, and the handle goes: neither asks anything of the one that is gone.
    let newest = TestFilterConfig::new();
    drop(handle);
    process.run_main();
    assert!(asked(gone).is_empty());
    assert_eq!(heard.lock().unwrap().len(), 1);
    // What is opened now rides on a configuration that lives.
    let (_handle, _) = open();
    process.run_main();
    started(&newest);
    newest.destroy();
    older.destroy();
}

#[test]
fn newer_configuration_ends_streams_in_an_event_of_the_main_thread() {
    let process = TestProcess::new();
    let older = TestFilterConfig::new();
    let (_handle, heard) = open();
    process.run_main();
    let id = started(&older);
    let newer = TestFilterConfig::new();
    assert!(heard.lock().unwrap().is_empty());
    assert!(asked(older.pointer).is_empty());
    process.run_main();
    assert_eq!(*heard.lock().unwrap(), ["Failed(Reset)"]);
    assert_eq!(asked(older.pointer), [Asked::ResetHttpStream(id)]);
    newer.destroy();
    older.destroy();
}

#[test]
fn stream_without_a_configuration_cannot_start() {
    let process = TestProcess::new();
    let (_handle, heard) = open();
    process.run_main();
    assert_eq!(*heard.lock().unwrap(), ["Failed(CannotStart)"]);
}

#[test]
fn configuration_in_use_is_destroyed_afterwards() {
    let _process = TestProcess::new();
    let config = TestFilterConfig::new();
    let pointer = config.pointer as usize;
    let (destroyed, waiter) = background::with_config(pointer, |_, _| {
        let key = config.key;
        let waiter = std::thread::spawn(move || {
            remove_config(key).unwrap();
            Instant::now()
        });
        while background::with_config(pointer, |_, _| ()).is_some() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        (Instant::now(), waiter)
    })
    .unwrap();
    assert!(waiter.join().unwrap() >= destroyed);
}
