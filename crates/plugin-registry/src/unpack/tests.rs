use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

use super::*;

const EMPTY: &[u8] = b"\0asm\x01\0\0\0";

fn entry(builder: &mut Builder<Vec<u8>>, path: &str, kind: EntryType, bytes: &[u8]) {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    // `set_path` refuses what is tested here.
    let name = &mut header.as_mut_bytes()[..100];
    name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    builder.append(&header, bytes).unwrap();
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, bytes) in files {
        entry(&mut builder, path, EntryType::Regular, bytes);
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn message(packed: &[u8]) -> String {
    anything(packed, None, Limits::default())
        .unwrap_err()
        .message
}

#[test]
fn module_comes_raw_and_in_gzip_and_tar() {
    let tar = archive(&[("./plugin.wasm", EMPTY)]);
    for packed in [EMPTY.to_vec(), gzip(EMPTY), tar.clone(), gzip(&tar)] {
        let files = anything(&packed, None, Limits::default()).unwrap();
        assert_eq!(files.module.as_deref(), Some(EMPTY));
        assert!(files.is_bare_module());
    }
    let files = layer(
        &gzip(&archive(&[("a/b/plugin.wasm", EMPTY)])),
        Limits::default(),
    );
    assert_eq!(files.unwrap().module.as_deref(), Some(EMPTY));
}

#[test]
fn lua_plugin_is_found_in_its_folder() {
    let tar = archive(&[
        ("hello/plugin.yaml", b"name: hello\nruntime: lua\n"),
        ("hello/config.schema.json", b"{}"),
        ("hello/main.lua", b"return {}\n"),
        ("hello/lib/a.lua", b"return 1\n"),
        ("hello/.#main.lua", b"half"),
        ("hello/README.md", b"\xff"),
        ("other/x.lua", b"return 2\n"),
    ]);
    let files = layer(&tar, Limits::default()).unwrap();
    assert_eq!(
        files.manifest.as_deref(),
        Some("name: hello\nruntime: lua\n")
    );
    assert_eq!(files.schema.as_deref(), Some("{}"));
    assert_eq!(
        files.lua.keys().collect::<Vec<_>>(),
        ["lib/a.lua", "main.lua"]
    );
}

#[test]
fn single_lua_file_needs_its_name() {
    let files = anything(b"return {}\n", Some("x.lua"), Limits::default()).unwrap();
    assert_eq!(files.lua["x.lua"], "return {}\n");
    assert!(message(b"return {}\n").contains("begins with 72 65 74 75"));
}

#[test]
fn gzip_bomb_is_refused_after_the_limit() {
    // 64 MiB of zeros; the limit is 1 MiB.
    let bomb = gzip(&vec![0; 64 * 1024 * 1024]);
    let limits = Limits {
        unpacked: 1024 * 1024,
        ..Limits::default()
    };
    let error = anything(&bomb, None, limits).unwrap_err();
    assert!(error.message.contains("larger than 1.0 MiB"), "{error}");
    // The same within an archive, in a file that nothing reads.
    let bomb = gzip(&archive(&[("big.bin", &vec![0; 8 * 1024 * 1024])]));
    let error = layer(&bomb, limits).unwrap_err();
    assert!(error.message.contains("1.0 MiB"), "{error}");
    // Members one behind the other count together.
    let members = gzip(&vec![0; 600 * 1024]).repeat(2);
    assert!(anything(&members, None, limits).is_err());
}

#[test]
fn paths_that_leave_the_archive_are_refused() {
    for path in [
        "../plugin.wasm",
        "a/../../plugin.wasm",
        "/etc/plugin.wasm",
        "a\\..\\plugin.wasm",
    ] {
        let error = message(&archive(&[(path, EMPTY)]));
        assert!(error.contains("leaves the archive"), "{path}: {error}");
    }
    let deep = format!("{}plugin.wasm", "a/".repeat(20));
    assert!(message(&archive(&[(&deep, EMPTY)])).contains("too deep"));
}

#[test]
fn links_and_devices_are_refused() {
    for (kind, what) in [
        (EntryType::Symlink, "is a link"),
        (EntryType::Link, "is a link"),
        (EntryType::Char, "neither a file nor a folder"),
        (EntryType::Block, "neither a file nor a folder"),
        (EntryType::Fifo, "neither a file nor a folder"),
        (EntryType::GNUSparse, "neither a file nor a folder"),
    ] {
        let mut builder = Builder::new(Vec::new());
        entry(&mut builder, "plugin.wasm", kind, b"");
        let error = message(&builder.into_inner().unwrap());
        assert!(error.contains(what), "{kind:?}: {error}");
    }
}

/// Sizes of untrusted headers reserve nothing, and end in an error.
#[test]
fn absurd_sizes_in_headers_are_refused() {
    for claimed in [u64::MAX / 2, 8 * 1024 * 1024 * 1024, 200 * 1024 * 1024] {
        let mut header = Header::new_gnu();
        header.set_path("plugin.wasm").unwrap();
        header.set_entry_type(EntryType::Regular);
        header.set_size(claimed);
        header.set_cksum();
        let mut packed = header.as_bytes().to_vec();
        packed.extend_from_slice(EMPTY);
        let error = message(&packed);
        assert!(
            error.contains("more than the limit") || error.contains("cut off"),
            "{claimed}: {error}"
        );
    }
    // A long name that claims to be a gigabyte.
    let mut header = Header::new_gnu();
    header.set_path("././@LongLink").unwrap();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(100 * 1024 * 1024);
    header.set_cksum();
    assert!(message(header.as_bytes()).contains("too long"));
}

#[test]
fn entries_are_counted() {
    let names: Vec<String> = (0..10_000).map(|number| format!("f{number}")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let error = message(&archive(&files));
    assert_eq!(error, "it has more than 4096 entries");
}

#[test]
fn two_candidates_are_refused() {
    let error = message(&archive(&[
        ("a/plugin.wasm", EMPTY),
        ("b/plugin.wasm", EMPTY),
    ]));
    assert!(
        error.contains("two modules, `a/plugin.wasm` and `b/plugin.wasm`"),
        "{error}"
    );
    let error = message(&archive(&[("a/plugin.yaml", b""), ("b/plugin.yaml", b"")]));
    assert!(error.contains("two plugins"), "{error}");
    let error = message(&archive(&[("main.lua", b"a"), ("./main.lua", b"b")]));
    assert!(error.contains("`main.lua` is in it twice"), "{error}");
}

#[test]
fn archive_without_a_plugin_is_refused() {
    let error = message(&archive(&[("README.md", b"x")]));
    assert_eq!(
        error,
        "there is neither a plugin.wasm nor a plugin.yaml nor Lua in it"
    );
}

/// Wherever an archive ends, unpacking ends with an error or a plugin, and never with a panic.
#[test]
fn truncated_archives_are_refused() {
    let whole = gzip(&archive(&[("plugin.wasm", &[EMPTY, &[0; 3000]].concat())]));
    let expected = layer(&whole, Limits::default()).unwrap();
    for length in 0..whole.len() {
        if let Ok(files) = layer(&whole[..length], Limits::default()) {
            assert_eq!(files, expected, "{length}");
        }
    }
    let tar = archive(&[("plugin.wasm", &[EMPTY, &[0; 3000]].concat())]);
    let error = layer(&tar[..1000], Limits::default()).unwrap_err();
    assert_eq!(error.message, "it is cut off");
}

#[test]
fn long_names_are_read() {
    let path = format!("{}/plugin.wasm", "p".repeat(120));
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(EMPTY.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, &path, EMPTY).unwrap();
    let tar = builder.into_inner().unwrap();
    assert_eq!(
        layer(&tar, Limits::default()).unwrap().module.as_deref(),
        Some(EMPTY)
    );

    let record = |text: &str| format!("{} {text}\n", text.len() + 4);
    let mut builder = Builder::new(Vec::new());
    entry(
        &mut builder,
        "pax",
        EntryType::XHeader,
        record("path=deep/plugin.wasm").as_bytes(),
    );
    entry(&mut builder, "x", EntryType::Regular, EMPTY);
    let tar = builder.into_inner().unwrap();
    assert_eq!(
        layer(&tar, Limits::default()).unwrap().module.as_deref(),
        Some(EMPTY)
    );

    for (text, what) in [
        ("path=../plugin.wasm", "leaves"),
        ("size=99999999999", "refused"),
    ] {
        let mut builder = Builder::new(Vec::new());
        entry(
            &mut builder,
            "pax",
            EntryType::XHeader,
            record(text).as_bytes(),
        );
        entry(&mut builder, "plugin.wasm", EntryType::Regular, EMPTY);
        assert!(
            message(&builder.into_inner().unwrap()).contains(what),
            "{text}"
        );
    }
}
