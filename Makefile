# The front door. `make run` and `make test` do their own set-up and build; nothing else is needed on a bare Debian 12.
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup build run test bench bench-peers format presubmit clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## install the Debian packages and the Python venv (.venv) that are missing
	@tools/setup.sh

build: setup ## build build/celer and the tests
	@cmake --preset default -B $(BUILD) $(CMAKE_FLAGS) > $(BUILD)-configure.log 2>&1 || (cat $(BUILD)-configure.log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)

run: build ## a small model answers a question; what this machine could do at best
	@tools/run.sh $(BUILD)/celer

test: build ## everything CI checks: layers, format, unit tests, golden tables, command line
	@tools/presubmit $(BUILD)

bench: build ## micro-benchmarks: fork-join, matrix products with their ratio to the limit
	@tools/bench.sh $(BUILD)

bench-peers: build ## celer beside llama.cpp on the same files (ARGS="--only decode-q8_0 --runs 3")
	@python3 bench/peers/bench_peers.py --celer $(BUILD)/celer $(ARGS)

format: setup ## format all C++ and CUDA sources
	@tools/format.sh

presubmit: test ## what CI runs

clean: ## remove what was built
	@rm -rf $(BUILD) $(BUILD)-configure.log
