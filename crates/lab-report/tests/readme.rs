//! The README's table of numbers is that of the run that is kept in `docs/lab/mechanisms`, and nothing else.
//! `UPDATE_DOCS=1 cargo test -p outrider-lab-report --test readme` writes it again.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::Path;

use outrider_lab_report::{Run, digest};

const BEGIN: &str = "<!-- numbers of docs/lab/mechanisms/run.json: begin -->";
const END: &str = "<!-- numbers of docs/lab/mechanisms/run.json: end -->";

#[test]
fn readme_shows_the_numbers_of_the_kept_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("docs/lab/mechanisms");
    let run = Run::read(&fs::read_to_string(folder.join("run.json")).unwrap()).unwrap();
    let digest = digest(&run).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (before, rest) = readme
        .split_once(BEGIN)
        .unwrap_or_else(|| panic!("README.md has no line `{BEGIN}`"));
    let (_, after) = rest
        .split_once(END)
        .unwrap_or_else(|| panic!("README.md has no line `{END}`"));
    let whole = format!(
        "{before}{BEGIN}\n\n{}\n\n{END}{after}",
        digest.markdown.trim()
    );
    let chart = folder.join("normal.svg");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(root.join("README.md"), &whole).unwrap();
        fs::write(&chart, &digest.chart).unwrap();
    }
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    assert!(
        readme == whole && fs::read_to_string(&chart).unwrap_or_default() == digest.chart,
        "README.md or docs/lab/mechanisms/normal.svg is not what docs/lab/mechanisms/run.json says; write them again with \
         UPDATE_DOCS=1 cargo test -p outrider-lab-report --test readme"
    );
}
