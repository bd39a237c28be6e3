#!/usr/bin/env bash
# Runs the cases of every Wasm plugin, without Envoy and on it, and those of the plugin that `outrider plugin new
# rust` makes. `make test-plugins` builds what this needs.
#
#   scripts/test-plugins.sh OUTRIDER FOLDER
#
# OUTRIDER is the command, FOLDER one for what is made on the way.
set -euo pipefail
cd "$(dirname "$0")/.."
outrider=$(realpath "$1")
folder=$(realpath -m "$2")

for language in rust go assemblyscript cpp; do
    printf '\n-- plugins/%s\n' "$language"
    "$outrider" plugin test "plugins/$language" --envoy
done

printf '\n-- Coraza\n'
"$outrider" plugin test crates/e2e/guests/coraza --envoy

printf '\n-- a new plugin in Rust\n'
rm -rf "$folder"
"$outrider" plugin new rust hello --into "$folder" >/dev/null
# The versions that the catalog's plugins are built with.
cp plugins/rust/Cargo.lock "$folder/hello/"
(cd "$folder/hello" && env -u CARGO_TARGET_DIR cargo build --release --quiet)
"$outrider" plugin test "$folder/hello" --envoy
