//! Runs the cases of a plugin's folder: `cargo run -p outrider-plugin-testkit --example cases -- FOLDER`.
#![expect(clippy::print_stdout, reason = "a command speaks to whoever calls it")]

use std::path::Path;
use std::process::ExitCode;

use outrider_plugin_testkit::{LoadedPlugin, load_cases, run_case};

fn told<T: ToString>(problems: &[T]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// How many cases ran and how many of them came out right, or why none could run.
fn run(folder: &Path) -> Result<(usize, usize), String> {
    let package = outrider_plugin_store::open(folder).map_err(|problems| told(&problems))?;
    let plugin = LoadedPlugin::from_package(&package).map_err(|error| error.to_string())?;
    let cases = load_cases(&folder.join("cases")).map_err(|problems| told(&problems))?;
    let mut right = 0;
    for case in &cases {
        let result = run_case(&plugin, case);
        if result.is_right() {
            right += 1;
            println!("ok    {result}");
        } else {
            println!("WRONG {result}");
        }
    }
    Ok((cases.len(), right))
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        println!("which plugin? say its folder");
        return ExitCode::from(2);
    };
    match run(Path::new(&folder)) {
        Ok((ran, right)) => {
            println!("{right} of {ran} cases are right");
            if ran == right {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(problems) => {
            println!("{problems}");
            ExitCode::FAILURE
        }
    }
}
