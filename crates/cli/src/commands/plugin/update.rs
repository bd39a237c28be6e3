//! `outrider plugin update`: pins the digests of tags in `outrider.lock`.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use clap::Args;
use outrider_gateway::{Loader, compile};
use outrider_plugin_api::escaped;
use outrider_plugin_formats::{
    Distribution, PluginLocation, PluginPackage, PluginRequest, Problem,
};
use outrider_plugin_registry::{Fetcher, LockFile};

use crate::exit::{self, Exit};
use crate::fetching::{FetchArguments, print_failure};
use crate::output::{self, BOLD, GOOD, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider plugin update gateway.yaml            pin what each tag is now, and say what changed
  outrider plugin update gateway.yaml --check    only say so; exit code 1 if anything would change";

/// Pin the digests of a gateway's plugins in outrider.lock
///
/// Asks the registries what each tag of the file's `oci://` sources is now, applies `plugin_policy`, opens each
/// plugin, and writes `outrider.lock` beside the file. From then on `up`, `check` and `render` use these digests, whatever
/// becomes of the tags. If one plugin cannot be had, nothing is written.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// The gateway's file
    #[arg(value_name = "FILE", default_value = "outrider.yaml")]
    file: PathBuf,
    /// Write nothing
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    fetch: FetchArguments,
}

/// Collects what a file asks for, and opens nothing.
#[derive(Default)]
struct Collector(RefCell<Vec<(PluginRequest, Distribution)>>);

impl Loader for Collector {
    fn read(&self, path: &str) -> Result<String, String> {
        outrider_plugin_store::read_text(Path::new(path))
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, String> {
        crate::loader::matching_files(pattern)
    }

    fn plugin(&self, _source: &str) -> Result<PluginPackage, Vec<Problem>> {
        Err(Vec::new())
    }

    fn fetch(
        &self,
        request: &PluginRequest,
        distribution: &Distribution,
    ) -> Result<(PluginPackage, Vec<String>), Vec<Problem>> {
        let mut requests = self.0.borrow_mut();
        requests.push((request.clone(), distribution.clone()));
        Err(Vec::new())
    }

    fn is_folder(&self, path: &str) -> bool {
        Path::new(path).is_dir()
    }

    fn absolute(&self, path: &str) -> String {
        std::path::absolute(path)
            .map_or_else(|_| path.to_owned(), |path| path.display().to_string())
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let file = arguments.file.to_string_lossy();
    let collector = Collector::default();
    let compiled = compile(&file, &collector);
    let requests = collector.0.into_inner();
    if requests.is_empty() && !compiled.problems.is_empty() {
        output::problems(&compiled.problems);
        return Ok(Exit::Problems);
    }
    let path = LockFile::path_of(&file);
    let old = match LockFile::read(&path) {
        Ok(old) => old.unwrap_or_default(),
        Err(error) => {
            print_failure(&path.display().to_string(), &error);
            return Ok(Exit::Problems);
        }
    };
    let fetcher = arguments.fetch.fetcher()?;
    let (mut new, mut failed) = (LockFile::default(), false);
    for (request, distribution) in &requests {
        let PluginLocation::Oci(name) = &request.location else {
            continue;
        };
        if request.digest.is_some() {
            continue;
        }
        match pinned(&fetcher, name, request, distribution) {
            Ok((source, digest, version)) => {
                let before = old.plugins.get(&source);
                let was = before.and_then(|before| {
                    let (_, _, version) =
                        at(&fetcher, &source, before, request, distribution).ok()?;
                    version
                });
                tell(&source, before, &digest, was.as_deref(), version.as_deref());
                new.plugins.insert(source, digest);
            }
            Err(problems) => {
                failed = true;
                for problem in problems {
                    output::note(output::problem(&Problem {
                        file: if problem.file.is_empty() {
                            file.to_string()
                        } else {
                            problem.file
                        },
                        ..problem
                    }));
                }
            }
        }
    }
    if failed {
        output::note(format_args!("{} is as it was", path.display()));
        return Ok(Exit::Problems);
    }
    for source in old
        .plugins
        .keys()
        .filter(|source| !new.plugins.contains_key(*source))
    {
        output::line(format_args!("{} {source}", Styled(BOLD, "removed  ")));
    }
    if new == old && path.exists() {
        output::line(format_args!("{} is up to date", path.display()));
        return Ok(Exit::Good);
    }
    if arguments.check {
        output::line(format_args!("{} would change", path.display()));
        return Ok(Exit::Problems);
    }
    if let Err(error) = new.write(&path) {
        print_failure(&path.display().to_string(), &error);
        return Ok(Exit::Environment);
    }
    output::line(format_args!("{} {}", Styled(GOOD, "wrote"), path.display()));
    Ok(Exit::Good)
}

/// Source, digest and version.
type Pinned = (String, String, Option<String>);

fn pinned(
    fetcher: &Fetcher<'_>,
    name: &str,
    request: &PluginRequest,
    distribution: &Distribution,
) -> Result<Pinned, Vec<Problem>> {
    let resolved = fetcher.resolve(name, distribution).map_err(|error| {
        vec![Problem {
            file: String::new(),
            line: 0,
            column: 0,
            message: format!("the plugin `{}`: {error}", request.name),
            mend: error.mend,
        }]
    })?;
    at(
        fetcher,
        &resolved.source,
        &resolved.digest,
        request,
        distribution,
    )
}

/// Opens a plugin at a digest, policy included.
fn at(
    fetcher: &Fetcher<'_>,
    source: &str,
    digest: &str,
    request: &PluginRequest,
    distribution: &Distribution,
) -> Result<Pinned, Vec<Problem>> {
    let request = PluginRequest {
        digest: Some(digest.to_owned()),
        ..request.clone()
    };
    let (package, _) = fetcher.fetch(&request, distribution)?;
    Ok((
        source.to_owned(),
        digest.to_owned(),
        package.manifest.version,
    ))
}

fn tell(
    source: &str,
    before: Option<&String>,
    digest: &str,
    was: Option<&str>,
    version: Option<&str>,
) {
    let named = |version: Option<&str>| {
        version.map_or(String::new(), |version| format!(" ({})", escaped(version)))
    };
    match before {
        None => output::line(format_args!(
            "{} {source}  {digest}{}",
            Styled(BOLD, "added    "),
            named(version)
        )),
        Some(before) if before == digest => {
            output::line(format_args!(
                "{} {source}  {digest}{}",
                "unchanged",
                named(version)
            ));
        }
        Some(before) => output::line(format_args!(
            "{} {source}  {before}{} -> {digest}{}",
            Styled(BOLD, "changed  "),
            named(was),
            named(version)
        )),
    }
}
