use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const NOW: u64 = 1_700_000_000_000;

fn text(value: &str) -> Value {
    Value::Text(value.as_bytes().into())
}

fn get(store: &Store, key: &str, now: u64) -> Option<Value> {
    store.get(key.as_bytes(), now, Value::clone)
}

#[test]
fn values_are_set_read_and_deleted() {
    let store = Store::new();
    assert_eq!(get(&store, "a", NOW), None);
    for value in [
        text("x"),
        text("longer"),
        Value::Number(1.5),
        Value::Bool(false),
    ] {
        store.set(b"a", value.clone(), Lifetime::Unlimited, NOW);
        assert_eq!(get(&store, "a", NOW), Some(value));
    }
    assert!(store.delete(b"a", NOW));
    assert!(!store.delete(b"a", NOW));
    assert_eq!(get(&store, "a", NOW), None);
}

#[test]
fn entries_end_when_their_time_is_over() {
    let store = Store::new();
    store.set(b"a", text("x"), Lifetime::Milliseconds(100), NOW);
    assert_eq!(get(&store, "a", NOW + 99), Some(text("x")));
    assert_eq!(
        store.remaining(b"a", NOW + 40),
        Some(Lifetime::Milliseconds(60))
    );
    assert!(!store.add(b"a", text("y"), Lifetime::Unlimited, NOW + 99));
    assert_eq!(get(&store, "a", NOW + 100), None);
    assert!(store.add(b"a", text("y"), Lifetime::Unlimited, NOW + 100));
    assert_eq!(store.remaining(b"a", NOW + 100), Some(Lifetime::Unlimited));
    assert!(!store.delete(b"b", NOW));
    assert_eq!(store.remaining(b"b", NOW), None);
}

#[test]
fn a_count_keeps_the_lifetime_that_it_began_with() {
    let store = Store::new();
    let window = Lifetime::Milliseconds(1000);
    let count = |now| store.increment(b"a", 1.0, 0.0, window, now);
    assert_eq!(count(NOW), Incremented::To(1.0));
    assert_eq!(count(NOW + 999), Incremented::To(2.0));
    assert_eq!(count(NOW + 1000), Incremented::To(1.0));
    store.set(b"a", text("x"), Lifetime::Unlimited, NOW);
    assert_eq!(count(NOW), Incremented::NoNumber);
    assert_eq!(get(&store, "a", NOW), Some(text("x")));
}

#[test]
fn increments_of_many_threads_all_count() {
    let store = Store::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    store.increment(b"a", 1.0, 0.0, Lifetime::Unlimited, NOW);
                }
            });
        }
    });
    assert_eq!(get(&store, "a", NOW), Some(Value::Number(4000.0)));
}

/// All shards together, as (entries, bytes as counted, bytes as they are).
fn sizes(store: &Store) -> (usize, usize, usize) {
    let mut sizes = (0, 0, 0);
    for shard in &store.shards {
        let shard = shard.lock().unwrap();
        sizes.0 += shard.places.len();
        sizes.1 += shard.bytes;
        sizes.2 += shard
            .entries
            .iter()
            .flatten()
            .map(Entry::cost)
            .sum::<usize>();
        assert!(shard.places.len() <= shard.most_entries);
        assert!(shard.bytes <= shard.most_bytes);
        assert_eq!(
            shard.entries.len(),
            shard.places.len() + shard.free.len(),
            "every place is in use or free"
        );
    }
    sizes
}

#[test]
fn the_bounds_hold() {
    let store = Store::bounded(8, 4096);
    for i in 0..10_000_usize {
        let key = format!("key-{}", i * 7919 % 1000);
        let value = "x".repeat(i * 31 % 2000);
        let lifetime = match i % 3 {
            0 => Lifetime::Unlimited,
            _ => Lifetime::Milliseconds(i as u64 % 50),
        };
        match i % 5 {
            0 => drop(store.delete(key.as_bytes(), NOW + i as u64)),
            1 => drop(get(&store, &key, NOW + i as u64)),
            _ => store.set(key.as_bytes(), text(&value), lifetime, NOW + i as u64),
        }
        if i % 100 == 0 {
            let (_, counted, real) = sizes(&store);
            assert_eq!(counted, real);
        }
    }
    let (entries, _, _) = sizes(&store);
    assert!(entries > SHARDS, "{entries}");
}

#[test]
fn what_is_used_stays_and_what_is_over_goes_first() {
    let mut shard = Shard::new(4, usize::MAX);
    for key in ["used", "over", "idle", "young"] {
        let end = if key == "over" { NOW } else { u64::MAX };
        shard.put(key.as_bytes(), text("x"), end, NOW - 1);
    }
    for (key, gone) in [("new", "over"), ("newer", "idle"), ("newest", "young")] {
        let place = shard.living(b"used", NOW - 1).unwrap();
        shard.entry(place).unwrap().used = true;
        shard.put(key.as_bytes(), text("y"), u64::MAX, NOW);
        assert!(!shard.places.contains_key(gone.as_bytes()), "{gone}");
        assert!(shard.places.contains_key(&b"used"[..]), "{key}");
    }
}

#[test]
fn a_shard_that_a_panic_left_begins_anew() {
    let store = Store::new();
    store.set(b"a", text("x"), Lifetime::Unlimited, NOW);
    let shown = AtomicUsize::new(0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.get(b"a", NOW, |_| {
            shown.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(shown.into_inner(), 1);
    assert_eq!(get(&store, "a", NOW), None);
    store.set(b"a", text("y"), Lifetime::Unlimited, NOW);
    assert_eq!(get(&store, "a", NOW), Some(text("y")));
}

#[test]
fn the_longest_value_fits() {
    let shard = Shard::new(ENTRIES / SHARDS, BYTES / SHARDS);
    assert!(ENTRY_COST + LONGEST_KEY + LONGEST_VALUE <= shard.most_bytes);
}

#[test]
fn a_bucket_gives_what_it_holds_and_fills_again() {
    let store = Store::new();
    let bucket = Bucket {
        capacity: 3.0,
        interval: 100.0,
    };
    let take = |amount, now| store.take(b"b", amount, bucket, now);
    assert_eq!(take(1.0, NOW), Taken::Left(2.0));
    assert_eq!(take(2.0, NOW), Taken::Left(0.0));
    assert_eq!(take(1.0, NOW), Taken::Wait(100.0));
    assert_eq!(take(3.0, NOW), Taken::Wait(300.0));
    // What was refused took nothing.
    assert_eq!(take(1.0, NOW + 99), Taken::Wait(1.0));
    assert_eq!(take(1.0, NOW + 150), Taken::Left(0.5));
    assert_eq!(take(1.0, NOW + 10_000), Taken::Left(2.0));
    // A full bucket needs no memory.
    assert_eq!(get(&store, "b", NOW + 10_100), None);
    store.set(b"text", text("x"), Lifetime::Unlimited, NOW);
    assert_eq!(store.take(b"text", 1.0, bucket, NOW), Taken::NoNumber);
}

#[test]
fn a_bucket_that_was_slower_is_not_emptier_than_empty() {
    let store = Store::new();
    let bucket = |interval| Bucket {
        capacity: 1.0,
        interval,
    };
    assert_eq!(store.take(b"b", 1.0, bucket(1e9), NOW), Taken::Left(0.0));
    assert_eq!(store.take(b"b", 1.0, bucket(10.0), NOW), Taken::Wait(10.0));
}

#[test]
fn threads_take_no_more_than_there_is() {
    let store = Store::new();
    let taken = AtomicUsize::new(0);
    let bucket = Bucket {
        capacity: 1000.0,
        interval: 1e6 / 7.0,
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    if matches!(store.take(b"b", 1.0, bucket, NOW), Taken::Left(_)) {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), 1000);
}
