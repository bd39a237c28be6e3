//! Builds the guests that tests run: included by the tests of several crates, part of none.
//!
//! The trap: cargo is started within a cargo that tests. It has a target folder of its own, in the one of the
//! tests, so that neither waits for the other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The versions of the ABI that the probe can be marked with.
pub(crate) const ABIS: [&str; 3] = ["0.1.0", "0.2.0", "0.2.1"];

/// The probe for a version of the ABI, built.
///
/// # Panics
/// It does not build; the message is the compiler's.
pub(crate) fn probe(abi: &str) -> PathBuf {
    // Tests of one process do not build the same at once.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap();
    assert!(ABIS.contains(&abi), "there is no ABI {abi}");
    let feature = format!("abi_{}", abi.replace('.', "_"));
    let target = std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(3)
        .unwrap()
        .join("guests")
        .join(&feature);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .join("crates/wasm-runtime/guests/probe/Cargo.toml");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--offline", "--quiet"])
        .args(["--target", "wasm32-wasip1", "--features", &feature])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "the probe does not build (is Rust's target there? rustup target add wasm32-wasip1):\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
    target.join("wasm32-wasip1/release/probe.wasm")
}
