# What a person runs. Each target does all of its own set-up; cargo decides what is rebuilt.

.DEFAULT_GOAL := help
.PHONY: help demo demo-lanes test loom soak soak-traps soak-hostile soak-operations test-istio test-report test-registry chaos fuzz miri tsan bench lab build release lint fmt docs clean tools test-tools bench-tools report-tools registry-tools nightly-tools envoy envoy-release \
        test-plugins plugins plugins-rust plugins-go plugins-assemblyscript plugins-cpp

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Only miri and tsan need it. A dated one holds them still: NIGHTLY=nightly-2026-05-20.
NIGHTLY ?= nightly
# Three crates, with a target folder for each tool: nothing else is built, and nothing is built twice.
SANITIZED := -p outrider-envoy-abi -p outrider-vm-pool -p outrider-telemetry
# Files, sockets and the scheduler are no matter of memory, and Miri has none of them.
INTERPRETED := -p outrider-envoy-abi -p outrider-vm-pool
# The stock Envoy is installed into the project's own folder, whatever the user's environment says.
export OUTRIDER_HOME := $(CURDIR)/.envoy

step = @printf '\n== %s\n' $(1)

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-30s %s\n", $$1, $$2 }'

demo: release envoy-release ## Start the quickstart gateway, send requests through it, change it while it runs
	$(call step,'demo')
	@$(TARGET)/release/outrider-demo --outrider $(TARGET)/release/outrider

demo-lanes: release envoy-release ## Start a chain of three services in two versions each, and send requests through both lanes
	$(call step,'demo of lanes')
	@$(TARGET)/release/outrider-demo-lanes --outrider $(TARGET)/release/outrider

test: test-tools build plugins-rust envoy ## Format check, lints, and every test, those with the real Envoy included
	$(call step,'formatting')
	@$(CARGO) fmt --all --check
	$(call step,'lints')
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@$(CARGO) fmt --all --manifest-path plugins/rust/Cargo.toml --check
	@$(CARGO) clippy --locked --release --quiet --target wasm32-wasip1 --target-dir $(TARGET)/plugins/rust \
	    --manifest-path plugins/rust/Cargo.toml -- -D warnings
	$(call step,'tests')
	@$(CARGO) test --locked --workspace --no-fail-fast
	@$(MAKE) --no-print-directory loom
	@printf '\nnot built, and not tested: the plugins in plugins/{go,assemblyscript,cpp}; make test-plugins does both\n'

test-plugins: build plugins envoy ## Build the Wasm plugins of every language, and Coraza, and run their cases, without Envoy and on it
	$(call step,'build (coraza)')
	@scripts/build-plugins.sh --install coraza
	$(call step,'cases of plugins')
	@scripts/test-plugins.sh $(TARGET)/debug/outrider $(TARGET)/plugins/new

# Loom stands in for the atomics in every crate that is compiled so: the exporter's runtime is left out.
loom: ## Check all orders in which a worker and the exporter can use a ring, with loom
	$(call step,'loom')
	@RUSTFLAGS='--cfg loom' $(CARGO) test --locked --release --target-dir $(TARGET)/loom -p outrider-telemetry --no-default-features --lib loom

soak: release envoy-release ## Load mixed faults for ten minutes (SOAK_SECONDS=60: one), check, and write docs/soak anew
	$(call step,'soak')
	@$(TARGET)/release/outrider-soak --outrider $(TARGET)/release/outrider --seconds $(or $(SOAK_SECONDS),600) --output docs/soak

soak-traps: build envoy ## Have a Wasm plugin trap at every 100th request, at full load, for a minute (TRAPS_SECONDS=600)
	$(call step,'soak (traps)')
	@TRAPS_SECONDS=$(or $(TRAPS_SECONDS),60) $(CARGO) test --locked -p outrider-e2e --test wasm -- --nocapture a_trap_costs_one_stream

soak-hostile: release envoy-release ## Run hostile plugins of every kind beside other tenants for five minutes (SECONDS=60), and write docs/soak
	$(call step,'soak (hostile plugins)')
	@$(TARGET)/release/outrider-hostile --outrider $(TARGET)/release/outrider --seconds $(or $(SECONDS),300) \
	    $(if $(ONLY),--only $(ONLY)) --output docs/soak

soak-operations: release envoy-release ## Operate a gateway under load for ten minutes (OPERATIONS_SECONDS=60, SEED=7), and write docs/soak
	$(call step,'soak (operations)')
	@$(TARGET)/release/outrider-operations --outrider $(TARGET)/release/outrider --seconds $(or $(OPERATIONS_SECONDS),600) \
	    $(if $(SEED),--seed $(SEED)) --output docs/soak

chaos: release envoy-release ## Run random plugins, clients, upstreams and changes (SEED=7) for 30 minutes (CHAOS_SECONDS=60), and write docs/soak
	$(call step,'chaos')
	@$(TARGET)/release/outrider-chaos --outrider $(TARGET)/release/outrider --seconds $(or $(CHAOS_SECONDS),1800) \
	    $(if $(SEED),--seed $(SEED)) --output docs/soak

test-istio: build envoy ## Run lanes in a whole Istio on this machine (needs root, Go, iptables), and write docs/istio-checks.md
	$(call step,'lanes in Istio')
	@$(TARGET)/debug/outrider-test-istio --outrider $(TARGET)/debug/outrider --programs $(TARGET)/istio --summary docs/istio-checks.md

test-registry: registry-tools ## Push, sign, fetch and verify plugins at real registries on this machine (docker-registry, Go)
	$(call step,'build (registry, crane)')
	@mkdir -p $(TARGET)/registry
	@cd tests/registry && go build -o $(abspath $(TARGET))/registry/registry . \
	    && go build -o $(abspath $(TARGET))/registry/lastlayer ./lastlayer \
	    && go build -o $(abspath $(TARGET))/registry/crane github.com/google/go-containerregistry/cmd/crane
	$(call step,'plugins in registries')
	@OUTRIDER_TEST_REGISTRY=$(abspath $(TARGET))/registry $(CARGO) test --locked -p outrider-plugin-registry --test registries -- --ignored

test-report: report-tools ## Open a report of the lab in a real Chromium (Debian: chromium, chromium-driver), and print it
	$(call step,'report in Chromium')
	@$(CARGO) test --locked -p outrider-lab-report --test browser -- --ignored

fuzz: tools ## Call host functions from Wasm with random arguments (FUZZ_SECONDS=600), and keep what is answered anew
	$(call step,'fuzz')
	@FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(CARGO) test --locked -p outrider-wasm-runtime --lib fuzz -- --ignored --nocapture

# Leaks are not reported because the threads of the watchdog, of timers, of makers and of the drop queue last as long
# as the process. Miri's clock counts what it interprets, so a busy machine changes nothing.
miri: nightly-tools ## Interpret the tests of envoy-abi over its stub of Envoy, and of vm-pool, and find undefined behaviour
	$(call step,'miri')
	@MIRIFLAGS='-Zmiri-ignore-leaks -Zmiri-strict-provenance' \
	    $(CARGO) +$(NIGHTLY) miri test --locked --target-dir $(TARGET)/miri --tests $(INTERPRETED)

# The standard library is built anew, so that its locks and threads are seen, too. The target is named, so that
# RUSTFLAGS are not those of build scripts.
tsan: nightly-tools ## Run the tests of the watchdog, the worker slots and the wake-ups under ThreadSanitizer
	$(call step,'ThreadSanitizer')
	@RUSTFLAGS=-Zsanitizer=thread $(CARGO) +$(NIGHTLY) test --locked -Zbuild-std --target x86_64-unknown-linux-gnu \
	    --target-dir $(TARGET)/tsan --tests $(SANITIZED)

bench: bench-tools release envoy-release ## Count what plugins cost, and write docs/benchmarks anew (BENCH="--family wasm": Wasm only)
	$(call step,'build (native comparison)')
	@$(CARGO) build --locked --release -p outrider-bench-native
	$(call step,'build (Wasm guests)')
	@scripts/build-plugins.sh --install bench coraza
	$(call step,'bench')
	@$(TARGET)/release/outrider-bench --outrider $(TARGET)/release/outrider --modules $(TARGET)/release $(BENCH)

lab: release envoy-release ## Measure what each mechanism costs, at most 15 minutes (MINUTES=2), and write the report into lab-results
	$(call step,'build (native comparison)')
	@$(CARGO) build --locked --release -p outrider-bench-native
	$(call step,'build (Wasm guests)')
	@scripts/build-plugins.sh --install bench rust go
	$(call step,'lab')
	@$(TARGET)/release/outrider lab run mechanisms $(if $(MINUTES),--minutes $(MINUTES)) --output lab-results

build: tools ## Build the command and the module for development
	$(call step,'build')
	@$(CARGO) build --locked -p outrider-cli -p outrider-envoy-module -p outrider-lab

release: tools ## Build the command and the module for use
	$(call step,'build (release)')
	@$(CARGO) build --locked --release -p outrider-cli -p outrider-envoy-module -p outrider-lab

plugins: plugins-rust ## Build the Wasm plugins of every language, and install what that needs
	$(call step,'plugins (go, assemblyscript, cpp)')
	@scripts/build-plugins.sh --install go assemblyscript cpp

plugins-rust: tools ## Build the Wasm plugins in Rust
	$(call step,'plugins (rust)')
	@scripts/build-plugins.sh rust

plugins-go: ## Build the Wasm plugins in Go
	@scripts/build-plugins.sh go

plugins-assemblyscript: ## Build the Wasm plugins in AssemblyScript
	@scripts/build-plugins.sh assemblyscript

plugins-cpp: ## Build the Wasm plugins in C++
	@scripts/build-plugins.sh cpp

fmt: ## Format the code
	@$(CARGO) fmt --all
	@$(CARGO) fmt --all --manifest-path plugins/rust/Cargo.toml

lint: test-tools ## Lints only
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

docs: tools ## Write the generated pages under docs/ anew
	$(call step,'docs')
	@UPDATE_DOCS=1 $(CARGO) test --locked --quiet -p outrider-gateway --test documents
	@UPDATE_DOCS=1 $(CARGO) test --locked --quiet -p outrider-lab the_kept_page
	@UPDATE_DOCS=1 $(CARGO) test --locked --quiet -p outrider-lab-report --test readme

clean: ## Remove what was built; the installed Envoy stays
	@$(CARGO) clean

tools:
	@scripts/check-tools.sh

bench-tools:
	@scripts/check-tools.sh valgrind

registry-tools:
	@scripts/check-tools.sh registry

report-tools:
	@scripts/check-tools.sh chromium

nightly-tools:
	@NIGHTLY=$(NIGHTLY) scripts/check-tools.sh nightly

test-tools:
	@scripts/check-tools.sh fmt clippy

envoy: build
	$(call step,'stock Envoy')
	@$(TARGET)/debug/outrider envoy install

envoy-release: release
	$(call step,'stock Envoy')
	@$(TARGET)/release/outrider envoy install
