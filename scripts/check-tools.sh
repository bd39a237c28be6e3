#!/usr/bin/env bash
# Says, in one sentence each, which tools are missing: those of the build, and those that are named
# (components of cargo; valgrind; chromium; registry; nightly, the toolchain of make miri and make tsan). Installs nothing.
set -euo pipefail

missing=0

need() { # need COMMAND WHY HOW
    if ! command -v "$1" >/dev/null 2>&1; then
        echo "missing: $1, which $2; $3" >&2
        missing=1
    fi
}

need cargo "builds Outrider" "install Rust with rustup, or Rust $(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml) from your distribution"
need cc "compiles LuaJIT" "on Debian: apt install gcc libc6-dev"
need make "builds LuaJIT" "on Debian: apt install make"
need python3 "installs the stock Envoy" "on Debian: apt install python3 python3-venv"

if command -v python3 >/dev/null 2>&1 && ! python3 -c 'import venv, ensurepip' >/dev/null 2>&1; then
    echo "missing: Python's venv module, which installs the stock Envoy; on Debian: apt install python3-venv" >&2
    missing=1
fi

# A toolchain that rustup manages gets its components from rust-toolchain.toml.
for component in "$@"; do
    if [ "$component" = valgrind ]; then
        need valgrind "counts instructions for make bench" "on Debian: apt-get install valgrind"
    elif [ "$component" = chromium ]; then
        need chromedriver "drives Chromium for make test-report" "on Debian: apt-get install chromium chromium-driver"
    elif [ "$component" = registry ]; then
        need docker-registry "make test-registry pushes to" "on Debian: apt-get install docker-registry"
        need htpasswd "makes a user of that registry" "on Debian: apt-get install apache2-utils"
        need go "builds a registry with the referrers API, and crane" "install Go 1.26"
    elif [ "$component" = nightly ]; then
        nightly=${NIGHTLY:-nightly}
        sources=$(rustc "+$nightly" --print sysroot 2>/dev/null || true)/lib/rustlib/src/rust/library
        if ! cargo "+$nightly" miri --version >/dev/null 2>&1 || [ ! -d "$sources" ]; then
            echo "missing: Rust $nightly with miri and rust-src, which make miri and make tsan run;" \
                "with rustup: rustup toolchain install $nightly --component miri --component rust-src" >&2
            missing=1
        fi
    elif command -v cargo >/dev/null 2>&1 && ! cargo "$component" --version >/dev/null 2>&1; then
        echo "missing: cargo $component, which make test runs; with rustup: rustup component add ${component/fmt/rustfmt}" >&2
        missing=1
    fi
done

exit "$missing"
