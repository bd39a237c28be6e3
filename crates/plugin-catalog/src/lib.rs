//! The plugins that are inside the `outrider` binary, for `source: builtin:NAME`: the Lua plugins of `plugins/lua`, each
//! with manifest, schema, README and code.
//!
//! The WebAssembly plugins of `plugins/rust` are not inside: building the binary would need their toolchain, and the three
//! of them are 750 KB (211, 249 and 290 KB) where the whole catalog is less than 400 KB.

use std::path::Path;

use outrider_plugin_formats::{PluginPackage, Problem};
use outrider_plugin_store::{MANIFEST, SCHEMA, Unpacked, open_unpacked};

/// Path in the plugin's folder, and content.
type File = (&'static str, &'static str);

/// All plugins by name, sorted.
const PLUGINS: &[(&str, &[File])] = include!(concat!(env!("OUT_DIR"), "/catalog.rs"));

/// One plugin of the catalog.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Its name, as in `builtin:NAME`.
    pub name: &'static str,
    files: &'static [File],
}

/// All plugins of the catalog, by name.
pub fn all() -> impl Iterator<Item = Builtin> + Clone {
    PLUGINS.iter().map(|(name, files)| Builtin { name, files })
}

/// The plugin of a name.
pub fn find(name: &str) -> Option<Builtin> {
    all().find(|plugin| plugin.name == name)
}

/// Opens the plugin of a name, as `builtin:NAME` does.
///
/// # Errors
/// There is no such plugin; the problem has no place.
pub fn open(name: &str) -> Result<PluginPackage, Vec<Problem>> {
    let Some(plugin) = find(name) else {
        let near = outrider_yaml::suggest(name, all().map(|plugin| plugin.name));
        let mend = match near {
            Some(near) => format!("did you mean `builtin:{near}`?"),
            None => "`outrider plugin list` lists the built-in plugins".to_owned(),
        };
        return Err(vec![Problem {
            file: String::new(),
            line: 0,
            column: 0,
            message: format!("there is no built-in plugin `{name}`"),
            mend: Some(mend),
        }]);
    };
    plugin.open()
}

impl Builtin {
    /// All files: path in the plugin's folder, and content.
    pub fn files(&self) -> &'static [File] {
        self.files
    }

    /// The content of a file.
    pub fn file(&self, path: &str) -> Option<&'static str> {
        let found = self.files.iter().find(|(found, _)| *found == path);
        found.map(|(_, text)| *text)
    }

    /// Bytes of all files together.
    pub fn size(&self) -> usize {
        self.files.iter().map(|(_, text)| text.len()).sum()
    }

    /// Opens the plugin.
    ///
    /// # Errors
    /// A fault of this build: the catalog's test opens all of them.
    pub fn open(&self) -> Result<PluginPackage, Vec<Problem>> {
        let lua = self.files.iter().filter(|(path, _)| {
            Path::new(path)
                .extension()
                .is_some_and(|extension| extension == "lua")
        });
        open_unpacked(Unpacked {
            label: format!("builtin:{}", self.name),
            name: self.name.to_owned(),
            manifest: self.file(MANIFEST).map(str::to_owned),
            schema: self.file(SCHEMA).map(str::to_owned),
            lua: lua
                .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
                .collect(),
            module: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same plugin, to the byte, whether the folder or the binary holds it.
    #[test]
    fn builtin_is_the_folder_it_was_built_from() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/lua");
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(all().map(|plugin| plugin.name).collect::<Vec<_>>(), names);
        for plugin in all() {
            let inside = plugin.open().unwrap();
            let outside = outrider_plugin_store::open(&folder.join(plugin.name)).unwrap();
            assert_eq!(inside.digest, outside.digest);
            assert_eq!(inside.manifest, outside.manifest);
            assert_eq!(inside.schema, outside.schema);
            assert!(plugin.file("README.md").is_some(), "{}", plugin.name);
            assert!(inside.manifest.version.is_some(), "{}", plugin.name);
            assert!(inside.manifest.description.is_some(), "{}", plugin.name);
        }
    }

    #[test]
    fn unknown_name_suggests_a_near_one() {
        let problems = open("cros").unwrap_err();
        assert_eq!(
            problems[0].mend.as_deref(),
            Some("did you mean `builtin:cors`?")
        );
        let problems = open("waf-of-nobody").unwrap_err();
        assert!(problems[0].mend.as_deref().unwrap().contains("plugin list"));
    }

    #[test]
    fn catalog_is_small() {
        let size: usize = all().map(|plugin| plugin.size()).sum();
        assert!(size < 400_000, "{size}");
    }
}
