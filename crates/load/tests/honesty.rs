//! Is the latency that the generator reports the one that clients had? Against a server whose answers are known.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use outrider_load::{
    Arrivals, ErrorKind, Limit, Load, Outcome, Pacing, Phase, RequestTemplate, Schedule, Session,
    SessionOptions, Target,
};

/// Server of one thread for each connection. `/spin/N` answers after N microseconds of a busy loop, `/delay/N` after N
/// milliseconds of sleep, `/status/N` with that status, `/close` by closing; everything waits while the server is frozen.
struct Server {
    address: SocketAddr,
    frozen_until: Arc<Mutex<Option<Instant>>>,
    _alone: MutexGuard<'static, ()>,
}

/// Tests that measure time run one after another.
static ALONE: Mutex<()> = Mutex::new(());

impl Server {
    fn start() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let frozen_until = Arc::new(Mutex::new(None));
        let shared = Arc::clone(&frozen_until);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), Arc::clone(&shared));
                thread::spawn(move || serve(stream, &shared));
            }
        });
        Self {
            address,
            frozen_until,
            _alone: alone,
        }
    }

    /// Answers nothing for so long, from now.
    fn freeze(&self, duration: Duration) {
        *self
            .frozen_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + duration);
    }

    fn session(&self, connections: usize) -> Session {
        let options = SessionOptions {
            connections,
            timeout: Duration::from_secs(2),
            ..SessionOptions::default()
        };
        let target = Target::parse(&format!("http://{}/", self.address)).unwrap();
        Session::open(&target, &options).unwrap()
    }

    fn run(&self, connections: usize, pacing: Pacing, paths: &[&str]) -> Outcome {
        let requests = paths
            .iter()
            .map(|path| RequestTemplate::get(path))
            .collect();
        self.session(connections)
            .run(&Load { pacing, requests })
            .unwrap()
    }
}

fn serve(mut stream: TcpStream, frozen_until: &Mutex<Option<Instant>>) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(length) = stream.read(&mut buffer) {
        if length == 0 {
            return;
        }
        let received = Instant::now();
        let until = *frozen_until.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until {
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap()).into_owned();
        let path = text.split(' ').nth(1).unwrap_or_default();
        let mut parts = path.split('/').skip(1);
        let (what, number) = (parts.next().unwrap_or_default(), parts.next());
        let number: u64 = number
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let mut status = 200;
        match what {
            "spin" => while received.elapsed() < Duration::from_micros(number) {},
            "delay" => thread::sleep(Duration::from_millis(number)),
            "status" => status = number,
            "close" => return,
            _ => {}
        }
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\nok");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn stall_of_the_target_counts_for_every_request_that_was_due() {
    let server = Server::start();
    let mut session = server.session(16);
    let load = Load {
        pacing: Pacing::Open(Schedule::uniform(1000.0, Duration::from_secs(8))),
        requests: vec![RequestTemplate::get("/")],
    };
    let stall = Duration::from_millis(400);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(3));
            server.freeze(stall);
        });
        session.run(&load).unwrap()
    });
    let total = outcome.total();
    assert_eq!((total.due, total.succeeded, total.unsent), (8000, 8000, 0));
    // Of 8,000 requests, 400 wait for between 400 and 0 ms; 80 of them, 1 % of all, for longer than 320 ms.
    let p99 = total.latency.value_at_quantile(0.99) as f64 / 1e6;
    assert!((p99 - 320.0).abs() < 16.0, "p99 {p99} ms");
    // A closed loop would have seen the stall once for each connection: far below 1 % of the requests.
    let service = total.service.value_at_quantile(0.99) as f64 / 1e6;
    assert!(service < 100.0, "service time p99 {service} ms");
    // All but those for which a connection was free were sent late, which the report has to say.
    assert!(total.late >= 400 - 16 - 2, "{}", total.late);
    assert_ne!(outcome.limit(), Limit::None);
}

#[test]
fn microseconds_come_out_to_two_percent() {
    let server = Server::start();
    let pacing = Pacing::closed(Duration::from_secs(2));
    let outcome = server.run(1, pacing, &["/spin/200", "/spin/700"]);
    // What the loopback adds is the same for both halves of the distribution.
    let latency = outcome.total().latency;
    let [low, high] = [0.25, 0.75].map(|quantile| latency.value_at_quantile(quantile) as f64 / 1e3);
    let difference = high - low;
    assert!((difference - 500.0).abs() < 10.0, "{low} and {high} µs");
    assert!(low > 200.0 && low < 400.0, "{low} µs");
}

#[test]
fn requests_that_were_never_sent_count_with_the_time_they_waited() {
    let server = Server::start();
    // One connection, 50 ms for each answer: 20 requests a second are possible, 200 are due.
    let pacing = Pacing::Open(Schedule::uniform(200.0, Duration::from_secs(1)));
    let outcome = server.run(1, pacing, &["/delay/50"]);
    let total = outcome.total();
    assert_eq!(total.due, 200);
    assert_eq!(total.due, total.succeeded + total.unsent + total.failed());
    // At most the one that was under way when time was over.
    assert!(total.failed() <= 1);
    assert!(total.unsent > 100, "{}", total.unsent);
    assert_eq!(total.latency.len(), 200);
    assert!(total.latency.value_at_quantile(0.9) > 1_500_000_000);
    assert!(total.service.value_at_quantile(0.5) < 100_000_000);
}

#[test]
fn timeouts_closed_connections_and_statuses_are_counted_by_kind() {
    let server = Server::start();
    let rate = |seconds| Pacing::Open(Schedule::uniform(20.0, Duration::from_secs(seconds)));
    let total = server
        .run(4, rate(1), &["/", "/status/503", "/close", "/"])
        .total();
    assert_eq!(total.due, 20);
    assert_eq!(total.succeeded, 10);
    assert_eq!(total.errors[&ErrorKind::Status], 5);
    assert_eq!(total.errors[&ErrorKind::Closed], 5);
    assert_eq!((total.statuses[&200], total.statuses[&503]), (10, 5));

    let total = server
        .run(
            2,
            Pacing::closed(Duration::from_millis(100)),
            &["/delay/5000"],
        )
        .total();
    assert_eq!(total.errors[&ErrorKind::Timeout], 2);
    // A timeout is a latency of at least the time limit, so it shows in the percentiles.
    assert_eq!(total.latency.len(), 2);
    assert!(
        total.latency.min() >= 2_000_000_000,
        "{}",
        total.latency.min()
    );
}

#[test]
fn phases_have_results_of_their_own_and_a_warm_up_has_none() {
    let server = Server::start();
    let second = Duration::from_secs(1);
    let schedule = Schedule {
        arrivals: Arrivals::Poisson,
        phases: vec![
            Phase {
                is_measured: false,
                ..Phase::constant(500.0, second)
            },
            Phase::constant(100.0, second),
            Phase::constant(400.0, second),
        ],
        seed: 7,
    };
    let outcome = server.run(8, Pacing::Open(schedule), &["/"]);
    let due: Vec<u64> = outcome.phases.iter().map(|phase| phase.due).collect();
    assert_eq!(due[0], 0);
    assert!(
        (60..=140).contains(&due[1]) && (320..=480).contains(&due[2]),
        "{due:?}"
    );
    assert_eq!(outcome.total().succeeded, due.iter().sum::<u64>());
}

#[test]
fn threads_share_the_schedule() {
    let server = Server::start();
    let options = SessionOptions {
        connections: 5,
        threads: 2,
        ..SessionOptions::default()
    };
    let target = Target::parse(&format!("http://{}/", server.address)).unwrap();
    let load = Load {
        pacing: Pacing::Open(Schedule::uniform(500.0, Duration::from_secs(1))),
        requests: vec![
            RequestTemplate::get("/"),
            RequestTemplate::get("/status/201"),
        ],
    };
    let total = Session::open(&target, &options)
        .unwrap()
        .run(&load)
        .unwrap()
        .total();
    assert_eq!((total.due, total.succeeded), (500, 500));
    assert_eq!((total.statuses[&200], total.statuses[&201]), (250, 250));
}

#[test]
fn target_that_does_not_listen_is_one_clear_sentence() {
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let target = Target::parse(&format!("http://{address}/")).unwrap();
    let error = Session::open(&target, &SessionOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!("cannot connect to {address}: ")),
        "{error}"
    );
    assert!(error.ends_with("is the target running?"), "{error}");
}
