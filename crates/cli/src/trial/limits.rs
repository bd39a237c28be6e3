//! Limits of the process in which plugins are loaded for trial: memory, CPU time, the size and number of files, no
//! core dump; and by Landlock, the kernel's sandbox for processes without privileges: no file but the compiled code
//! of Wasm plugins, no TCP connection, no signal to another process. Code that escaped from LuaJIT or Wasmtime is
//! still within these.
//!
//! Kernels before 5.13, and those built without Landlock, do not limit files; those before 6.7 do not limit
//! connections, and those before 6.12 do not limit signals (<https://docs.kernel.org/userspace-api/landlock.html>).

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, RestrictionStatus, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, Scope, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The newest interface of Landlock that the rules below know. An older kernel applies those that it has.
const LANDLOCK: ABI = ABI::V6;

/// Memory that the process may write to, in bytes. Address space that a runtime only reserves does not count.
const MEMORY: u64 = 3 * 1024 * 1024 * 1024;
/// CPU time, in seconds: the end of a process whose parent is gone.
const CPU_SECONDS: u64 = 1800;
/// Size of one file, in bytes: compiled code is the largest.
const FILE_SIZE: u64 = 1024 * 1024 * 1024;
/// Open files.
const OPEN_FILES: u64 = 128;

/// Sets the limits of this process.
///
/// # Errors
/// The kernel refuses one.
pub(super) fn set() -> std::io::Result<()> {
    for (resource, most) in [
        (Resource::Data, MEMORY),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Fsize, FILE_SIZE),
        (Resource::Nofile, OPEN_FILES),
        (Resource::Core, 0),
    ] {
        let old = rustix::process::getrlimit(resource);
        // A limit that is lower already stays.
        let most = old.maximum.map_or(most, |old| old.min(most));
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )?;
    }
    Ok(())
}

/// Takes the calling thread, and all threads that it starts from now on, away from files, but for those in the folder
/// of compiled code, which is made if need be; from TCP; and from other processes.
///
/// Returns what of it the kernel enforces.
///
/// # Errors
/// The kernel has Landlock and refuses the rules.
pub(super) fn confine(
    compiled_folder: Option<&Path>,
) -> Result<RestrictionStatus, landlock::RulesetError> {
    if let Some(folder) = compiled_folder {
        // A folder that cannot be made is a warning of the cache itself.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    let files = AccessFs::from_all(LANDLOCK);
    Ruleset::default()
        .handle_access(files)?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(compiled_folder, files))?
        .restrict_self()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use landlock::RulesetStatus;

    use super::*;

    #[test]
    fn confined_code_reaches_the_compiled_code_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let compiled = folder.path().join("cache").join("compiled");
        let secret = folder.path().join("secret");
        fs::write(&secret, "s3cret").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The rules hold for one thread: other tests run on others.
        thread::spawn(move || {
            let enforced = confine(Some(&compiled)).unwrap().ruleset;
            assert_ne!(
                enforced,
                RulesetStatus::NotEnforced,
                "this test needs a kernel with Landlock (Linux 5.13 and later)"
            );
            fs::write(compiled.join("code"), "code").unwrap();
            fs::rename(compiled.join("code"), compiled.join("kept")).unwrap();
            assert_eq!(fs::read(compiled.join("kept")).unwrap(), b"code");
            for (what, done) in [
                ("read", fs::read(&secret).map(drop)),
                ("written", fs::write(&secret, "changed")),
                ("removed", fs::remove_file(&secret)),
                ("listed", fs::read_dir(folder.path()).map(drop)),
            ] {
                let kind = done.map_err(|error| error.kind());
                assert_eq!(kind, Err(std::io::ErrorKind::PermissionDenied), "{what}");
            }
            if enforced == RulesetStatus::FullyEnforced {
                let connected = TcpStream::connect(address).map_err(|error| error.kind());
                assert_eq!(
                    connected.map(drop),
                    Err(std::io::ErrorKind::PermissionDenied)
                );
            }
        })
        .join()
        .unwrap();
    }
}
