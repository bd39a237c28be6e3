//! `outrider plugin push`, `pull`, `inspect`, `sign` and `verify`: plugins in OCI registries.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use outrider_plugin_api::escaped;
use outrider_plugin_formats::{Distribution, PluginCode};
use outrider_plugin_registry::{FetchError, Reference, SigningKey, VerifyingKey, build};
use serde_json::json;

use super::list;
use crate::exit::{self, Exit};
use crate::fetching::{FetchArguments, RegistryArguments, print_failure, shown};
use crate::output::{self, BOLD, GOOD, Styled};

const PUSH_EXAMPLES: &str = "\
Examples:
  outrider plugin push hello oci://registry.example.com/team/hello:1.0
  outrider plugin push hello oci://localhost:5000/hello:1.0 --dry-run

The image is read by Istio, Envoy Gateway, Higress and Outrider, and is the same to the byte whenever and wherever it is \
built. Who pushes is Docker's configuration: `docker login`, or a credential helper.";

/// Push a plugin's folder to a registry
#[derive(Debug, Args)]
#[command(after_help = format!("{PUSH_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Push {
    /// The plugin's folder
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Where to: oci://HOST/NAME:TAG
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Build the image and print its digest, and push nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON: {"source", "digest", "layers": [{"mediaType", "title", "size"}]}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registry: RegistryArguments,
}

const PULL_EXAMPLES: &str = "\
Examples:
  outrider plugin pull oci://registry.example.com/team/hello:1.0 --into hello
  outrider plugin pull oci://registry.example.com/team/hello:1.0 --into hello --key cosign.pub";

/// Pull a plugin from a registry into a folder
///
/// For init containers and air-gapped machines; gateways fetch by themselves.
#[derive(Debug, Args)]
#[command(after_help = format!("{PULL_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Pull {
    /// The image: oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:...
    #[arg(value_name = "IMAGE")]
    image: String,
    /// The folder to make; nothing that is there is overwritten
    #[arg(long, value_name = "FOLDER")]
    into: PathBuf,
    /// Refuse it unless one of these public keys signed it
    #[arg(long, value_name = "FILE")]
    key: Vec<PathBuf>,
    #[command(flatten)]
    registry: RegistryArguments,
    #[command(flatten)]
    fetch: FetchArguments,
}

const INSPECT_EXAMPLES: &str = "\
Examples:
  outrider plugin inspect oci://registry.example.com/team/hello:1.0
  outrider plugin inspect oci://registry.example.com/team/hello:1.0 --json | jq -r .digest";

/// Show what an image of a plugin is made of
#[derive(Debug, Args)]
#[command(after_help = format!("{INSPECT_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Inspect {
    /// The image: oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:...
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Print JSON: {"source", "digest", "layout", "plugin", "version", "language", "signatures", "annotations", "layers":
    /// [{"mediaType", "digest", "size"}]}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registry: RegistryArguments,
    #[command(flatten)]
    fetch: FetchArguments,
}

const SIGN_EXAMPLES: &str = "\
Examples:
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out plugin.key
  openssl pkey -in plugin.key -pubout -out plugin.pub
  outrider plugin sign oci://registry.example.com/team/hello:1.0 --key plugin.key --public plugin.pub

The signature is a bundle v0.3 as cosign writes it, stored as a referrer of the image, or under the tag `sha256-HEX` where \
the registry has no referrers API. `cosign verify --key plugin.pub --insecure-ignore-tlog=true` accepts it. Keyless \
signatures are not there.";

/// Sign an image with a key
#[derive(Debug, Args)]
#[command(after_help = format!("{SIGN_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Sign {
    /// The image: oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:...
    #[arg(value_name = "IMAGE")]
    image: String,
    /// The private key, in PEM, without a password
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Its public half, which is checked to belong to it, and named in the signature
    #[arg(long, value_name = "FILE")]
    public: Option<PathBuf>,
    #[command(flatten)]
    registry: RegistryArguments,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  outrider plugin verify oci://registry.example.com/team/hello:1.0 --key plugin.pub

Signatures of cosign with a key are verified in both its forms. Keyless signatures (Fulcio) are refused by name.";

/// Verify that an image is signed by a key
#[derive(Debug, Args)]
#[command(after_help = format!("{VERIFY_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Verify {
    /// The image: oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:...
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Public keys, in PEM, one of which has to have signed it
    #[arg(long, value_name = "FILE", required = true)]
    key: Vec<PathBuf>,
    #[command(flatten)]
    registry: RegistryArguments,
    #[command(flatten)]
    fetch: FetchArguments,
}

/// Prints a failure, and returns how the command ends.
fn failure(source: &str, error: &FetchError) -> Exit {
    print_failure(source, error);
    if error.is_unavailable() {
        Exit::Environment
    } else {
        Exit::Problems
    }
}

/// Reads the name of an image, and the settings of its registry.
fn target(
    image: &str,
    registry: &RegistryArguments,
) -> Result<(Reference, Distribution), FetchError> {
    let reference = Reference::parse(image)?;
    let distribution = registry.distribution(&reference);
    Ok((reference, distribution))
}

pub(crate) fn push(arguments: &Push) -> Exit {
    let package = match outrider_plugin_store::open(&arguments.folder) {
        Ok(package) => package,
        Err(problems) => {
            output::problems(&problems);
            return Exit::Problems;
        }
    };
    let work = || {
        let (_, distribution) = target(&arguments.image, &arguments.registry)?;
        let image = build(&arguments.folder, &package)?;
        let source = if arguments.dry_run {
            Reference::parse(&arguments.image)?.to_string()
        } else {
            let fetcher = FetchArguments::default().fetcher()?;
            fetcher
                .push(&arguments.image, &image, &distribution)?
                .source
        };
        Ok((source, image))
    };
    let (source, image) = match work() {
        Ok(done) => done,
        Err(error) => return failure(&arguments.image, &error),
    };
    if arguments.json {
        let layers = image
            .layers
            .iter()
            .map(|(kind, title, size)| json!({"mediaType": kind, "title": title, "size": size}));
        output::json(&json!({
            "source": source,
            "digest": image.digest,
            "layers": layers.collect::<Vec<_>>(),
        }));
        return Exit::Good;
    }
    let done = if arguments.dry_run { "built" } else { "pushed" };
    output::line(format_args!(
        "{} {source}@{}",
        Styled(GOOD, done),
        image.digest
    ));
    for (kind, title, size) in &image.layers {
        output::line(format_args!("  {title:20} {size:>9} bytes  {kind}"));
    }
    Exit::Good
}

pub(crate) fn pull(arguments: &Pull) -> anyhow::Result<Exit> {
    anyhow::ensure!(
        !arguments.into.exists(),
        "{} is there already",
        arguments.into.display()
    );
    let work = || {
        let (mut reference, distribution) = target(&arguments.image, &arguments.registry)?;
        let fetcher = arguments.fetch.fetcher()?;
        let mut image = arguments.image.clone();
        if !arguments.key.is_empty() {
            let keys = keys(&arguments.key)?;
            let resolved = fetcher.resolve(&image, &distribution)?;
            fetcher.verify(&reference, &resolved.digest, &distribution, &keys)?;
            // What was verified is what is pulled, whatever becomes of the tag.
            reference.digest = Some(resolved.digest);
            image = reference.to_string();
        }
        fetcher.pull(&image, &distribution)
    };
    let (resolved, files) = match work() {
        Ok(done) => done,
        Err(error) => return Ok(failure(&arguments.image, &error)),
    };
    write_whole(&arguments.into, &files)?;
    output::line(format_args!(
        "{} {} ({}) into {}",
        Styled(GOOD, "pulled"),
        resolved.source,
        resolved.digest,
        shown(&arguments.into)
    ));
    Ok(Exit::Good)
}

/// Writes a folder beside its place, and then moves it there.
fn write_whole(
    folder: &Path,
    files: &std::collections::BTreeMap<String, Vec<u8>>,
) -> anyhow::Result<()> {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = folder.with_file_name(name);
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(&beside)?;
        for (path, bytes) in files {
            let file = beside.join(path);
            if let Some(parent) = file.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(file, bytes)?;
        }
        fs::rename(&beside, folder)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_dir_all(&beside);
    }
    written.with_context(|| format!("{} cannot be written", folder.display()))
}

fn keys(files: &[PathBuf]) -> Result<Vec<VerifyingKey>, FetchError> {
    files.iter().map(|file| VerifyingKey::read(file)).collect()
}

pub(crate) fn inspect(arguments: &Inspect) -> anyhow::Result<Exit> {
    let (_, distribution) = match target(&arguments.image, &arguments.registry) {
        Ok(target) => target,
        Err(error) => return Ok(failure(&arguments.image, &error)),
    };
    let fetcher = arguments.fetch.fetcher()?;
    let inspected = match fetcher.inspect(&arguments.image, &distribution) {
        Ok(inspected) => inspected,
        Err(problems) => {
            output::problems(&problems);
            return Ok(Exit::Problems);
        }
    };
    let manifest = &inspected.package.manifest;
    if arguments.json {
        let layers = inspected.layers.iter().map(|layer| {
            json!({"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size})
        });
        output::json(&json!({
            "source": inspected.source,
            "digest": inspected.digest,
            "layout": inspected.layout,
            "plugin": manifest.name,
            "version": manifest.version,
            "language": list::language(manifest),
            "signatures": inspected.signatures,
            "annotations": inspected.annotations,
            "layers": layers.collect::<Vec<_>>(),
        }));
        return Ok(Exit::Good);
    }
    output::line(format_args!(
        "{} {}",
        Styled(BOLD, &inspected.source),
        inspected.digest
    ));
    output::line(format_args!("layout      {}", inspected.layout));
    output::line(format_args!(
        "plugin      {} {} ({})",
        manifest.name,
        escaped(manifest.version.as_deref().unwrap_or("without a version")),
        list::language(manifest)
    ));
    if let PluginCode::Module(module) = &inspected.package.code {
        output::line(format_args!("module      {} bytes", module.bytes.len()));
    }
    output::line(format_args!(
        "signatures  {}, not verified",
        inspected.signatures
    ));
    for layer in &inspected.layers {
        output::line(format_args!(
            "  {:>9} bytes  {}  {}",
            layer.size,
            layer.digest,
            escaped(&layer.media_type)
        ));
    }
    for (key, value) in &inspected.annotations {
        output::line(format_args!("  {}: {}", escaped(key), escaped(value)));
    }
    Ok(Exit::Good)
}

pub(crate) fn sign(arguments: &Sign) -> Exit {
    let work = || {
        let (_, distribution) = target(&arguments.image, &arguments.registry)?;
        let key = SigningKey::read(&arguments.key)?;
        let public = arguments
            .public
            .as_deref()
            .map(VerifyingKey::read)
            .transpose()?;
        let fetcher = FetchArguments::default().fetcher()?;
        fetcher.sign(&arguments.image, &key, public.as_ref(), &distribution)
    };
    match work() {
        Ok(resolved) => {
            output::line(format_args!(
                "{} {} ({})",
                Styled(GOOD, "signed"),
                resolved.source,
                resolved.digest
            ));
            Exit::Good
        }
        Err(error) => failure(&arguments.image, &error),
    }
}

pub(crate) fn verify(arguments: &Verify) -> Exit {
    let work = || {
        let (reference, distribution) = target(&arguments.image, &arguments.registry)?;
        let keys = keys(&arguments.key)?;
        let fetcher = arguments.fetch.fetcher()?;
        let resolved = fetcher.resolve(&arguments.image, &distribution)?;
        let found = fetcher.verify(&reference, &resolved.digest, &distribution, &keys)?;
        Ok((resolved, found))
    };
    match work() {
        Ok((resolved, found)) => {
            output::line(format_args!(
                "{} {} ({}) is signed by {} ({})",
                Styled(GOOD, "ok:"),
                resolved.source,
                resolved.digest,
                found.key,
                found.form
            ));
            Exit::Good
        }
        Err(error) => failure(&arguments.image, &error),
    }
}
