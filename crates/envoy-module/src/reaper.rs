//! Drops what takes time to drop on a thread of its own, never on a worker.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;

use crate::generation::Core;

static GRAVES: LazyLock<Option<Sender<Arc<Core>>>> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    thread::Builder::new()
        .name("outrider-reaper".into())
        .spawn(move || receiver.into_iter().for_each(drop))
        .ok()
        .map(|_running_for_good| sender)
});

/// Gives up a core; if this was its last owner, it ends on the reaper's thread.
pub(crate) fn bury(core: Arc<Core>) {
    if let Some(graves) = &*GRAVES {
        // The receiver lives as long as the process; were it gone, the core would end here.
        drop(graves.send(core));
    }
}
