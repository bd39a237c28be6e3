//! `outrider plugin new`: a folder with a plugin that works, to begin with.
//!
//! What it writes are the files in this crate's `templates/`, which are a plugin by themselves; only
//! the name changes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use outrider_plugin_formats::Problem;

use crate::exit::{self, Exit};
use crate::output::{self, BOLD, DIM, GOOD, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider plugin new lua hello
  outrider plugin new lua hello --into plugins && outrider plugin test plugins/hello
  outrider plugin new rust hello";

/// Make a folder with a plugin that works, and its cases
///
/// The plugin reads its configuration, checks a header, and refuses requests; change it into what you
/// need. Nothing that is there is overwritten.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// What runs the plugin
    #[arg(value_enum)]
    runtime: Runtime,
    /// Its name: lower-case letters, digits and hyphens, beginning with a letter
    #[arg(value_parser = name)]
    name: String,
    /// The folder in which the plugin's folder is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    into: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Runtime {
    /// Lua, on the gateway's LuaJIT
    Lua,
    /// Rust, compiled to WebAssembly, with Proxy-Wasm's SDK
    Rust,
}

/// A file of a template.
struct File {
    /// Its path in the plugin's folder.
    path: &'static str,
    text: &'static str,
    /// What it is for.
    about: &'static str,
}

/// The name of the plugins that templates are, wherever it stands in their files.
const PLACEHOLDER: &str = "my-plugin";

const LUA: &[File] = &[
    File {
        path: "plugin.yaml",
        text: include_str!("../../../templates/lua/plugin.yaml"),
        about: "what it is, and where in the chain it runs",
    },
    File {
        path: "main.lua",
        text: include_str!("../../../templates/lua/main.lua"),
        about: "its code",
    },
    File {
        path: "config.schema.json",
        text: include_str!("../../../templates/lua/config.schema.json"),
        about: "what its configuration may say",
    },
    File {
        path: "cases/my-plugin.yaml",
        text: include_str!("../../../templates/lua/cases/my-plugin.yaml"),
        about: "what it has to do, as tests",
    },
    File {
        path: "README.md",
        text: include_str!("../../../templates/lua/README.md"),
        about: "for those who use it",
    },
];

const RUST: &[File] = &[
    File {
        path: "plugin.yaml",
        text: include_str!("../../../templates/rust/plugin.yaml"),
        about: "what it is, where in the chain it runs, and how it is built",
    },
    File {
        path: "src/lib.rs",
        text: include_str!("../../../templates/rust/src/lib.rs"),
        about: "its code",
    },
    File {
        path: "Cargo.toml",
        text: include_str!("../../../templates/rust/Cargo.toml"),
        about: "what its code needs",
    },
    File {
        path: ".cargo/config.toml",
        text: include_str!("../../../templates/rust/.cargo/config.toml"),
        about: "what it is built for",
    },
    File {
        path: ".gitignore",
        text: include_str!("../../../templates/rust/.gitignore"),
        about: "what is built, not written",
    },
    File {
        path: "config.schema.json",
        text: include_str!("../../../templates/lua/config.schema.json"),
        about: "what its configuration may say",
    },
    File {
        path: "cases/my-plugin.yaml",
        text: include_str!("../../../templates/rust/cases/my-plugin.yaml"),
        about: "what it has to do, as tests",
    },
    File {
        path: "README.md",
        text: include_str!("../../../templates/rust/README.md"),
        about: "for those who use it",
    },
];

/// What builds a plugin of a template that has to be built, in its folder.
const RUST_BUILD: &str = "cargo build --release";

/// A plugin's name, or why it is none.
fn name(text: &str) -> Result<String, String> {
    if !outrider_plugin_store::is_name(text) {
        return Err(
            "use lower-case letters, digits and hyphens, beginning with a letter".to_owned(),
        );
    }
    if matches!(text, "true" | "false" | "null") {
        return Err("in YAML this word is no text; choose another name".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments {
        runtime,
        name,
        into,
    } = arguments;
    let (template, build) = match runtime {
        Runtime::Lua => (LUA, None),
        Runtime::Rust => (RUST, Some(RUST_BUILD)),
    };
    // `./hello` is `hello`, as one would write it oneself.
    let folder = into.join(name);
    let folder = folder.strip_prefix(".").unwrap_or(&folder);
    fs::create_dir_all(into)
        .with_context(|| format!("the folder {} cannot be made", into.display()))?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            output::problems(&[Problem {
                file: folder.display().to_string(),
                line: 0,
                column: 0,
                message: "this is there already".to_owned(),
                mend: Some("choose another name, or another folder with --into".to_owned()),
            }]);
            return Ok(Exit::Problems);
        }
        made => made.with_context(|| format!("the folder {} cannot be made", folder.display()))?,
    }
    let files: Vec<_> = template.iter().map(|file| named(file, name)).collect();
    for (path, text, _) in &files {
        let path = folder.join(path);
        if let Err(error) = write(&path, text) {
            // Half a plugin is in the way of the next try.
            let _ = fs::remove_dir_all(folder);
            return Err(error).with_context(|| format!("{} cannot be written", path.display()));
        }
    }
    tell(folder, name, &files, build);
    Ok(Exit::Good)
}

/// A file's path, its text, and what it is for, under the plugin's name.
fn named(file: &File, name: &str) -> (String, String, &'static str) {
    (
        file.path.replace(PLACEHOLDER, name),
        file.text.replace(PLACEHOLDER, name),
        file.about,
    )
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

fn tell(folder: &Path, name: &str, files: &[(String, String, &str)], build: Option<&str>) {
    let widest = files.iter().map(|(path, ..)| path.len()).max().unwrap_or(0);
    let shown = folder.display().to_string();
    output::line(format_args!("{} {shown}/", Styled(GOOD, "made the plugin")));
    for (path, _, about) in files {
        output::line(format_args!("  {path:widest$}  {}", Styled(DIM, about)));
    }
    let source = quoted(&shown, |text| serde_json::Value::from(text).to_string());
    let word = quoted(&shown, |text| format!("'{}'", text.replace('\'', r"'\''")));
    if let Some(build) = build {
        output::line(format_args!(
            "\n{}\n  (cd {word} && {build})",
            Styled(BOLD, "Build it, now and after each change:")
        ));
    }
    output::line(format_args!(
        "\n{}\n  outrider plugin test {word}\n\n{}\n\
         \x20 gateway:\n\
         \x20   use:\n\
         \x20     - {name}\n\
         \x20 plugins:\n\
         \x20   {name}:\n\
         \x20     source: {source}",
        Styled(BOLD, "Run its cases, now and after each change:"),
        Styled(
            BOLD,
            "Use it in the outrider.yaml of this folder, for the gateway, a project or a route:"
        ),
    ));
    // The annotations are of Lua's functions; a compiler knows its own.
    if build.is_none() {
        output::line(format_args!(
            "\n{}\n  outrider plugin types",
            Styled(
                BOLD,
                "Have editors in this folder complete and check what plugins call:"
            ),
        ));
    }
}

/// A path as it is, or as `quote` has it where it contains what means something to a shell or in YAML.
fn quoted(path: &str, quote: impl Fn(&str) -> String) -> String {
    let is_plain = path
        .chars()
        .all(|letter| letter.is_alphanumeric() || matches!(letter, '/' | '.' | '-' | '_'))
        && !path.starts_with('-');
    if is_plain {
        path.to_owned()
    } else {
        quote(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_s_name_is_nowhere_but_where_the_plugin_s_belongs() {
        let without = ["config.schema.json", ".cargo/config.toml", ".gitignore"];
        for file in LUA.iter().chain(RUST) {
            let (path, text, _) = named(file, "hello");
            assert!(!path.contains(PLACEHOLDER) && !text.contains(PLACEHOLDER));
            assert!(
                without.contains(&file.path) || text.contains("hello"),
                "{path}"
            );
        }
    }

    #[test]
    fn names_are_those_that_a_manifest_takes() {
        for good in ["a", "hello", "hello-2", "x--", "on", "no"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in [
            "", "Hello", "2fast", "-a", "a_b", "a/b", "..", "a b", "é", "null", "true",
        ] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_quoted_where_they_have_to_be() {
        let quote = |text: &str| format!("<{text}>");
        assert_eq!(quoted("plugins/hello-2", quote), "plugins/hello-2");
        assert_eq!(quoted("my plugins/hello", quote), "<my plugins/hello>");
        assert_eq!(quoted("-x/hello", quote), "<-x/hello>");
    }
}
