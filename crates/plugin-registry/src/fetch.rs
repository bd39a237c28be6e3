//! Fetches plugins: from a pinned digest or a tag to a package, by way of the store.
//!
//! The order is the point: digest, then signature policy, then manifest, then layers, then files. Each step reads only what
//! the step before has vouched for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use outrider_plugin_formats::{
    Distribution, PluginLocation, PluginPackage, PluginRequest, Problem, PullPolicy,
    RegistrySettings, WasmModule,
};
use outrider_plugin_store::{Unpacked, open_unpacked};

use crate::credentials::{self, Credentials};
use crate::digest_of;
use crate::error::{FetchError, Kind};
use crate::http::{Http, Patience, Progress, Request, authority, parse, shown, size, status_error};
use crate::layout::{self, Document, ImageManifest, Layout, Packing};
use crate::lock::{LOCK, LockFile};
use crate::policy::rule_for;
use crate::reference::Reference;
use crate::registry::{Access, Manifest, Repository, is_plain, referrers_tag};
use crate::signature::{
    self, BUNDLE, Evidence, Found, SIMPLE_SIGNATURE, SIMPLE_SIGNING, VerifyingKey,
};
use crate::store::{Store, Writer};
use crate::unpack::{self, Files, LARGEST_PACKED, Limits};

/// How plugins are fetched.
#[derive(Debug, Clone)]
pub struct Options {
    /// The store.
    pub store: Store,
    /// Nothing is fetched; what is not in the store is an error.
    pub offline: bool,
    /// Folder of Docker's `config.json`; `None`: it is not read.
    pub docker: Option<PathBuf>,
    /// Times of the HTTP client.
    pub patience: Patience,
}

impl Options {
    /// Options with a store in this directory, or the default one, and the user's own Docker configuration.
    ///
    /// # Errors
    /// There is neither a named nor a default directory.
    pub fn new(store: Option<PathBuf>) -> Result<Self, FetchError> {
        let root = store.or_else(Store::default_root).ok_or_else(|| {
            FetchError::new("there is no directory for fetched plugins")
                .mend("set HOME or XDG_CACHE_HOME, or name one with `--plugin-cache`")
        })?;
        Ok(Self {
            store: Store::new(root),
            offline: false,
            docker: credentials::docker_folder(),
            patience: Patience::default(),
        })
    }
}

/// Fetches plugins. Within its life, a tag is resolved once.
pub struct Fetcher<'p> {
    pub(crate) http: Http<'p>,
    pub(crate) options: Options,
    resolved: RefCell<BTreeMap<String, String>>,
}

/// A digest that a tag has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The normalised name of the image, as the lock file has it.
    pub source: String,
    /// The digest of its manifest.
    pub digest: String,
}

/// A layer, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectedLayer {
    /// Its media type.
    pub media_type: String,
    /// Its digest.
    pub digest: String,
    /// Its bytes in the registry.
    pub size: u64,
}

/// An image, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspected {
    /// Normalised name.
    pub source: String,
    /// Digest of what the tag names.
    pub digest: String,
    /// Name of the layout.
    pub layout: &'static str,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    /// Layers, in their order.
    pub layers: Vec<InspectedLayer>,
    /// How many signatures the registry holds, whoever made them.
    pub signatures: usize,
    /// The plugin.
    pub package: PluginPackage,
}

/// What happened that a person should know.
type Warnings = Vec<String>;

impl std::fmt::Debug for Fetcher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<'p> Fetcher<'p> {
    /// A fetcher.
    pub fn new(options: Options, progress: &'p dyn Progress) -> Self {
        Self {
            http: Http::new(progress, options.patience),
            options,
            resolved: RefCell::default(),
        }
    }

    /// Fetches one plugin, and opens it. Problems of its source have no file.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn fetch(
        &self,
        request: &PluginRequest,
        distribution: &Distribution,
    ) -> Result<(PluginPackage, Warnings), Vec<Problem>> {
        let mut warnings = Warnings::new();
        let files = match &request.location {
            PluginLocation::Oci(_) => self.oci(request, distribution, &mut warnings),
            PluginLocation::Http(url) => self.https(url, request, distribution),
            PluginLocation::Archive(path) => archive(path, request.digest.as_deref()),
            PluginLocation::Builtin(_) => Err(FetchError::new("a built-in plugin is not fetched")),
        };
        let files = files.map_err(|error| vec![problem(&request.name, error)])?;
        let name = match &request.location {
            PluginLocation::Oci(name) => Reference::parse(name)
                .map(|reference| reference.short_name().to_owned())
                .unwrap_or_default(),
            _ => stem(&request.source).to_owned(),
        };
        self.open(&request.name, &request.source, &name, files)
            .map(|package| (package, warnings))
    }

    fn open(
        &self,
        plugin: &str,
        source: &str,
        name: &str,
        files: Files,
    ) -> Result<PluginPackage, Vec<Problem>> {
        let module = match files.module {
            Some(bytes) => {
                // Refused before it is written where Envoy reads.
                if let Err((message, mend)) = outrider_plugin_store::check_module(&bytes) {
                    let error = FetchError::new(message).mend(mend);
                    return Err(vec![problem(plugin, error)]);
                }
                let file = self.options.store.module_file(&bytes);
                let file = file.map_err(|error| vec![problem(plugin, error)])?;
                Some(WasmModule {
                    file: file.display().to_string(),
                    bytes,
                })
            }
            None => None,
        };
        open_unpacked(Unpacked {
            label: source.to_owned(),
            name: name.to_owned(),
            manifest: files.manifest,
            schema: files.schema,
            lua: files.lua,
            module,
        })
    }

    /// Resolves the tag of an `oci://` source by asking its registry.
    ///
    /// # Errors
    /// The registry cannot be asked, or has no such tag.
    pub fn resolve(
        &self,
        source: &str,
        distribution: &Distribution,
    ) -> Result<Resolved, FetchError> {
        let reference = Reference::parse(source)?;
        let wanted = reference.digest.as_ref().or(reference.tag.as_ref());
        let wanted = wanted.cloned().unwrap_or_default();
        let manifest = self.at_hosts(&reference, distribution, |repository| {
            repository.manifest(&wanted)
        })?;
        self.options.store.write(&manifest.bytes)?;
        let source = reference.to_string();
        self.options.store.set_record(&source, &manifest.digest)?;
        Ok(Resolved {
            source,
            digest: manifest.digest,
        })
    }

    fn oci(
        &self,
        request: &PluginRequest,
        distribution: &Distribution,
        warnings: &mut Warnings,
    ) -> Result<Files, FetchError> {
        let PluginLocation::Oci(name) = &request.location else {
            return Err(FetchError::new("this is no image"));
        };
        let mut reference = Reference::parse(name)?;
        let source = reference.to_string();
        if request.digest.is_some() {
            reference.digest.clone_from(&request.digest);
        }
        let digest = match &reference.digest {
            Some(digest) => digest.clone(),
            None => self.digest_of_tag(request.pull, &reference, distribution, warnings)?,
        };
        let found = self.image(&reference, &digest, distribution);
        let (_, layout) = found.map_err(|error| error.context(&source))?;
        self.files(&reference, &layout, distribution)
            .map_err(|error| error.context(format!("{source} ({digest})")))
    }

    /// The digest of a tag: from the lock file, the store, or the registry.
    fn digest_of_tag(
        &self,
        pull: Option<PullPolicy>,
        reference: &Reference,
        distribution: &Distribution,
        warnings: &mut Warnings,
    ) -> Result<String, FetchError> {
        let source = reference.to_string();
        let lock = LockFile::read(&LockFile::path_of(&distribution.file))?;
        if let Some(lock) = lock {
            if let Some(digest) = lock.plugins.get(&source) {
                return Ok(digest.clone());
            }
            warnings.push(format!(
                "{source} is not in {LOCK}; `outrider plugin update` pins it"
            ));
        }
        if let Some(digest) = self.resolved.borrow().get(&source) {
            return Ok(digest.clone());
        }
        let is_latest = reference.tag.as_deref() == Some("latest");
        let pull = pull.unwrap_or(if is_latest {
            PullPolicy::Always
        } else {
            PullPolicy::IfNotPresent
        });
        let record = self.options.store.record(&source);
        let digest = match (record, pull) {
            (Some(record), _) if self.options.offline => record.digest,
            (Some(record), PullPolicy::IfNotPresent) => record.digest,
            (record, _) => match (self.resolve(&source, distribution), record) {
                (Ok(resolved), _) => resolved.digest,
                // A registry that is down takes no plugin out of service.
                (Err(error), Some(record)) if error.is_unavailable() => {
                    warnings.push(format!(
                        "{error}; {source} stays at {}, which it was before",
                        record.digest
                    ));
                    record.digest
                }
                (Err(error), _) => return Err(error.context(&source)),
            },
        };
        let mut resolved = self.resolved.borrow_mut();
        resolved.insert(source, digest.clone());
        Ok(digest)
    }

    /// The manifest of a digest, after the signature policy accepted the digest.
    fn image(
        &self,
        reference: &Reference,
        digest: &str,
        distribution: &Distribution,
    ) -> Result<(Box<ImageManifest>, Layout), FetchError> {
        self.judge(reference, digest, distribution)?;
        let mut wanted = digest.to_owned();
        // An index leads to a manifest, and not to another index.
        for _ in 0..2 {
            let bytes = self.manifest(reference, &wanted, distribution)?;
            match layout::read(&bytes)? {
                Document::Image(manifest) => {
                    let layout = manifest.layout()?;
                    return Ok((manifest, layout));
                }
                Document::Index(inner) => wanted = inner,
            }
        }
        Err(FetchError::new("its index leads to another index"))
    }

    fn manifest(
        &self,
        reference: &Reference,
        digest: &str,
        distribution: &Distribution,
    ) -> Result<Vec<u8>, FetchError> {
        if let Some(bytes) = self.options.store.read(digest) {
            return Ok(bytes);
        }
        let manifest = self.at_hosts(reference, distribution, |repository| {
            repository.manifest(digest)
        })?;
        self.options.store.write(&manifest.bytes)?;
        Ok(manifest.bytes)
    }

    /// Applies `plugin_policy` to a digest.
    fn judge(
        &self,
        reference: &Reference,
        digest: &str,
        distribution: &Distribution,
    ) -> Result<(), FetchError> {
        let Some(rules) = &distribution.policy else {
            return Ok(());
        };
        let rule = rule_for(rules, &reference.to_string())?;
        if rule.keys.is_empty() {
            return Ok(());
        }
        let keys: Result<Vec<_>, _> = rule
            .keys
            .iter()
            .map(|key| VerifyingKey::read(Path::new(key)))
            .collect();
        let refused = |error: FetchError| {
            let message = format!(
                "{digest} is refused by the `plugin_policy` rule at {}: {error}",
                rule.place
            );
            FetchError::new(message).kind(error.kind).mend(format!(
                "have it signed by one of {}: `outrider plugin sign` or `cosign sign`",
                rule.keys.join(", ")
            ))
        };
        self.verify(reference, digest, distribution, &keys?)
            .map(|_| ())
            .map_err(refused)
    }

    /// Checks whether a digest is signed by one of some keys.
    ///
    /// # Errors
    /// It is not, or the registry cannot be asked.
    pub fn verify(
        &self,
        reference: &Reference,
        digest: &str,
        distribution: &Distribution,
        keys: &[VerifyingKey],
    ) -> Result<Found, FetchError> {
        const KIND: &str = "signatures";
        let kept: Option<Vec<Evidence>> = self.options.store.document(KIND, digest);
        if let Some(kept) = kept
            && let Ok(found) = signature::verify(digest, &kept, keys)
        {
            return Ok(found);
        }
        let evidence = self.at_hosts(reference, distribution, |repository| {
            evidence(repository, digest)
        })?;
        let found = signature::verify(digest, &evidence, keys)?;
        self.options.store.set_document(KIND, digest, &evidence)?;
        Ok(found)
    }

    /// The files of an image, from the store as far as it has the layers.
    fn files(
        &self,
        reference: &Reference,
        layout: &Layout,
        distribution: &Distribution,
    ) -> Result<Files, FetchError> {
        let layer =
            |descriptor: &layout::Descriptor| self.layer(reference, descriptor, distribution);
        let text = |descriptor: &Option<layout::Descriptor>| -> Result<Option<String>, FetchError> {
            let Some(descriptor) = descriptor else {
                return Ok(None);
            };
            let text = String::from_utf8(layer(descriptor)?);
            let wrong =
                |_| FetchError::new(format!("its layer {} is not UTF-8", descriptor.digest));
            text.map(Some).map_err(wrong)
        };
        let manifest = text(&layout.manifest)?;
        let schema = text(&layout.schema)?;
        let code = layer(&layout.code)?;
        let mut files = match layout.packing {
            Packing::Tar => unpack::layer(&code, Limits::default()),
            Packing::Raw => Ok(Files {
                module: Some(code.into()),
                ..Files::default()
            }),
        }
        .map_err(|error| error.context(format!("its layer {}", layout.code.digest)))?;
        files.manifest = manifest.or(files.manifest);
        files.schema = schema.or(files.schema);
        Ok(files)
    }

    fn layer(
        &self,
        reference: &Reference,
        descriptor: &layout::Descriptor,
        distribution: &Distribution,
    ) -> Result<Vec<u8>, FetchError> {
        let store = &self.options.store;
        let digest = &descriptor.digest;
        if let Some(bytes) = store.read(digest) {
            return Ok(bytes);
        }
        self.online()?;
        let progress = self.http.progress();
        let _lock = store.lock(digest, || {
            progress.note(&format!(
                "waiting for another process that fetches {reference}"
            ));
        })?;
        if let Some(bytes) = store.read(digest) {
            return Ok(bytes);
        }
        let what = format!("{reference}, {}", size(descriptor.size));
        progress.note(&format!("fetching {what}"));
        self.at_hosts(reference, distribution, |repository| {
            // One byte more than announced is seen, and not the rest.
            let limit = descriptor.size.min(LARGEST_PACKED) + 1;
            let writer = repository.blob(digest, limit, &what, || store.writer(), Writer::write)?;
            let length = writer.length();
            store.keep(writer, digest).map_err(|error| {
                error.context(format!(
                    "a layer from {} with {length} bytes of {}",
                    repository.host(),
                    descriptor.size
                ))
            })
        })?;
        store.prune();
        let missing = || FetchError::new(format!("{digest} vanished from the store"));
        store.read(digest).ok_or_else(missing)
    }

    fn online(&self) -> Result<(), FetchError> {
        if self.options.offline {
            return Err(FetchError::new(
                "it is not in the store, and `--offline` forbids to fetch it",
            ));
        }
        Ok(())
    }

    /// A repository of an image, at a host.
    pub(crate) fn repository(
        &self,
        host: &str,
        name: &str,
        distribution: &Distribution,
        access: Access,
    ) -> Repository<'_, 'p> {
        let settings = distribution.registries.get(host).cloned();
        let settings = settings.unwrap_or_default();
        let docker = self.options.docker.as_deref();
        Repository::new(&self.http, host, name, settings, docker, access)
    }

    /// Does something at each mirror and then at the registry, until one can do it.
    fn at_hosts<T>(
        &self,
        reference: &Reference,
        distribution: &Distribution,
        work: impl Fn(&Repository<'_, 'p>) -> Result<T, FetchError>,
    ) -> Result<T, FetchError> {
        self.online()?;
        let mirrors = distribution
            .registries
            .get(&reference.host)
            .map_or(&[][..], |settings| &settings.mirrors);
        for mirror in mirrors {
            let repository = self.repository(mirror, &reference.name, distribution, Access::Pull);
            match work(&repository) {
                Ok(done) => return Ok(done),
                Err(error) => {
                    let note = format!("the mirror {mirror} is passed over: {error}");
                    self.http.progress().note(&note);
                }
            }
        }
        let repository =
            self.repository(&reference.host, &reference.name, distribution, Access::Pull);
        work(&repository)
    }

    fn https(
        &self,
        url: &str,
        request: &PluginRequest,
        distribution: &Distribution,
    ) -> Result<Files, FetchError> {
        let Some(expected) = request.digest.as_deref() else {
            return Err(FetchError::new("it has no `sha256`"));
        };
        let uri = parse(url)?;
        let host = authority(&uri);
        if let Some(rules) = &distribution.policy {
            let rule = rule_for(rules, url)?;
            if !rule.keys.is_empty() {
                return Err(FetchError::new(format!(
                    "{} is refused by the `plugin_policy` rule at {}: files of `https://` have no signatures",
                    shown(url),
                    rule.place
                ))
                .mend("push it to a registry, and use `oci://`; or accept it with `unsigned: true`, as `sha256` pins it"));
            }
        }
        let settings = distribution
            .registries
            .get(&host)
            .cloned()
            .unwrap_or_default();
        if uri.scheme_str() == Some("http") && !is_plain(&host, &settings) {
            return Err(
                FetchError::new(format!("{} is not encrypted", shown(url))).mend(format!(
                    "use `https://`, or set `registries: {{\"{host}\": {{plain_http: true}}}}`"
                )),
            );
        }
        let store = &self.options.store;
        let key = format!("{url} {expected}");
        let lua_name = stem_with_ending(uri.path(), ".lua");
        let from_store = || -> Option<Files> {
            let digest = store.record(&key)?.digest;
            let bytes = store.read(&digest)?;
            pinned(&bytes, expected, lua_name).ok()
        };
        if let Some(files) = from_store() {
            return Ok(files);
        }
        self.online().map_err(|error| error.context(shown(url)))?;
        let progress = self.http.progress();
        let _lock = store.lock(&key, || {
            progress.note(&format!(
                "waiting for another process that fetches {}",
                shown(url)
            ));
        })?;
        if let Some(files) = from_store() {
            return Ok(files);
        }
        progress.note(&format!("fetching {}", shown(url)));
        let writer = self.http.retry(|| self.download(url, &host, &settings));
        let writer = writer.map_err(|error| error.context(shown(url)))?;
        let digest = writer.digest();
        store.keep(writer, &digest)?;
        let vanished = || FetchError::new("the downloaded file vanished from the store");
        let bytes = store.read(&digest).ok_or_else(vanished)?;
        let files =
            pinned(&bytes, expected, lua_name).map_err(|error| error.context(shown(url)))?;
        store.set_record(&key, &digest)?;
        store.prune();
        Ok(files)
    }

    fn download(
        &self,
        url: &str,
        host: &str,
        settings: &RegistrySettings,
    ) -> Result<Writer, FetchError> {
        let mut request = Request::get(url);
        request.ca = settings.ca.as_ref().map(PathBuf::from);
        // Docker's credentials are for registries.
        request.authorization = match credentials::for_host(host, settings, None)? {
            Some((Credentials::Basic(user, password), _)) => {
                Some(Credentials::basic_header(&user, &password))
            }
            Some((Credentials::Bearer(token) | Credentials::Identity(token), _)) => {
                Some(format!("Bearer {token}"))
            }
            None => None,
        };
        let answer = self.http.send(&request)?;
        if answer.status != 200 {
            return Err(status_error(&answer, "this file"));
        }
        let mut writer = self.options.store.writer()?;
        let what = shown(url);
        answer.copy(LARGEST_PACKED, &what, self.http.progress(), &mut |piece| {
            writer.write(piece)
        })?;
        Ok(writer)
    }

    /// Fetches an image, and says what it is made of.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn inspect(
        &self,
        source: &str,
        distribution: &Distribution,
    ) -> Result<Inspected, Vec<Problem>> {
        let failed = |error: FetchError| vec![problem("", error)];
        let mut reference = Reference::parse(source).map_err(failed)?;
        let resolved = self.resolve(source, distribution).map_err(failed)?;
        let name = reference.short_name().to_owned();
        reference.digest = Some(resolved.digest.clone());
        let (manifest, layout) = self
            .image(&reference, &resolved.digest, distribution)
            .map_err(failed)?;
        let files = self
            .files(&reference, &layout, distribution)
            .map_err(failed)?;
        let signatures = self
            .at_hosts(&reference, distribution, |repository| {
                evidence(repository, &resolved.digest)
            })
            .map_err(failed)?;
        let package = self.open(&name, source, &name, files)?;
        let layers = manifest.layers.iter().map(|layer| InspectedLayer {
            media_type: layer.media_type.clone(),
            digest: layer.digest.clone(),
            size: layer.size,
        });
        Ok(Inspected {
            source: resolved.source,
            digest: resolved.digest,
            layout: layout.name,
            annotations: manifest.annotations,
            layers: layers.collect(),
            signatures: signatures.len(),
            package,
        })
    }

    /// Fetches the files of an image by path, for a folder: code, manifest, schema, README and licence.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn pull(
        &self,
        source: &str,
        distribution: &Distribution,
    ) -> Result<(Resolved, BTreeMap<String, Vec<u8>>), FetchError> {
        let mut reference = Reference::parse(source)?;
        let resolved = self.resolve(source, distribution)?;
        reference.digest = Some(resolved.digest.clone());
        let (manifest, layout) = self.image(&reference, &resolved.digest, distribution)?;
        let files = self.files(&reference, &layout, distribution)?;
        let mut all = BTreeMap::new();
        let mut add = |name: &str, bytes: Vec<u8>| all.insert(name.to_owned(), bytes);
        for (kind, name) in [
            (layout::README_LAYER, "README.md"),
            (layout::LICENSE_LAYER, "LICENSE"),
        ] {
            let found = manifest
                .layers
                .iter()
                .find(|layer| layer.media_type == kind);
            if let Some(layer) = found.filter(|layer| layer.size <= layout::LARGEST_TEXT_LAYER) {
                add(name, self.layer(&reference, layer, distribution)?);
            }
        }
        for (name, text) in [
            (outrider_plugin_store::MANIFEST, files.manifest),
            (outrider_plugin_store::SCHEMA, files.schema),
        ] {
            if let Some(text) = text {
                add(name, text.into_bytes());
            }
        }
        for (path, text) in files.lua {
            add(&path, text.into_bytes());
        }
        if let Some(module) = files.module {
            add(unpack::MODULE, module.to_vec());
        }
        Ok((resolved, all))
    }
}

/// Signatures of a digest that a registry holds.
fn evidence(repository: &Repository<'_, '_>, digest: &str) -> Result<Vec<Evidence>, FetchError> {
    let mut found = Vec::new();
    let text = |descriptor: &layout::Descriptor| -> Result<Option<String>, FetchError> {
        if descriptor.size > signature::LARGEST {
            return Ok(None);
        }
        let bytes = repository.blob(
            &descriptor.digest,
            signature::LARGEST,
            "a signature",
            || Ok(Vec::new()),
            |bytes: &mut Vec<u8>, piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            },
        )?;
        // A blob that is not what its manifest names is none.
        let is_whole = digest_of(&bytes) == descriptor.digest;
        Ok(String::from_utf8(bytes).ok().filter(|_| is_whole))
    };
    for referrer in repository.referrers(digest)? {
        let manifest = repository.manifest(&referrer.digest)?;
        let Ok(Document::Image(manifest)) = layout::read(&manifest.bytes) else {
            continue;
        };
        let bundles = manifest
            .layers
            .iter()
            .filter(|layer| layer.media_type == BUNDLE);
        for layer in bundles.take(4) {
            found.extend(text(layer)?.map(Evidence::Bundle));
        }
    }
    let old_tag = format!("{}.sig", referrers_tag(digest));
    let old: Option<Manifest> = match repository.manifest(&old_tag) {
        Ok(manifest) => Some(manifest),
        Err(error) if error.kind == Kind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(Document::Image(manifest)) = old.and_then(|old| layout::read(&old.bytes).ok()) {
        for layer in manifest
            .layers
            .iter()
            .filter(|layer| layer.media_type == SIMPLE_SIGNING)
        {
            if let Some(signature) = layer.annotations.get(SIMPLE_SIGNATURE)
                && let Some(payload) = text(layer)?
            {
                let signature = signature.clone();
                found.push(Evidence::Simple { payload, signature });
            }
        }
    }
    Ok(found)
}

/// Unpacks a file whose digest, or whose module's digest, is pinned.
fn pinned(bytes: &[u8], expected: &str, lua_name: Option<&str>) -> Result<Files, FetchError> {
    let served = digest_of(bytes);
    let files = unpack::anything(bytes, lua_name, Limits::default());
    if served == expected {
        return files;
    }
    let mut message = format!("it has another digest: expected {expected}, found {served}");
    // The digest of a module says nothing of a manifest that comes with it.
    if let Ok(files) = files
        && let Some(module) = &files.module
    {
        let inside = digest_of(module);
        if inside == expected && files.is_bare_module() {
            return Ok(files);
        }
        if inside != served {
            // Writing to a string cannot fail.
            let _ = write!(message, ", and the module inside {inside}");
        }
        if inside == expected {
            message.push_str(", which does not cover the manifest beside it");
        }
    }
    Err(FetchError::new(message)
        .mend("if the file was changed on purpose, write the digest that was found"))
}

/// Opens a local archive.
fn archive(path: &str, expected: Option<&str>) -> Result<Files, FetchError> {
    use std::io::Read as _;
    let file = Path::new(path);
    let failed = |error: std::io::Error| FetchError::file(file, "read", &error);
    let metadata = std::fs::metadata(file).map_err(failed)?;
    if !metadata.is_file() {
        return Err(FetchError::new(format!("{path} is not a regular file")));
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(failed)?;
    opened
        .take(LARGEST_PACKED + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > LARGEST_PACKED {
        return Err(FetchError::new(format!(
            "{path} is larger than {}",
            size(LARGEST_PACKED)
        )));
    }
    let files = match expected {
        Some(expected) => pinned(&bytes, expected, None),
        None => unpack::anything(&bytes, None, Limits::default()),
    };
    files.map_err(|error| error.context(path))
}

/// The last word of a path, without endings.
fn stem(path: &str) -> &str {
    let path = path.split(['?', '#', '@']).next().unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split('.').next().unwrap_or(name)
}

/// The last word of a path, if it ends so.
fn stem_with_ending<'t>(path: &'t str, ending: &str) -> Option<&'t str> {
    let name = path.rsplit('/').next()?;
    (name.len() > ending.len() && name.ends_with(ending)).then_some(name)
}

/// A failure as a problem whose place is where the source is written.
fn problem(plugin: &str, error: FetchError) -> Problem {
    let message = if plugin.is_empty() {
        error.message
    } else {
        format!("the plugin `{plugin}`: {}", error.message)
    };
    Problem {
        file: String::new(),
        line: 0,
        column: 0,
        message,
        mend: error.mend,
    }
}
