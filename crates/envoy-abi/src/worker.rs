//! Which worker this thread is.
//!
//! Envoy tells it only to who has a stream at hand, and plugins also run without one. So each thread that runs
//! plugins has a number of the module's own: from 0, in the order in which they first ask. Envoy's workers live
//! as long as the process, so there are never more than Envoy has workers.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

const NONE: usize = usize::MAX;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
}

/// This worker's number. Asked on workers only: to ask is to get one.
#[inline]
pub(crate) fn number() -> usize {
    let known = NUMBER.get();
    if known == NONE { next() } else { known }
}

#[cold]
fn next() -> usize {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_thread_has_a_number_of_its_own() {
        let own = number();
        assert_eq!(number(), own);
        let other = std::thread::spawn(|| (number(), number()));
        let (first, second) = other.join().unwrap();
        assert_eq!(first, second);
        assert_ne!(first, own);
    }
}
