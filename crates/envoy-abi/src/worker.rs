//! Which worker this thread is.
//!
//! Envoy tells it only to who has a stream at hand, and plugins also run without one. So each worker thread has a
//! number of the module's own: from 0, in the order in which they first ask. Envoy's workers live as long as the
//! process, so there are never more than Envoy has workers. Envoy's main thread, which may have streams where the
//! filter stands in a chain of upstream filters, has none: a plugin is not available there.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

const NONE: usize = usize::MAX;

/// The mark of the main thread.
const MAIN: usize = usize::MAX - 1;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
}

/// This worker's number. `None` on the main thread. To ask is to get one.
#[inline]
pub(crate) fn number() -> Option<usize> {
    match NUMBER.get() {
        NONE => Some(next()),
        MAIN => None,
        known => Some(known),
    }
}

/// Marks this thread as the main thread. Called in hooks that run nowhere else.
pub(crate) fn mark_main_thread() {
    NUMBER.set(MAIN);
}

#[cold]
fn next() -> usize {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

#[cfg(test)]
mod tests {
    use super::{mark_main_thread, number};

    #[test]
    fn a_thread_has_a_number_of_its_own() {
        let own = number();
        assert_eq!(number(), own);
        let other = std::thread::spawn(|| (number(), number()));
        let (first, second) = other.join().unwrap();
        assert_eq!(first, second);
        assert_ne!(first, own);
        assert!(own.is_some() && first.is_some());
    }

    #[test]
    fn main_thread_has_no_number() {
        let main = std::thread::spawn(|| {
            mark_main_thread();
            number()
        });
        assert_eq!(main.join().unwrap(), None);
    }
}
