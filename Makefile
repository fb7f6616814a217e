# What one does with this repository. Each target first installs what it lacks (scripts/deps says what), and is quick when nothing is.
#
#   make build       the program: target/release/forebay
#   make demo        serve and read a realistic data set on this machine, and print what it did
#   make test        everything; what CI runs
#   make test-fast   the part of it that takes at most three minutes once built
#   make test-guest  the part of it that needs soft-RoCE, netem or two machines: emulated ones (tests/guest)
#   make bench       every bench; writes target/bench/*.jsonl and docs/BENCHMARKS.md
#   make lint        formatting, clippy, documentation, dependencies

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO ?= cargo
# --locked: a build that would change Cargo.lock is an error, not a surprise.
FLAGS ?= --locked
BENCHES := $(patsubst benches/%/main.rs,%,$(wildcard benches/*/main.rs))
# The test programs of the root package that ask other people's clients for everything: left out of test-fast, as is
# tests/guest/main.rs.
SLOW_TESTS := $(patsubst tests/%.rs,%,$(wildcard tests/third_party*.rs))
FAST_TESTS := $(filter-out $(SLOW_TESTS),$(patsubst tests/%.rs,%,$(wildcard tests/*.rs)))

.PHONY: all deps python-env build demo test test-fast test-guest test-rust guest-deps lint fmt-check clippy doc deny check-features check-loom check-memory bench \
	bench-smoke clean

all: build

deps:
	@scripts/deps test

python-env: deps
	@scripts/python-env >/dev/null

build:
	@scripts/deps build
	$(CARGO) build $(FLAGS) --release -p forebay

demo: build python-env
	scripts/demo

test-fast: python-env fmt-check
	FOREBAY_SEEDS=$${FOREBAY_SEEDS:-300} $(CARGO) test $(FLAGS) -p forebay-transport -p forebay-server -p forebay-client -p forebay
	$(CARGO) test $(FLAGS) -p forebay-system --lib $(FAST_TESTS:%=--test %)

test: python-env lint test-rust check-features check-loom check-memory bench-smoke
	@echo "make test: everything passed"

# --no-fail-fast: one run shows everything that is broken.
test-rust: python-env guest-deps
	FOREBAY_SEEDS=$${FOREBAY_SEEDS:-5000} $(CARGO) test $(FLAGS) --workspace --no-fail-fast

test-guest: guest-deps
	$(CARGO) test $(FLAGS) -p forebay-system --test guest

# Where they cannot be had, the tests that want them say so, and that they are skipped.
guest-deps: deps
	@scripts/deps guest || true

lint: deps fmt-check clippy doc deny

fmt-check:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy $(FLAGS) --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(FLAGS) --workspace --no-deps --quiet

# Advisories need the network and change by the day: a job of their own, not a reason for a commit to fail.
deny:
	@if command -v cargo-deny >/dev/null; then \
		cargo-deny --locked check licenses bans sources; \
	else \
		echo "!! SKIPPED: licences, bans and sources of dependencies: cargo-deny is not installed (cargo install --locked cargo-deny)"; \
	fi

# Without the features that are on by default, as on machines whose kernels have no io_uring, and with no headers of rdma-core.
check-features: python-env
	@if $(CARGO) tree $(FLAGS) --workspace --exclude forebay-system --no-default-features --prefix none | grep rdma-sys; then \
		echo "rdma-sys is built although its feature is off"; exit 1; \
	fi
	FOREBAY_SEEDS=300 $(CARGO) test $(FLAGS) --no-default-features --no-fail-fast \
		-p forebay-transport -p forebay-server -p forebay-client -p forebay

check-loom: deps
	scripts/check-loom

check-memory: deps
	scripts/check-memory

bench: build deps
	@rm -rf target/bench
	@for bench in $(BENCHES); do $(CARGO) bench $(FLAGS) -p forebay-system --bench $$bench; done
	@scripts/bench-report target/bench > docs/BENCHMARKS.md
	@echo "wrote docs/BENCHMARKS.md"

bench-smoke: deps
	@for bench in $(BENCHES); do $(CARGO) bench $(FLAGS) -p forebay-system --bench $$bench -- --smoke; done

clean:
	$(CARGO) clean
	rm -rf .venv .azurite .work .python-env.lock .azurite.lock
