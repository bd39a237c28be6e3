//! How one command takes a running gateway over from another: what the two say to each other.
//!
//! They talk through `control.sock` in the state folder, a line of JSON at a time. Envoy's hot restart hands over the
//! sockets; all that has to be agreed on is when:
//!
//! | the new command | the old one |
//! |---|---|
//! | `take_over` | `offer`: changes nothing from now on; or `refused` |
//! | compiles the file, and tries it with an Envoy that does not listen | serves on |
//! | `starting` | `go` |
//! | starts its Envoy, which takes the sockets | its Envoy drains |
//! | `serving` | `released`: gives up the state folder's lock |
//! | its Envoy ends the old one when the time to drain is over | ends when its Envoy has |
//!
//! Whoever ends the connection gives up. Before `starting` nothing has happened; after it the old command starts its Envoy
//! anew, as it cannot know whether that one still listens.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use outrider_envoy_process::Generation;
use serde::{Deserialize, Serialize};

/// The format of these messages; another one is refused.
const FORMAT: u32 = 1;
const SOCKET: &str = "control.sock";
/// No message is longer.
const LONGEST: u64 = 64 * 1024;
/// How long the new command waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long it asks again while a change is being applied, and how often.
const ASKS_FOR: Duration = Duration::from_mins(1);
const ASKS_EVERY: Duration = Duration::from_millis(200);

/// What the new command says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Asked {
    TakeOver { format: u32 },
    Starting,
    Serving { process: u32 },
}

/// What the old one answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Offer(Offer),
    /// Not now: ask again.
    Busy,
    /// Why it is impossible.
    Refused(String),
    Go,
    Released,
}

/// What the new command needs to know of the old one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Its Envoy.
    pub(crate) generation: Generation,
    /// The folder of that Envoy's sockets for hot restarts.
    pub(crate) sockets: PathBuf,
    /// The number of its run folder.
    pub(crate) run: u32,
    /// Where it listens.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Its worker threads; each has a socket of its own for each address.
    pub(crate) workers: u32,
}

/// Where commands that want to take over ask. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Door {
    /// The folder of the socket, through which it is addressed: its own path may be too long for a socket.
    _folder: File,
    socket: PathBuf,
}

impl Door {
    /// Listens in a state folder that this process holds. What is asked is sent to `asked`.
    pub(crate) fn open<T: From<Said> + Send + 'static>(
        folder: &Path,
        asked: Sender<T>,
    ) -> anyhow::Result<Self> {
        let socket = folder.join(SOCKET);
        // Left by a command that was killed: this process has the lock.
        let _ = fs::remove_file(&socket);
        let handle = File::open(folder)
            .with_context(|| format!("the folder {} cannot be opened", folder.display()))?;
        let listener = UnixListener::bind(through(&handle))
            .with_context(|| format!("{} cannot be made", socket.display()))?;
        thread::Builder::new()
            .name("take-over".to_owned())
            .spawn(move || {
                static NEXT: AtomicU64 = AtomicU64::new(0);
                for stream in listener.incoming().flatten() {
                    let asked = asked.clone();
                    let number = NEXT.fetch_add(1, Ordering::Relaxed);
                    // Without a thread the connection is closed, and the other gives up.
                    let _ = thread::Builder::new()
                        .name("take-over".to_owned())
                        .spawn(move || listen(&Successor { number, stream }, &asked));
                }
            })
            .context("no thread can be started")?;
        Ok(Self {
            _folder: handle,
            socket,
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// A command that asks to take over.
#[derive(Debug)]
pub(crate) struct Successor {
    number: u64,
    stream: UnixStream,
}

/// What a successor said; `None`: it is gone, or said what is no message.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) successor: Successor,
    pub(crate) asked: Option<Asked>,
}

impl PartialEq for Successor {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Successor {
    pub(crate) fn offer(&self, offer: Offer) {
        self.tell(&Told::Offer(offer));
    }

    pub(crate) fn busy(&self) {
        self.tell(&Told::Busy);
    }

    pub(crate) fn refuse(&self, why: &str) {
        self.tell(&Told::Refused(why.to_owned()));
    }

    pub(crate) fn go(&self) {
        self.tell(&Told::Go);
    }

    pub(crate) fn released(&self) {
        self.tell(&Told::Released);
    }

    /// Ends the connection: it has to give up.
    pub(crate) fn dismiss(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    fn tell(&self, told: &Told) {
        // One that does not listen any more is noticed by the thread that reads.
        let _ = send(&self.stream, told);
    }
}

fn listen<T: From<Said>>(successor: &Successor, asked: &Sender<T>) {
    let Ok(stream) = successor.stream.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(stream);
    loop {
        let said = receive::<Asked>(&mut reader).ok();
        let is_end = said.is_none();
        let Ok(stream) = successor.stream.try_clone() else {
            return;
        };
        let number = successor.number;
        let said = Said {
            successor: Successor { number, stream },
            asked: said,
        };
        if asked.send(said.into()).is_err() || is_end {
            return;
        }
    }
}

/// Whether a message is of a format that this command speaks.
pub(crate) fn is_understood(asked: &Asked) -> bool {
    !matches!(asked, Asked::TakeOver { format } if *format != FORMAT)
}

/// The command that is taken over from.
#[derive(Debug)]
pub(crate) struct Predecessor {
    reader: BufReader<UnixStream>,
    pub(crate) offer: Offer,
}

impl Predecessor {
    /// Asks the command that uses a state folder; `None`: there is none.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub(crate) fn ask(folder: &Path) -> anyhow::Result<Option<Self>> {
        let Ok(handle) = File::open(folder) else {
            return Ok(None);
        };
        let began = Instant::now();
        loop {
            let Ok(stream) = UnixStream::connect(through(&handle)) else {
                return Ok(None);
            };
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            send(&stream, &Asked::TakeOver { format: FORMAT })?;
            let mut reader = BufReader::new(stream);
            match receive(&mut reader).context("the gateway that runs does not answer")? {
                Told::Offer(offer) => return Ok(Some(Self { reader, offer })),
                Told::Busy if began.elapsed() < ASKS_FOR => thread::sleep(ASKS_EVERY),
                Told::Busy => bail!(
                    "the gateway that runs has been applying a change for {} s; try again when it has",
                    ASKS_FOR.as_secs()
                ),
                Told::Refused(why) => bail!("the gateway that runs cannot be taken over: {why}"),
                told @ (Told::Go | Told::Released) => bail!("the gateway that runs says {told:?}"),
            }
        }
    }

    /// Tells that this command's Envoy is about to start.
    pub(crate) fn starting(&mut self) -> anyhow::Result<()> {
        self.say(&Asked::Starting, &Told::Go)
    }

    /// Tells that it serves; the state folder is free then.
    pub(crate) fn serving(&mut self) -> anyhow::Result<()> {
        let process = std::process::id();
        self.say(&Asked::Serving { process }, &Told::Released)
    }

    /// Whether the other command has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        let stream = self.reader.get_ref();
        let set = stream.set_nonblocking(true);
        match set.and_then(|()| self.reader.get_mut().read(&mut [0])) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    fn say(&mut self, asked: &Asked, expected: &Told) -> anyhow::Result<()> {
        let gave_up = "the gateway that runs gave up the take-over";
        send(self.reader.get_ref(), asked).context(gave_up)?;
        let told: Told = receive(&mut self.reader).context(gave_up)?;
        if told != *expected {
            bail!("{gave_up}: it says {told:?}");
        }
        Ok(())
    }
}

fn through(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()))
}

fn send<T: Serialize>(mut stream: &UnixStream, message: &T) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    Ok(stream.write_all(line.as_bytes())?)
}

fn receive<T: for<'a> Deserialize<'a>>(reader: &mut BufReader<UnixStream>) -> anyhow::Result<T> {
    let mut line = String::new();
    reader.by_ref().take(LONGEST).read_line(&mut line)?;
    if !line.ends_with('\n') {
        bail!("the connection ended");
    }
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn offer() -> Offer {
        Offer {
            generation: Generation {
                base_id: 7,
                epoch: 1,
            },
            sockets: PathBuf::from("/tmp/sockets"),
            run: 1,
            addresses: vec!["127.0.0.1:80".parse().unwrap()],
            workers: 2,
        }
    }

    #[test]
    fn one_command_takes_over_from_another() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than the address of a socket may be.
        let folder = folder.path().join("f".repeat(120));
        fs::create_dir(&folder).unwrap();
        assert!(Predecessor::ask(&folder).unwrap().is_none());
        let (sender, said) = channel::<Said>();
        let door = Door::open(&folder, sender).unwrap();
        let next = thread::spawn({
            let folder = folder.clone();
            move || {
                let mut before = Predecessor::ask(&folder).unwrap().unwrap();
                assert_eq!(before.offer, offer());
                before.starting().unwrap();
                before.serving().unwrap();
                assert!(!before.has_ended());
                before
            }
        });
        let expect = |expected: Option<Asked>| {
            let Said { successor, asked } = said.recv().unwrap();
            assert_eq!(asked, expected);
            successor
        };
        let format = FORMAT;
        expect(Some(Asked::TakeOver { format })).busy();
        let second = expect(None);
        second.dismiss();
        let third = expect(Some(Asked::TakeOver { format }));
        assert!(third != second);
        third.offer(offer());
        expect(Some(Asked::Starting)).go();
        let process = std::process::id();
        assert!(third == expect(Some(Asked::Serving { process })));
        third.released();
        let mut before = next.join().unwrap();
        third.dismiss();
        assert!(before.has_ended());
        expect(None);
        drop(door);
        assert!(Predecessor::ask(&folder).unwrap().is_none());
    }

    #[test]
    fn whoever_is_refused_or_left_alone_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, said) = channel::<Said>();
        let _door = Door::open(folder.path(), sender).unwrap();
        let asks = |folder: &Path| {
            let folder = folder.to_owned();
            thread::spawn(move || Predecessor::ask(&folder))
        };
        let next = asks(folder.path());
        said.recv().unwrap().successor.refuse("there is no room");
        let error = next.join().unwrap().unwrap_err();
        assert!(
            error.to_string().ends_with("taken over: there is no room"),
            "{error}"
        );
        while said.recv().unwrap().asked.is_some() {}
        let next = asks(folder.path());
        let successor = said.recv().unwrap().successor;
        successor.offer(offer());
        let mut before = next.join().unwrap().unwrap().unwrap();
        successor.dismiss();
        let error = before.starting().unwrap_err();
        assert!(error.to_string().contains("gave up"), "{error}");
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, said) = channel::<Said>();
        let _door = Door::open(folder.path(), sender).unwrap();
        for line in ["{\"take_over\": {}}\n", "x", &"y".repeat(100_000)] {
            let mut stream = UnixStream::connect(folder.path().join(SOCKET)).unwrap();
            // It may be closed before all is written.
            let _ = stream.write_all(line.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            assert_eq!(said.recv().unwrap().asked, None);
        }
        assert!(!is_understood(&Asked::TakeOver { format: 2 }));
    }
}
