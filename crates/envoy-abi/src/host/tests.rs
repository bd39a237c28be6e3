//! [`EnvoyHost`] over headers and bodies that the stub of Envoy frees at each change.

use super::*;
use crate::stub::messages::{body, headers, values};
use crate::stub::{TestConfig, TestPlugin, envoy, pointer};

/// A small generator of numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap() % limit
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Seeds, and so streams.
const STREAMS: u64 = if cfg!(miri) { 8 } else { 500 };

/// Calls `run` with the host of one hook.
fn in_hook<T>(
    filter: FilterPtr,
    receiving: Option<Direction>,
    run: impl FnOnce(&mut EnvoyHost<'_>) -> T,
) -> T {
    let plugin = Arc::new(TestPlugin::new(|_, _| {
        Ok(outrider_plugin_api::Decision::Continue)
    }));
    let config = TestConfig::of(&plugin);
    run(&mut EnvoyHost {
        callbacks: envoy(),
        filter,
        config: &*config,
        receiving,
        timer_keys: &mut SmallVec::new(),
        start_millis: 0,
        worker: 0,
        was_grpc: &mut None,
        limited: &mut false,
        known: RefCell::default(),
        wake_key: &Cell::new(0),
    })
}

const MAPS: [HeaderMap; 2] = [HeaderMap::RequestHeaders, HeaderMap::ResponseHeaders];
const NAMES: [&[u8]; 9] = [
    b":authority",
    b"host",
    b"Host",
    b"accept",
    b"content-type",
    b"X-One",
    b"x-one",
    b"x-a-name-of-more-than-a-word",
    b"x",
];

/// Asks for headers, and holds on to all answers until the end.
fn read(host: &EnvoyHost<'_>, filter: FilterPtr, random: &mut Random) {
    let mut answers = Vec::new();
    for _ in 0..random.below(5) {
        let (map, name, index) = (random.of(&MAPS), random.of(&NAMES), random.below(3));
        let is = values(filter, map_number(map), name);
        assert_eq!(host.header_count(map, name), is.len(), "{name:?}");
        answers.push((host.header(map, name, index), is.get(index).cloned()));
    }
    for (answer, is) in answers {
        assert_eq!(answer, is.as_deref());
    }
}

fn change(host: &mut EnvoyHost<'_>, random: &mut Random) {
    let (map, name) = (random.of(&MAPS), random.of(&NAMES));
    let value = vec![b'v'; random.below(20)];
    assert!(match random.below(3) {
        0 => host.set_header(map, name, &value),
        1 => host.add_header(map, name, &value),
        _ => host.remove_header(map, name),
    });
}

#[test]
fn headers_in_any_order_of_reads_and_changes_are_those_of_envoy() {
    for seed in 1..=STREAMS {
        let mut random = Random(seed);
        let filter = pointer();
        for _ in 0..3 {
            in_hook(filter, None, |host| {
                for _ in 0..12 {
                    read(host, filter, &mut random);
                    for _ in 0..random.below(3) {
                        change(host, &mut random);
                    }
                }
                for map in MAPS {
                    let mut all = Vec::new();
                    let mut visit = |name: &[u8], value: &[u8]| {
                        all.push((name.to_vec(), value.to_vec()));
                    };
                    host.headers(map, &mut visit);
                    assert_eq!(all, headers(filter, map_number(map)), "seed {seed}");
                }
            });
        }
    }
}

#[test]
fn removed_content_type_is_absent_though_its_removal_listed_the_map() {
    let (filter, map) = (pointer(), HeaderMap::RequestHeaders);
    in_hook(filter, None, |host| {
        host.set_header(map, CONTENT_TYPE, b"application/grpc");
    });
    in_hook(filter, None, |host| {
        for name in [b"a", b"b"] {
            assert_eq!(host.header(map, name, 0), None);
        }
        // Asks a third time, for what the request says of gRPC.
        assert!(host.remove_header(map, CONTENT_TYPE));
        assert_eq!(host.header(map, CONTENT_TYPE, 0), None);
        assert!(host.is_grpc());
    });
}

#[test]
fn value_that_was_set_stays_readable_while_the_map_is_listed() {
    let filter = pointer();
    in_hook(filter, None, |host| {
        for name in ["a", "b", "c", "d"] {
            host.set_header(HeaderMap::RequestHeaders, name.as_bytes(), b"one");
        }
        let host = &*host;
        let header = |name: &str| host.header(HeaderMap::RequestHeaders, name.as_bytes(), 0);
        let held = header("d");
        for name in ["none", "a", "b", "c", "other", "a"] {
            header(name);
        }
        // Another map takes the table.
        for _ in 0..5 {
            host.header(HeaderMap::ResponseHeaders, b"a", 0);
        }
        assert_eq!(held, Some(b"one".as_slice()));
    });
}

#[test]
fn bodies_are_read_in_pieces_and_changed() {
    for seed in 1..=STREAMS {
        let mut random = Random(seed);
        let filter = pointer();
        let buffers = [BodyBuffer::Received, BodyBuffer::Held];
        in_hook(filter, Some(Direction::Request), |host| {
            for _ in 0..20 {
                let buffer = random.of(&buffers);
                let number = body_number(Direction::Request, buffer);
                let bytes = vec![b'x'; random.below(20)];
                let before = body(filter, number);
                let is = if random.below(3) == 0 {
                    let length = random.below(before.len() + 1);
                    assert!(host.buffer_drain(Direction::Request, buffer, length));
                    before[length..].to_vec()
                } else {
                    assert!(host.buffer_append(Direction::Request, buffer, &bytes));
                    [before, bytes].concat()
                };
                let mut seen = Vec::new();
                let mut visit = |piece: &[u8]| seen.extend_from_slice(piece);
                host.buffer_pieces(Direction::Request, buffer, &mut visit);
                assert_eq!(seen, is, "seed {seed}");
                assert_eq!(host.buffer_len(Direction::Request, buffer), is.len());
            }
        });
    }
}
