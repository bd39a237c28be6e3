//! Closes VMs on a thread of its own: to give their memory back takes time, and the last owner of a VM may be
//! a stream that ends on a worker.

use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::vm::Vm;

static GRAVES: LazyLock<Option<Sender<Vm>>> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    thread::Builder::new()
        .name("outrider-close".into())
        .spawn(move || receiver.into_iter().for_each(drop))
        .ok()
        .map(|_running_for_good| sender)
});

/// Has a VM closed that nobody uses any more.
pub(crate) fn bury(vm: Vm) {
    if let Some(graves) = &*GRAVES {
        // The receiver lives as long as the process; were it gone, it would be closed here.
        drop(graves.send(vm));
    }
}

/// Starts the thread: where a plugin is loaded, not on a worker.
pub(crate) fn start() {
    LazyLock::force(&GRAVES);
}
