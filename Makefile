# SPDX-License-Identifier: Apache-2.0
# make demo   set up, run the S1 experiment on 8 workers, print its table
# make test   set up, build, lint, run every test
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.PHONY: build test test-deep cuda lint format demo bench clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
# Python tests start up to eight processes each: only a few of them at once.
PYTEST_JOBS ?= $(shell echo $$(( $(JOBS) < 4 ? $(JOBS) : 4 )))
TORCH := torch==2.13.0
export CCACHE_BASEDIR := $(CURDIR)
# One name for the compiler in both builds, or ccache compiles every source twice.
export CXX

# chromium: the report's tests look at the page in a real browser. libgloo-dev: headers for the
# LibTorch example.
SYSTEM_PACKAGES := build-essential cmake ninja-build ccache python3-dev python3-venv \
  libhwy-dev libsqlite3-dev libcli11-dev nlohmann-json3-dev libfmt-dev \
  libxxhash-dev libgtest-dev libjs-dygraphs libopenmpi-dev openmpi-bin libgloo-dev \
  clang-format clang-tidy chromium
PYTHON_PACKAGES := "transformers>=4.56,<6" tokenizers safetensors pandas numpy tqdm \
  accelerate lightning trl datasets pytest pytest-timeout pytest-xdist psutil ruff mypy nanobind scikit-build-core

PYTHON_SOURCES := python bench tests
CPP_SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cu')

# ---- setting up

build/.system: Makefile
	@mkdir -p build
	@missing=""; for p in $(SYSTEM_PACKAGES); do \
	  dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  echo "== installing Debian packages:$$missing"; \
	  sudo=""; if [ "$$(id -u)" != 0 ]; then sudo="sudo"; fi; \
	  $$sudo apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >build/apt.log \
	    || { cat build/apt.log; exit 1; }; fi
	@touch $@

build/.venv: build/.system Makefile
	@if [ ! -x $(BIN)/python ]; then echo "== creating $(VENV)"; $(PYTHON) -m venv $(VENV); fi
	@echo "== installing Python packages into $(VENV) (torch is large)"
	@$(BIN)/pip install -q --disable-pip-version-check $(TORCH)
	@$(BIN)/pip install -q --disable-pip-version-check $(PYTHON_PACKAGES)
	@touch $@

# ---- building

build: build/.venv
	@echo "== building presum into $(VENV)"
	@$(BIN)/pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e . \
	  || { echo "build failed: see above"; exit 1; }
	@echo "presum $$($(BIN)/presum --version | cut -d' ' -f2) is in $(BIN)/presum"

build/cuda/build.ninja: build/.venv
build/%/build.ninja: build/.system CMakePresets.json
	@cmake --preset $* >build/$*.log || { cat build/$*.log; exit 1; }

cpp-%: build/%/build.ninja
	@echo "== building C++ ($*)"
	@cmake --build --preset $* -j $(JOBS)

# ---- testing

test: build cpp-release lint
	@echo "== C++ tests"
	@ctest --preset release -j $(JOBS)
	@echo "== Python tests"
	@$(BIN)/python -m pytest -m "not deep" -n $(PYTEST_JOBS) --dist loadfile

test-deep: build cpp-release cpp-asan-ubsan cpp-tsan
	@PRESUM_DEEP=1 build/release/src/step/step_test --gtest_filter='Machine.*' --gtest_brief=1
	@ctest --preset asan-ubsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS)
	@$(BIN)/python -m pytest -m deep
	@if command -v nvcc >/dev/null; then $(MAKE) cuda; else echo "no nvcc: CUDA kernels not built"; fi

# Needs nvcc, and no GPU: what needs one is skipped.
cuda: build/cuda/build.ninja
	@echo "== building the CUDA kernels"
	@cmake --build --preset cuda -j $(JOBS) --target _core observe_test observe_cuda_test
	@ctest --preset cuda -j $(JOBS) -R '^observe.*(Cuda|Gpu)'
	@PYTHONPATH=build/cuda/python/bindings $(BIN)/python -c 'import _core; assert _core.has_cuda'

lint: build/.venv build/release/build.ninja
	@echo "== lint"
	@clang-format --dry-run --Werror $(CPP_SOURCES)
	@$(BIN)/ruff check $(PYTHON_SOURCES)
	@$(BIN)/ruff format --check $(PYTHON_SOURCES)
	@$(BIN)/mypy
	@git ls-files --cached --others --exclude-standard 'src/*.cc' ':!src/*_test.cc' \
	  | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/release 2>build/tidy.log \
	  || { cat build/tidy.log; exit 1; }

format: build/.venv
	@clang-format -i $(CPP_SOURCES)
	@$(BIN)/ruff check -q --fix $(PYTHON_SOURCES)
	@$(BIN)/ruff format -q $(PYTHON_SOURCES)

# ---- using

demo: build
	@$(BIN)/presum s1 --out demo
	@$(BIN)/presum report demo/*-S1-* -o demo/report.html

bench: build cpp-release
	@build/release/bench/kernel_bench
	@build/release/bench/reduce_bench
	@build/release/bench/audit_bench
	@build/release/bench/ingest_bench
	@$(BIN)/python bench/reduction_bench.py
	@for way in ddp hook fsdp2 by-hand; do $(BIN)/python bench/overhead_bench.py --way $$way; done

clean:
	rm -rf build demo $(VENV)
