//! Drop queue: VMs and generations are dropped on one thread of their own, because to free them takes
//! time and their last owner may be a stream that ends on a worker.

use std::any::Any;
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Dropped = Box<dyn Any + Send>;

static QUEUE: LazyLock<Option<Sender<Dropped>>> = LazyLock::new(|| {
    let (sender, receiver) = channel::<Dropped>();
    thread::Builder::new()
        .name("outrider-drop".into())
        .spawn(move || {
            for dropped in receiver {
                // A destructor that panics must not end the thread: the queue would stop draining.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(dropped)));
            }
        })
        .ok()
        .map(|_runs_as_long_as_the_process| sender)
});

/// Drops a value on the drop queue's thread. Where that thread could not be started the value is dropped
/// here.
pub fn drop_later(value: impl Send + 'static) {
    if let Some(queue) = &*QUEUE {
        drop(queue.send(Box::new(value)));
    }
}

/// Starts the drop queue's thread: called where a plugin is loaded, not on a worker.
pub fn start_drop_queue() {
    LazyLock::force(&QUEUE);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    struct Reports(mpsc::Sender<thread::ThreadId>, bool);

    impl Drop for Reports {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
            assert!(!self.1, "this destructor panics");
        }
    }

    #[test]
    fn values_are_dropped_on_another_thread_also_after_a_panic() {
        start_drop_queue();
        let (sender, receiver) = mpsc::channel();
        for panics in [false, true, false] {
            drop_later(Reports(sender.clone(), panics));
        }
        for _ in 0..3 {
            let thread = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_ne!(thread, thread::current().id());
        }
    }
}
