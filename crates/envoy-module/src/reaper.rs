//! Drops what takes time to drop on a thread of its own, never on a worker.

use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Grave = Box<dyn Send>;

static GRAVES: LazyLock<Option<Sender<Grave>>> = LazyLock::new(|| {
    let (sender, receiver) = channel();
    thread::Builder::new()
        .name("outrider-reaper".into())
        .spawn(move || receiver.into_iter().for_each(drop))
        .ok()
        .map(|_running_for_good| sender)
});

/// Gives up what somebody else may own too; if this was its last owner, it ends on the reaper's thread.
pub(crate) fn bury(owned: impl Send + 'static) {
    if let Some(graves) = &*GRAVES {
        // The receiver lives as long as the process; were it gone, it would end here.
        drop(graves.send(Box::new(owned)));
    }
}
