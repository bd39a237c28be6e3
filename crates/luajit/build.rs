//! Builds LuaJIT from the sources of the crate `luajit-src`, with one change: a table's hash part is rebuilt in linear time.
//!
//! `luajit-src` copies its sources and builds them. Then `lj_tab.c` is changed and built once more.

use std::error::Error;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The first line of `lj_tab_resize`; the new functions go before it.
const RESIZE_BEGINS: &str = "/* Resize a table to fit the new array/hash part sizes. */\n";
/// The first of the last lines of `lj_tab_resize`, which the change replaces.
const RESIZE_TAIL_BEGINS: &str = "  if (asize < oldasize) {  /* Array part shrinks? */\n";
/// The first line behind `lj_tab_resize`.
const RESIZE_TAIL_ENDS: &str = "static uint32_t countint(";

/// What is built into LuaJIT, for the published build and for the second one.
const LUA_52: bool = true;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    for file in ["build.rs", "c/reinsert.c", "c/resize_tail.c"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let artifacts = luajit_src::Build::new().lua52compat(LUA_52).try_build()?;

    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let sources = out_dir.join("luajit-build").join("src");
    let table = sources.join("lj_tab.c");
    let changed = linear_rehash(&fs::read_to_string(&table).map_err(at(&table))?)?;
    fs::write(&table, changed).map_err(at(&table))?;
    make(&sources)?;
    let library = sources.join("libluajit.a");
    fs::copy(&library, artifacts.lib_dir().join("libluajit.a")).map_err(at(&library))?;

    artifacts.print_cargo_metadata();
    Ok(())
}

/// `lj_tab.c` with the linear rehash. An error says what does not fit: then the published sources have changed.
fn linear_rehash(source: &str) -> Result<String, String> {
    let resize = only(source, RESIZE_BEGINS)?;
    let tail = only(source, RESIZE_TAIL_BEGINS)?;
    let behind = only(source, RESIZE_TAIL_ENDS)?;
    let (Some(before), Some(head), Some(after)) = (
        source.get(..resize),
        source.get(resize..tail),
        source.get(behind..),
    ) else {
        return Err("lj_tab.c: `lj_tab_resize` is not where the change expects it".to_owned());
    };

    Ok([
        before,
        include_str!("c/reinsert.c"),
        head,
        include_str!("c/resize_tail.c"),
        "\n",
        after,
    ]
    .concat())
}

/// Where `text` is in `source`, which has it exactly once.
fn only(source: &str, text: &str) -> Result<usize, String> {
    let mut places = source.match_indices(text).map(|(place, _)| place);
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        _ => Err(format!(
            "lj_tab.c does not have this text exactly once: {text:?}"
        )),
    }
}

/// Builds the library anew from changed sources, with the variables that `luajit-src` builds it with.
fn make(sources: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    let compiler = cc::Build::new().warnings(false).get_compiler();
    let arguments = compiler.cflags_env();
    let arguments = arguments
        .to_str()
        .ok_or("the arguments of the C compiler are not UTF-8")?;
    let compiler = format!("{} {arguments}", compiler.path().display());

    let mut make = Command::new("make");
    make.current_dir(sources).args(["-e", "libluajit.a"]);
    let mut flags = vec!["-fPIC"];
    if LUA_52 {
        flags.push("-DLUAJIT_ENABLE_LUA52COMPAT");
    }
    // As `luajit-src` does, itself a build dependency: checks within LuaJIT where ours are on.
    if cfg!(debug_assertions) {
        make.env("CCDEBUG", "-g");
        flags.extend(["-DLUA_USE_ASSERT", "-DLUA_USE_APICHECK"]);
    }
    if env::var("TARGET").is_ok_and(|target| target.contains("linux")) {
        make.env("TARGET_SYS", "Linux");
    }
    for variable in ["STATIC_CC", "TARGET_LD"] {
        if env::var_os(variable).is_none() {
            make.env(variable, &compiler);
        }
    }
    make.env("BUILDMODE", "static")
        .env("XCFLAGS", flags.join(" "));

    let status = make.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{make:?} ended with {status}").into())
    }
}

/// An error with the path that it is about.
fn at<E: Display>(path: &Path) -> impl Fn(E) -> String {
    move |error| format!("{}: {error}", path.display())
}
