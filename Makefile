# Two commands on a fresh machine with Python 3.10 or newer, a C++ compiler and make:
#   make demo     a real model, from ONNX to an engine with the plugin in it
#   make test     every test that needs no GPU
# Each makes .venv, installs what it needs into it and compiles the plugin; a second call finds that done.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
# A developer build compiles for one architecture, this machine's or that of an H200: minutes saved.
CUDA_ARCHITECTURES ?= $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .),90)
# Where no GPU is, nobody runs the kernels: the tests there compile them in a tenth of the time, for slow ones.
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
FAST_COMPILE := --config-settings=cmake.define.ATTNGRAFT_FAST_COMPILE
# The GPU targets run with this interpreter as it is and install nothing (offline machines); empty: with .venv.
GPU_PYTHON ?=
COMPUTE_SANITIZER ?= compute-sanitizer
# Random kernel cases under compute-sanitizer, which slows them a hundredfold.
SANITIZED_CASES ?= 100
PYTEST_OPTIONS ?=
# Arithmetic in one process each, which two cores do in half the time. Options may choose none of a part (status 5).
KERNEL_TESTS := $(wildcard tests/python/test_kernel_*.py)
NONE_CHOSEN := $(if $(PYTEST_OPTIONS),|| [ $$? -eq 5 ])

BUILD := build/dev
STAMPS := $(VENV)/stamps
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
CONSTRAINTS := tests/constraints.txt
BUILD_FILES := CMakeLists.txt pyproject.toml $(CONSTRAINTS) Makefile
SOURCES := $(shell find plugin cmake python onnx_export tests/cpp examples -type f -not -path '*/__pycache__/*')

# $(call install,EXTRAS,OPTIONS): first what the package and its extras need, then the package. That is compiled in $(BUILD),
# where the C++ tests run too, with the tools in .venv, so that only what changed is compiled again.
define install
@$(VENV)/bin/python tools/requirements.py $(1) > $(VENV)/requirements.txt
@$(PIP) install --constraint $(CONSTRAINTS) --requirement $(VENV)/requirements.txt
@PATH="$(abspath $(VENV))/bin:$$PATH" $(PIP) install --no-deps --no-build-isolation --config-settings=build-dir=$(BUILD) \
  --config-settings=cmake.define.ATTNGRAFT_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES) $(2) .
endef

ifdef GPU_PYTHON
GPU_RUN := $(GPU_PYTHON)
GPU_READY :=
BENCH_READY :=
else
GPU_RUN := $(VENV)/bin/python
GPU_READY := $(STAMPS)/test $(STAMPS)/tensorrt
BENCH_READY := $(GPU_READY) $(STAMPS)/benchmarks
export ATTNGRAFT_TEST_ABI ?= $(abspath $(BUILD))/lib/libattngraft_test_abi.so
endif

.PHONY: help venv demo test cpp-test python-test gpu-test gpu-test-pycuda sanitize bench profile bench-zoo wheel clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(STAMPS)/demo $(STAMPS)/tensorrt  ## A trained ViT: inspect, rewrite, verify, build, run where a GPU is
	@$(VENV)/bin/python demo/demo.py

test: cpp-test python-test  ## The C++ and Python tests, none of which needs a GPU

cpp-test: $(STAMPS)/test
	@echo "== C++ tests"
	@$(VENV)/bin/ctest --test-dir $(BUILD) --output-on-failure

python-test: $(STAMPS)/test cpp-test
	@echo "== Python tests: the kernels on an emulated device, then the others"
	@$(VENV)/bin/python -m pytest --numprocesses 2 $(KERNEL_TESTS) $(PYTEST_OPTIONS) $(NONE_CHOSEN)
	@$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile tests/python $(KERNEL_TESTS:%=--ignore=%) $(PYTEST_OPTIONS) $(NONE_CHOSEN)

gpu-test: $(GPU_READY)  ## The tests on a GPU with TensorRT; fails where either is missing
	@$(GPU_RUN) -m pytest tests/gpu $(PYTEST_OPTIONS)

gpu-test-pycuda: $(GPU_READY)  ## pycuda's arrays on a GPU; pycuda must be installed, which takes a whole CUDA SDK
	@$(GPU_RUN) -m pytest tests/gpu_pycuda $(PYTEST_OPTIONS)

sanitize: $(GPU_READY)  ## The kernel tests under compute-sanitizer: memcheck, racecheck, initcheck
	@for tool in memcheck racecheck initcheck; do \
	  echo "== compute-sanitizer $$tool"; \
	  ATTNGRAFT_SWEEP=$(SANITIZED_CASES) $(COMPUTE_SANITIZER) --tool $$tool --error-exitcode 1 \
	    $(GPU_RUN) -m pytest tests/gpu/test_kernel_softmax.py tests/gpu/test_kernel_softmax_backward.py \
	    tests/gpu/test_kernel_attention_gpu.py $(PYTEST_OPTIONS); \
	done

bench: $(BENCH_READY)  ## The measurements on a GPU: benchmarks/results/*.json and docs/measurements.md
	@$(GPU_RUN) -m benchmarks.softmax_kernel
	@$(GPU_RUN) -m benchmarks.softmax_backward_kernel
	@$(GPU_RUN) -m benchmarks.attention_kernel --variants --flex
	@$(GPU_RUN) -m benchmarks.models_in_tensorrt
	@$(GPU_RUN) -m benchmarks.zoo --size real --filter "$$($(GPU_RUN) -m benchmarks.rewriter_native --print-filter)"
	@$(GPU_RUN) -m benchmarks.rewriter_native
	@$(GPU_RUN) -m benchmarks.attention_in_tensorrt
	@$(GPU_RUN) -m benchmarks.session_latency
	@$(GPU_RUN) -m benchmarks.pick_fastest
	@$(GPU_RUN) -m benchmarks.make_tables
	@$(GPU_RUN) -m benchmarks.make_plots

profile: $(BENCH_READY)  ## What the kernels wait for, by Nsight Compute: benchmarks/results/*-profile.json
	@$(GPU_RUN) -m benchmarks.softmax_profile
	@$(GPU_RUN) -m benchmarks.attention_profile
	@$(GPU_RUN) -m benchmarks.make_tables

bench-zoo: $(STAMPS)/benchmarks  ## The rewriter over the whole zoo of exports, no GPU: hours, resumable
	@$(VENV)/bin/python -m benchmarks.zoo
	@$(VENV)/bin/python -m benchmarks.rewriter_zoo
	@$(VENV)/bin/python -m benchmarks.zoo --size fusable --filter 'fp16$$' --sample 100
	@$(VENV)/bin/python -m benchmarks.rewriter_zoo --exports .zoo/fusable --results rewriter-zoo-fusable
	@$(VENV)/bin/python -m benchmarks.rewriter_speed
	@$(VENV)/bin/python -m benchmarks.make_tables

wheel: $(STAMPS)/tools  ## dist/*.whl for every supported architecture
	@$(PIP) wheel --no-deps --wheel-dir dist .
	@ls -l dist/*.whl

venv: $(STAMPS)/test  ## .venv with the package, the plugin and everything that the tests need

clean:  ## Removes .venv, .demo and what was built
	@rm -rf $(VENV) .demo .zoo build dist .pytest_cache .hypothesis

$(STAMPS)/tools: pyproject.toml tools/requirements.py $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "attngraft needs Python 3.10 or newer; set PYTHON=")'
	@echo "== $(VENV): virtual environment with the build tools and CUDA's compiler"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip
	@$(VENV)/bin/python tools/requirements.py --build > $(VENV)/requirements.txt
	@$(PIP) install --constraint $(CONSTRAINTS) --requirement $(VENV)/requirements.txt
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/tools $(SOURCES) $(BUILD_FILES)
	@echo "== attngraft: compiling the plugin for compute capability $(CUDA_ARCHITECTURES), installing (minutes)"
	$(call install,rtx runtime,$(FAST_COMPILE)=OFF)
	@touch $@

$(STAMPS)/test: $(STAMPS)/tools $(SOURCES) $(BUILD_FILES)
	@echo "== attngraft: compiling the plugin and its tests for compute capability $(CUDA_ARCHITECTURES), installing"
	@echo "   with PyTorch and all that the tests need (the first time some 3 GB and several minutes)"
	$(call install,export rtx runtime test,--config-settings=cmake.define.ATTNGRAFT_BUILD_TESTS=ON $(FAST_COMPILE)=$(if $(HAS_GPU),OFF,ON))
	@touch $(if $(HAS_GPU),$(STAMPS)/demo) $@

$(STAMPS)/benchmarks: $(STAMPS)/test
	@$(VENV)/bin/python tools/requirements.py benchmarks > $(VENV)/requirements.txt
	@$(PIP) install --constraint $(CONSTRAINTS) --requirement $(VENV)/requirements.txt
	@touch $@

# TensorRT itself is of use only where a GPU is, and comes from NVIDIA's index; without it TensorRT-RTX builds.
$(STAMPS)/tensorrt: $(STAMPS)/tools
	@if nvidia-smi >/dev/null 2>&1 && ! $(VENV)/bin/python -c 'import tensorrt' 2>/dev/null; then \
	  echo "== TensorRT for this machine's GPU"; \
	  $(PIP) install tensorrt || echo "   TensorRT is not to be had here; going on without it"; \
	fi
	@touch $@
