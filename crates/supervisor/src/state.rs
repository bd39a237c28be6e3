//! The folder that one running gateway keeps its files in.
//!
//! `<name>-<hash>/` in the user's folder for state (or that of a systemd service), readable by its owner only (plugin
//! configuration may hold secrets): `bootstrap.json`, `lds.json`, `cds.json`, `rds.json`, `ecds.json` and a
//! `secret-<name>.json` for each certificate (with its private key) as Envoy reads them, `admin-address.txt`, copies of the module and of the WebAssembly modules by digest, `last-good.json`,
//! `control.sock`, and `lock`, which one command holds. A command that took over keeps what its Envoy reads in `run-<number>`:
//! the Envoy before it follows the same files until it ends.
//!
//! The trap: it must not lie beside the gateway's file. Folders there are replaced while the gateway runs: by
//! Kubernetes for a ConfigMap, by deployments that switch a symbolic link, by `git clean`.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::module;

/// How long the lock of a gateway that was taken over from may take to be free.
const FREE_WITHIN: Duration = Duration::from_secs(5);

/// A state folder, held by this process, or by the gateway that it takes over from.
#[derive(Debug)]
pub(crate) struct State {
    folder: PathBuf,
    /// The number of the folder that Envoy reads; 0: the state folder itself.
    run: u32,
    lock: Mutex<Option<File>>,
}

impl State {
    /// Makes the folder if need be, and takes it.
    pub(crate) fn take(gateway: &Path, named: Option<&Path>) -> anyhow::Result<Self> {
        let folder = Self::place(gateway, named)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| {
                format!(
                    "the state folder {} cannot be made (--state names another)",
                    folder.display()
                )
            })?;
        check_private(&folder)?;
        let state = Self {
            folder,
            run: 0,
            lock: Mutex::new(None),
        };
        if !state.lock()? {
            bail!(
                "another `outrider up` uses the state folder {}; stop it, take over from it with --take-over, or name \
                 another folder with --state",
                state.folder.display()
            );
        }
        // Of gateways that took over, and have ended.
        for entry in fs::read_dir(&state.folder).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b"run-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(state)
    }

    /// Where the folder is.
    pub(crate) fn place(gateway: &Path, named: Option<&Path>) -> anyhow::Result<PathBuf> {
        match named {
            Some(folder) => Ok(std::path::absolute(folder)?),
            None => usual(gateway),
        }
    }

    /// A folder that the gateway holds which this one takes over from. This run's number follows upon that one's.
    pub(crate) fn join(folder: PathBuf, before: u32) -> anyhow::Result<Self> {
        check_private(&folder)?;
        let state = Self {
            folder,
            run: before + 1,
            lock: Mutex::new(None),
        };
        let run = state.run_folder();
        // Of a gateway that gave up.
        let _ = fs::remove_dir_all(&run);
        create_private(&run)?;
        Ok(state)
    }

    /// Takes the lock once the gateway before has released it.
    pub(crate) fn inherit(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.lock()? {
            if began.elapsed() > FREE_WITHIN {
                bail!(
                    "the gateway before does not release the state folder {}",
                    self.folder.display()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Gives the lock to the gateway that takes over.
    pub(crate) fn release(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether this process holds the folder now.
    fn lock(&self) -> anyhow::Result<bool> {
        let path = self.file("lock");
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("the file {} cannot be written", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {
                *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => {
                Err(error).context(format!("the file {} cannot be locked", path.display()))
            }
        }
    }

    /// The folder, absolute.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of this run.
    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// The folder that Envoy reads, absolute.
    pub(crate) fn run_folder(&self) -> PathBuf {
        match self.run {
            0 => self.folder.clone(),
            run => self.folder.join(format!("run-{run}")),
        }
    }

    /// Removes what this run's Envoy read, once the run of another gateway has followed.
    pub(crate) fn forget_run(&self) {
        if self.run > 0 {
            let _ = fs::remove_dir_all(self.run_folder());
        }
    }

    /// A file in the state folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Copies Outrider's module under the name that Envoy looks for, and returns the copy's folder. A copy, so that
    /// whoever replaces the file's bytes in place does not do so under a running Envoy.
    pub(crate) fn install_module(&self, module: &Path) -> anyhow::Result<PathBuf> {
        let digest = digest_of(module)?;
        let folder = self.file(&format!("module-{}", short(&digest)));
        create_private(&folder)?;
        copy(module, &folder.join(module::FILE), &digest)?;
        // Left by an earlier run, or an Envoy that is taken over from has it open. Only this process adds to the folder, and
        // its Envoy has not begun.
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let is_other = entry.path() != folder;
            if is_other && entry.file_name().as_encoded_bytes().starts_with(b"module-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(folder)
    }

    /// Where the copy of a WebAssembly module of this digest is, or will be.
    pub(crate) fn wasm(&self, digest: &str) -> PathBuf {
        self.file("wasm").join(format!("{}.wasm", plain(digest)))
    }

    /// Copies a WebAssembly module, unless there is a copy: Envoy may be started again when the user's file is another
    /// one, or half-written.
    pub(crate) fn keep_wasm(&self, module: &Path, digest: &str) -> anyhow::Result<()> {
        let kept = self.wasm(digest);
        if kept.is_file() {
            return Ok(());
        }
        create_private(&self.file("wasm"))?;
        copy(module, &kept, plain(digest))
    }

    /// Removes copies of WebAssembly modules whose digests are not among these.
    pub(crate) fn forget_wasm_except(&self, digests: &[&str]) {
        let kept: Vec<PathBuf> = digests.iter().map(|digest| self.wasm(digest)).collect();
        for entry in fs::read_dir(self.file("wasm"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if !kept.contains(&entry.path()) {
                // A copy that stays takes room, and nothing else.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A digest without the name of its function.
fn plain(digest: &str) -> &str {
    digest.strip_prefix("sha256:").unwrap_or(digest)
}

fn short(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

/// Makes a folder that only its owner can enter.
pub(crate) fn create_private(folder: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("the folder {} cannot be made", folder.display()))
}

/// Returns the SHA-256 of a file, in hexadecimal digits.
fn digest_of(file: &Path) -> anyhow::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    File::open(file)
        .and_then(|mut file| {
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(()),
                    count => hash.update(buffer.get(..count).unwrap_or_default()),
                }
            }
        })
        .with_context(|| format!("{} cannot be read", file.display()))?;
    Ok(hexadecimal(&hash.finalize()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Copies a file that has this digest; another process sees the whole copy or none.
fn copy(from: &Path, to: &Path, digest: &str) -> anyhow::Result<()> {
    let new = to.with_extension("new");
    // Left by a command that was killed.
    let _ = fs::remove_file(&new);
    let copied = (|| {
        let mut source = File::open(from)?;
        let mut target = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        std::io::copy(&mut source, &mut target)?;
        target.flush()
    })();
    copied.with_context(|| format!("{} cannot be copied to {}", from.display(), new.display()))?;
    if digest_of(&new)? != digest {
        let _ = fs::remove_file(&new);
        bail!("{} changed while it was read", from.display());
    }
    fs::rename(&new, to).with_context(|| format!("{} cannot be written", to.display()))
}

/// Refuses a state folder that another user can enter or has made: its files hold the configuration of plugins, and
/// Envoy runs by them.
fn check_private(folder: &Path) -> anyhow::Result<()> {
    let metadata = fs::symlink_metadata(folder)
        .with_context(|| format!("the state folder {} cannot be read", folder.display()))?;
    if !metadata.is_dir() {
        bail!(
            "the state folder {} is a link or a file, not a folder; name the folder itself with --state",
            folder.display()
        );
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        bail!(
            "the state folder {} belongs to another user ({}); name another one with --state",
            folder.display(),
            metadata.uid()
        );
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        bail!(
            "other users may enter the state folder {} (its mode is {mode:o}), and its files hold secrets; run \
             `chmod 700 {}`, or name another one with --state",
            folder.display(),
            folder.display()
        );
    }
    Ok(())
}

/// The usual folder of a gateway. The path of its file decides, and not where links in it lead: those change.
fn usual(gateway: &Path) -> anyhow::Result<PathBuf> {
    let variable = |name: &str| {
        let path = env::var_os(name).map(PathBuf::from);
        // The XDG Base Directory Specification: a path that is not absolute counts as not set.
        path.filter(|path| path.is_absolute())
    };
    // systemd: the first of a service's folders for state.
    let of_service = env::var("STATE_DIRECTORY").ok();
    let of_service = of_service
        .as_deref()
        .and_then(|folders| folders.split(':').next());
    let states = match of_service.filter(|folder| folder.starts_with('/')) {
        Some(folder) => PathBuf::from(folder),
        None => variable("XDG_STATE_HOME")
            .or_else(|| Some(variable("HOME")?.join(".local/state")))
            .context("no folder for state is known: HOME is not set; name one with --state")?
            .join("outrider"),
    };
    Ok(states.join(name(gateway)?))
}

/// A name for a gateway's file among all of a user's.
fn name(gateway: &Path) -> anyhow::Result<String> {
    let gateway = std::path::absolute(gateway)?;
    let name = gateway
        .file_stem()
        .map_or_else(|| "gateway".into(), |stem| stem.to_string_lossy());
    let digest = Sha256::digest(gateway.as_os_str().as_encoded_bytes());
    Ok(format!(
        "{name}-{}",
        hexadecimal(digest.get(..4).unwrap_or_default())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn state_folder_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let gateway = folder.path().join("shop.yaml");
        fs::write(&gateway, "").unwrap();
        let state = folder.path().join("state");
        let refusal = |named: &Path| State::take(&gateway, Some(named)).unwrap_err().to_string();
        for mode in [0o755, 0o750, 0o701, 0o777, 0o704] {
            fs::create_dir(&state).unwrap();
            fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
            let error = refusal(&state);
            assert!(error.contains("chmod 700"), "{error}");
            assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
            fs::remove_dir(&state).unwrap();
        }
        drop(State::take(&gateway, Some(&state)).unwrap());
        let lock = fs::metadata(state.join("lock")).unwrap();
        assert_eq!(lock.mode() & 0o777, 0o600);
        let link = folder.path().join("link");
        symlink(&state, &link).unwrap();
        let error = refusal(&link);
        assert!(error.contains("is a link"), "{error}");
    }

    #[test]
    fn one_command_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let gateway = folder.path().join("shop.yaml");
        let named = folder.path().join("state");
        let state = State::take(&gateway, Some(&named)).unwrap();
        let error = State::take(&gateway, Some(&named)).unwrap_err().to_string();
        assert!(
            error.starts_with("another `outrider up` uses the state folder "),
            "{error}"
        );
        drop(state);
        State::take(&gateway, Some(&named)).unwrap();
    }

    #[test]
    fn links_in_the_path_do_not_decide_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["1", "2"] {
            let version = folder.path().join(version);
            fs::create_dir(&version).unwrap();
            fs::write(version.join("shop.yaml"), "").unwrap();
        }
        let current = folder.path().join("current");
        let file = current.join("shop.yaml");
        symlink(folder.path().join("1"), &current).unwrap();
        let before = name(&file).unwrap();
        assert!(before.starts_with("shop-"), "{before}");
        fs::remove_file(&current).unwrap();
        symlink(folder.path().join("2"), &current).unwrap();
        assert_eq!(name(&file).unwrap(), before);
        assert_ne!(name(&folder.path().join("2/shop.yaml")).unwrap(), before);
    }

    #[test]
    fn modules_are_copies_by_digest() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::take(Path::new("g.yaml"), Some(&folder.path().join("state"))).unwrap();
        let module = folder.path().join("module.so");
        fs::write(&module, "one").unwrap();
        let first = state.install_module(&module).unwrap();
        assert_eq!(state.install_module(&module).unwrap(), first);
        fs::write(&module, "two").unwrap();
        assert_eq!(fs::read(first.join(module::FILE)).unwrap(), b"one");
        let second = state.install_module(&module).unwrap();
        assert_eq!(fs::read(second.join(module::FILE)).unwrap(), b"two");
        assert!(!first.exists());

        let digest = format!("sha256:{}", digest_of(&module).unwrap());
        state.keep_wasm(&module, &digest).unwrap();
        fs::remove_file(&module).unwrap();
        state.keep_wasm(&module, &digest).unwrap();
        assert_eq!(fs::read(state.wasm(&digest)).unwrap(), b"two");
        fs::write(&module, "half").unwrap();
        let error = state
            .keep_wasm(&module, "sha256:00")
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("changed while it was read"), "{error}");
        state.forget_wasm_except(&[&digest]);
        assert!(state.wasm(&digest).is_file());
        state.forget_wasm_except(&[]);
        assert!(!state.wasm(&digest).exists());
    }
}
