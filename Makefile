# SPDX-License-Identifier: Apache-2.0
#
# Everything from a bare checkout. Needs python3 (with venv), g++ and make; nvcc is used if it is there. CMake, Ninja
# and all else come from PyPI into .venv. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build/make
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Each worker holds three frameworks, some 2 GB.
PYTEST_ARGS ?= --numprocesses $(firstword $(filter 1 2 3,$(JOBS)) 4) --dist worksteal
PYTEST_OPTIONS ?=
GPU := $(shell nvidia-smi -L 2>/dev/null)
BENCH_ARGS ?= $(if $(GPU),gpu,cpu)

# CUDA code for the GPU of this machine; without one for sm_90 alone, so that it compiles in minutes. A wheel for others
# is `make wheel`, which builds for every architecture.
NORMACT_CUDA ?= AUTO
NORMACT_CUDA_ARCHITECTURES ?= $(if $(GPU),native,90-real)
NORMACT_WERROR ?= OFF

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# A framework's thread pools beside ours, and TensorFlow's chatter, only disturb.
export TF_CPP_MIN_LOG_LEVEL ?= 2

SOURCES := CMakeLists.txt pyproject.toml $(shell find cpp python cmake -type f -not -name '*.pyc')
CXX_FILES := $(shell find cpp python tests examples bench -type f \
  \( -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' -o -name '*.c' \))
# The templates of the kernels are analysed where they are instantiated, by the compilers' own warnings.
TIDY_FILES := $(wildcard cpp/api/*.cpp cpp/core/*.cpp python/bindings/*.cpp)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test ctest pytest lint tidy format bench wheel clean help
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

demo: $(VENV)/.normact $(VENV)/.demo ## build, install into .venv, run the demos: a pretrained encoder, nets for images and text
	$(BIN)/python -m normact demo
	$(BIN)/python -m normact demo vision
	$(BIN)/python -m normact demo gpt --steps 40 --modes eager
	$(BIN)/python -m normact demo vit --steps 40 --modes eager

test: ctest pytest ## build, install into .venv, run the C, C++ and Python tests

ctest: $(VENV)/.normact
	$(BIN)/cmake -S . -B $(BUILD) -DNORMACT_BUILD_TESTS=ON >/dev/null
	$(BIN)/cmake --build $(BUILD)
	$(BIN)/ctest --test-dir $(BUILD) --output-on-failure

pytest: $(VENV)/.normact $(VENV)/.test | ctest
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(PYTEST_OPTIONS)

lint: $(VENV)/.lint tidy ## check the format, the types, the spelling and the project's own rules
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/codespell
	$(BIN)/python -m pytest --quiet tests/lint

tidy: $(VENV)/.lint $(VENV)/.build ## analyse the host code with clang-tidy and the compiler's warnings
	$(BIN)/cmake -S . -B build/tidy -G Ninja -DNORMACT_CUDA=OFF -DNORMACT_BUILD_PYTHON=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python >/dev/null
	printf '%s\n' $(TIDY_FILES) | xargs -P $(JOBS) -n 1 $(BIN)/clang-tidy -p build/tidy --quiet 2>/dev/null
	$(BIN)/python tests/lint/syntax_commands.py build/tidy/compile_commands.json | \
	  xargs -P $(JOBS) -d '\n' -n 1 $(SHELL) -c

format: $(VENV)/.lint ## rewrite all sources in the project's format
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.normact $(VENV)/.test ## measure on the GPU, or without one on the CPU, and write bench/RESULTS.md
	$(BIN)/python -m bench.run $(BENCH_ARGS)
	$(BIN)/python -m bench.report

wheel: $(VENV)/.build ## build a wheel for every GPU architecture into dist/
	NORMACT_CUDA_ARCHITECTURES=$${NORMACT_CUDA_ARCHITECTURES:-all-major} \
	  $(BIN)/python -m pip wheel --no-deps --no-build-isolation -w dist .

clean: ## remove what was built; .venv stays
	rm -rf build dist $(VENV)/.normact

# ---- The environment: one stamp file per dependency group of pyproject.toml ----

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade 'pip>=25.1'

$(VENV)/.build $(VENV)/.test $(VENV)/.lint $(VENV)/.demo: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(INSTALL) --group $*
	touch $@

# The build tree stays, so that a second call compiles only what has changed; `make ctest` goes on in the same tree.
$(VENV)/.normact: $(SOURCES) | $(VENV)/.build
	$(INSTALL) --no-build-isolation --no-deps --force-reinstall . --config-settings=build-dir=$(BUILD) \
	  --config-settings=cmake.define.NORMACT_CUDA=$(NORMACT_CUDA) \
	  --config-settings=cmake.define.NORMACT_CUDA_ARCHITECTURES=$(NORMACT_CUDA_ARCHITECTURES) \
	  --config-settings=cmake.define.NORMACT_WERROR=$(NORMACT_WERROR)
	touch $@
