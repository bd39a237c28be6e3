//! Closes VMs on a thread of its own: it takes time, and the last owner of a plugin's code may be a stream
//! or a route that ends on a worker.

use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::plugin::WorkerVm;

static GRAVES: LazyLock<Option<Sender<Vec<WorkerVm>>>> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    thread::Builder::new()
        .name("outrider-close".into())
        .spawn(move || receiver.into_iter().for_each(drop))
        .ok()
        .map(|_running_for_good| sender)
});

/// Has VMs closed that nobody uses any more.
pub(crate) fn bury(vms: Vec<WorkerVm>) {
    if let Some(graves) = &*GRAVES {
        // The receiver lives as long as the process; were it gone, they would be closed here.
        drop(graves.send(vms));
    }
}

/// Starts the thread: where a plugin is loaded, not on a worker.
pub(crate) fn start() {
    LazyLock::force(&GRAVES);
}
