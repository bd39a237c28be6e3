//! What the clients of a run counted, and the pauses of the machine in which nothing can be judged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many problems are told in words.
const DETAILED: usize = 20;
/// How many problems are kept.
const MOST: usize = 10_000;
/// Interval of the thread that looks for pauses.
const TICK: Duration = Duration::from_millis(100);
/// A thread that was to sleep for [`TICK`] and woke so much later did not run meanwhile.
const PAUSE: Duration = Duration::from_secs(1);
/// What is wrong so soon after a pause may be its consequence.
const AFTERMATH: Duration = Duration::from_secs(5);

/// What all clients counted.
#[derive(Debug)]
pub(super) struct Counts {
    /// Answers that were compared with what they have to be.
    pub(super) compared: AtomicU64,
    /// Answers of callouts in parts that a plugin compared.
    pub(super) callouts: AtomicU64,
    /// Trailers that were compared.
    pub(super) trailers: AtomicU64,
    /// Requests on hosts with faulty upstreams that ended in time.
    pub(super) ended: AtomicU64,
    /// Turns of wild clients.
    pub(super) turns: AtomicU64,
    found: Mutex<Vec<Found>>,
    pauses: Mutex<Vec<(Instant, Instant)>>,
    began: Instant,
}

/// A problem, and the time in which a pause of the machine may have caused it.
#[derive(Debug)]
struct Found {
    earliest: Instant,
    latest: Instant,
    what: String,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            compared: AtomicU64::new(0),
            callouts: AtomicU64::new(0),
            trailers: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            found: Mutex::new(Vec::new()),
            pauses: Mutex::new(Vec::new()),
            began: Instant::now(),
        }
    }

    /// Keeps what went wrong with a request that was begun at `since`.
    pub(super) fn wrong(&self, since: Instant, what: &str) {
        let now = Instant::now();
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() < MOST {
            found.push(Found {
                earliest: since.checked_sub(AFTERMATH).unwrap_or(since),
                latest: now,
                what: format!("{:.1} s: {what}", (now - self.began).as_secs_f64()),
            });
        }
    }

    /// Returns how many answers were wrong, the first of them in words, and how many more were wrong while the
    /// machine stood still, or soon after, and are not judged.
    ///
    /// A pause is known only after its end, perhaps after the problems that it made, so this looks at all of them.
    pub(super) fn problems(&self) -> (usize, Vec<String>, usize) {
        let pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let judged: Vec<&Found> = found
            .iter()
            .filter(|found| {
                !pauses
                    .iter()
                    .any(|(begin, end)| *end >= found.earliest && *begin <= found.latest)
            })
            .collect();
        let words = judged.iter().take(DETAILED);
        (
            judged.len(),
            words.map(|found| found.what.clone()).collect(),
            found.len() - judged.len(),
        )
    }

    /// Returns how often this process stood still, and for how long altogether.
    pub(super) fn pauses(&self) -> (usize, Duration) {
        let pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        (
            pauses.len(),
            pauses.iter().map(|(begin, end)| *end - *begin).sum(),
        )
    }

    fn pause(&self, begin: Instant, end: Instant) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.push((begin, end));
    }
}

/// A thread that notices when this process does not run: stopped by a signal, or on a machine that stood still.
#[derive(Debug)]
pub(super) struct PauseWatch {
    ends: Arc<AtomicBool>,
}

impl PauseWatch {
    pub(super) fn start(counts: &Arc<Counts>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (watched, counts) = (Arc::clone(&ends), Arc::clone(counts));
        std::thread::spawn(move || {
            while !watched.load(Ordering::Relaxed) {
                let begin = Instant::now();
                std::thread::sleep(TICK);
                if begin.elapsed() > TICK + PAUSE {
                    counts.pause(begin, Instant::now());
                }
            }
        });
        Self { ends }
    }
}

impl Drop for PauseWatch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_judged_unless_the_machine_stood_still_meanwhile() {
        let counts = Counts::new();
        let long_ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        counts.wrong(Instant::now(), "judged");
        let ends = Instant::now() + Duration::from_mins(1);
        counts.pause(ends, ends);
        assert_eq!(counts.problems().0, 1);
        // A pause that ended a second before the request began, and was found later.
        let (Some(begin), Some(end)) = (long_ago(3), long_ago(1)) else {
            return;
        };
        counts.wrong(Instant::now(), "not judged");
        counts.pause(begin, end);
        let (count, _, unjudged) = counts.problems();
        assert_eq!((count, unjudged), (0, 2));
        assert_eq!(counts.pauses().0, 2);
    }
}
