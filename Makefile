# make demo | test | test-all | test-slice | coverage | mutants | test-cxx | test-packages | check | docs | fuzz | fuzz-passes | fuzz-archives | probe | soak | lint | format | build | wheel | matrix | clean: each sets up .venv first.
# make aarch64 | wheel-aarch64: the runtime for AArch64 and models that are compiled for it, or the wheel, run in an emulator
# (docs/aarch64.md).
# make asan | ubsan | tsan | fuzz-mdla | fuzz-native | fuzz-packages: the C++ under sanitizers, and the readers of files fuzzed (docs/design/testing.md).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CXX_FILES := $(wildcard $(foreach folder,src/* src/native/operators mdla/* torchmdla/devices/mdla/include tests/cxx tests/mdla tests/native tests/aarch64 tests/packages tests/readers,$(folder)/*.cpp $(folder)/*.h))
# The C of the package that new-device writes is not a part of the build.
FORMATTED := $(CXX_FILES) $(wildcard torchmdla/share/new_device/src/mychip/*.[ch])
SOURCES := $(CXX_FILES) $(wildcard src/*.map src/*/*.map) CMakeLists.txt mdla/CMakeLists.txt src/native/CMakeLists.txt setup.py release/npm_package.py release/operator_table.py
# Tests are mostly waiting for compiler processes: two workers keep two cores busy.
JOBS   ?= 2
# Hundreds of processes of the tests import the package, which takes twice as long where its bytecode is not kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-slice coverage mutants test-cxx test-packages aarch64 wheel-aarch64 check docs fuzz fuzz-passes fuzz-archives probe soak lint format build wheel matrix asan ubsan tsan fuzz-mdla fuzz-native fuzz-packages clean

demo: build
	$(BIN)/python test.py $(ARGS)

PYTEST := -m pytest -n $(JOBS) --dist worksteal

test: build $(VENV)/.developing
	$(BIN)/python $(PYTEST) $(ROWS) $(ARGS)

# Tests, all rows of those that are marked sampled, and fuzzers, with what each pass computes compared with what was
# computed before it (docs/design/testing.md).
test-all: export TORCHMDLA_VERIFY = values
test-all: ROWS = --rows all
test-all: test fuzz fuzz-passes
	$(BIN)/python $(PYTEST) -m full tests/group/test_corrupted.py

# A part of the rows that make test leaves out. SLICE=3/8
test-slice: export TORCHMDLA_VERIFY = values
test-slice: ROWS = --rows $(or $(SLICE),0/8)
test-slice: test

# Lines and branches of torchmdla/ that tests reach, in any process, told in a table and, by line, in build/coverage/pages. A
# test that fails does not end it. ARGS="tests/importer"
coverage: build $(VENV)/.developing
	rm -rf build/coverage
	mkdir -p build/coverage
	-$(BIN)/python -m coverage run $(PYTEST) $(ROWS) $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet
	$(BIN)/python -m coverage report

# How many random one-line changes of the compiler the tests notice. ARGS="--count 20 --near", ARGS=--help
mutants: build $(VENV)/.developing
	PYTHONPATH=tests $(BIN)/python -m mutants --jobs $(JOBS) $(ARGS)

# ARGS="-k watch"
test-cxx: build $(VENV)/.developing
	$(BIN)/python -m pytest tests/cxx $(ARGS)

# Models of other packages against eager, and the table in the documentation. The environment adds these packages to those
# of .venv. torchaudio's binary is for CUDA, and it is imported only without it. ARGS="--filter timm --verbose"
PACKAGES := build/packages-venv
$(PACKAGES)/.installed: requirements-packages.txt $(VENV)/.developing
	test -x $(PACKAGES)/bin/python || $(BIN)/python -m venv $(PACKAGES)
	$(PACKAGES)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps -r requirements-packages.txt
	site=$$($(PACKAGES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  $(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > $$site/torchmdla-venv.pth && rm -rf $$site/torchaudio/lib
	touch $@

test-packages: build $(PACKAGES)/.installed
	YOLO_OFFLINE=1 YOLO_CONFIG_DIR=$(CURDIR)/$(PACKAGES) PYTHONPATH=tests $(PACKAGES)/bin/python -m torchmdla.testing \
	  --programs packages_of_others.models --frontend torchscript:trace,torchscript:script,dynamo --memory 6GiB \
	  $(or $(ARGS),--table docs/packages_of_others.md)

# Debian's packages g++-aarch64-linux-gnu and qemu-user. Where they are missing the tests are skipped.
aarch64: build $(VENV)/.developing
	$(BIN)/python -m pytest tests/aarch64 $(ARGS)

# In dist/, for AArch64, with PyTorch's wheel for it. Tried in the emulator with Debian's Python.
wheel-aarch64: build
	$(BIN)/python release/aarch64_wheel.py

# For use between commits: every layer once.
CORE := tests/fusion tests/importer tests/fx/test_fx.py tests/compile_service/test_cache.py tests/group/test_semantics.py \
        tests/cpu/test_expressions.py tests/cpu/test_verifier.py tests/cpu/test_tile_fusion.py tests/cpu/test_layout.py
check: lint build
	$(BIN)/python -m pytest -q -n $(JOBS) $(CORE) $(ARGS)

# The documentation as pages, in build/site; links and references that lead nowhere are errors.
docs: build $(VENV)/.developing
	$(BIN)/python -m pip install --quiet -r requirements-docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo build/site/index.html

# In dist/, for the torch of .venv and others: TORCH=2.14.1. Tried in an environment without a compiler. ALL=1: a wheel for
# each CPython of this machine, each for all supported versions of PyTorch.
wheel: build $(VENV)/.developing
	$(BIN)/python release/make_wheel.py $(if $(ALL),--all,$(if $(TORCH),--torch $(TORCH)))
	$(BIN)/python release/try_wheel.py dist/*.whl

# Each supported PyTorch with each CPython of this machine: a wheel, a core of the tests, and a row of docs/versions.md.
# ARGS="--torch 2.15 --python 3.11"
MATRIX := $(CORE) tests/fx/test_dynamo.py tests/fx/test_export.py tests/lazy/test_lazy.py tests/acap/test_acap.py \
          tests/packages/test_packages.py tests/tools/test_warnings.py
matrix: $(VENV)/.installed
	$(BIN)/python release/matrix.py --jobs $(JOBS) --tests $(MATRIX) $(ARGS)

# ARGS="--minutes 60", ARGS=--help
fuzz: build $(VENV)/.developing
	PYTHONPATH=tests $(BIN)/python -m fuzz $(ARGS)

# ARGS="--minutes 60"
fuzz-passes: build $(VENV)/.developing
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz.passes $(ARGS)

# ARGS="--frontend lazy:step --dtype float16"
# Files of TorchScript that are changed at random, read without PyTorch. ARGS="--minutes 60"
fuzz-archives: build $(VENV)/.developing
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz.archives $(ARGS)

probe: build $(VENV)/.developing
	PYTHONPATH=tests $(BIN)/python -W ignore -m scalar_probe $(ARGS)

soak: build $(VENV)/.developing
	PYTHONPATH=tests $(BIN)/python -m fuzz.soak $(ARGS)

lint: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)
	$(BIN)/python tests/words.py torchmdla torchmdla_runtime src tests benchmarks examples release --list
	$(BIN)/mypy
	cd release && ../$(BIN)/mypy --config-file ../pyproject.toml *.py
	$(BIN)/lint-imports

format: $(VENV)/.developing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

build: $(VENV)/.built

# Python compiles what it imports; compiling all that is installed takes longer than the demo.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

$(VENV)/.installed: requirements.txt
	@echo "installing PyTorch, MLIR and the tools that build the extension into $(VENV) …"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	touch $@

# Tests start Python by the hundred: for them all is compiled once.
$(VENV)/.developing: $(VENV)/.installed requirements-dev.txt
	@echo "installing what tests and lint need into $(VENV) …"
	$(PIP) -r requirements.txt -r requirements-dev.txt
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
	touch $@

# The package is installed in place, so Python changes need no build, but for the tables of the CPU's operators. C++ changes
# rebuild by ninja, which shows how far it is.
$(VENV)/.built: $(VENV)/.installed $(SOURCES) $(wildcard torchmdla/devices/cpu/target/*.py) pyproject.toml torchmdla/version.py
	@echo "building the extension: two minutes on two cores, the first time …"
	$(BIN)/python setup.py --quiet build_ext --inplace
	$(PIP) --no-build-isolation --no-deps --editable .
	touch $@

# What is built with sanitizers lies beside a copy of the package in build/<target>, and tests run on that copy: the
# extension that was built in place stays as it is. libtorch has no thread sanitizer in it, so that of all that has
# threads only the mdla device's libraries, which need no libtorch, are built with it.
SANITIZE_asan  := address,undefined
SANITIZE_ubsan := undefined
SANITIZE_tsan  := thread
# libtorch's classes are not exported as the sanitizer wants them for checks of casts.
CXXFLAGS_asan  := -fno-sanitize=vptr
CXXFLAGS_ubsan := -fno-sanitize=vptr
SOURCE_tsan    := mdla
TESTS_tsan     := tests/mdla/test_mdla_batches.py tests/mdla/test_mdla_emulator.py
TESTS          := tests/mdla/test_*.py tests/fusion/test_fusion.py tests/fusion/test_input_paths.py tests/group/test_faults.py \
                  tests/group/test_dynamic.py tests/group/test_semantics.py tests/group/test_statistics.py tests/acap/test_acap_values.py
# gcc's libraries for LD_PRELOAD: Python itself has no sanitizer in it. The second is what exceptions are thrown with.
PRELOAD_asan   := libasan.so libstdc++.so
PRELOAD_ubsan  := libubsan.so
PRELOAD_tsan   := libtsan.so

# A library of a test's crashes on purpose, and what it died of is what the test asks for: hence handle_segv=0.
asan ubsan tsan: build $(VENV)/.developing
	export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	CXXFLAGS="-fsanitize=$(SANITIZE_$@) $(CXXFLAGS_$@) -fno-sanitize-recover=all -g1" LDFLAGS="-fsanitize=$(SANITIZE_$@)" \
	  cmake -S $(or $(SOURCE_$@),.) -B build/$@ -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python && cmake --build build/$@
	mkdir -p build/$@/tree
	cp -R torchmdla torchmdla_runtime tests examples docs README.md pyproject.toml build/$@/tree
	cp build/$@/libtorchmdla_mdla*.so build/$@/tree/torchmdla/devices/mdla
	$(if $(SOURCE_$@),,cp build/$@/_C*.so build/$@/libtorchmdla.so build/$@/tree/torchmdla/torch_[0-9]*/)
	$(if $(SOURCE_$@),,cp build/$@/libtorchmdla_runtime.so build/$@/tree/torchmdla_runtime)
	cd build/$@/tree && \
	  ASAN_OPTIONS=detect_leaks=0:handle_segv=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 \
	  TSAN_OPTIONS=halt_on_error=1:report_mutex_bugs=0:suppressions=$(CURDIR)/tests/tsan.supp:log_path=$(CURDIR)/build/$@/report \
	  TORCHMDLA_COMPILE_MEMORY=0 \
	  PYTHONPATH=. TORCHMDLA_CACHE_DIR=$(CURDIR)/build/$@/cache \
	  LD_PRELOAD="$(foreach library,$(PRELOAD_$@),$(shell $(CXX) -print-file-name=$(library)))" \
	  setarch --addr-no-randomize $(CURDIR)/$(BIN)/python -m pytest $(or $(TESTS_$@),$(TESTS)) $(ARGS)

# With CXX=clang++ by libFuzzer, with gcc by a loop of our own; both look at what an input reaches. What ends a fuzzer lies in its
# folder of build/, where it runs. libtorch's own memory is not looked for at the end.
FUZZ_SECONDS ?= 60
FUZZER := build/fuzz-$(notdir $(CXX))
fuzz-mdla fuzz-native fuzz-packages: fuzz-%: build $(VENV)/.developing
	export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	cmake -S tests/readers -B $(FUZZER) -G Ninja -DCMAKE_CXX_COMPILER=$(CXX) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python && \
	  cmake --build $(FUZZER) --target fuzz_$*
	mkdir -p build/$@/corpus
	$(BIN)/python -W ignore tests/$*/seeds.py build/$@/seeds
	cd build/$@ && ASAN_OPTIONS=detect_leaks=0 ../../$(FUZZER)/fuzz_$* -max_total_time=$(FUZZ_SECONDS) -timeout=300 \
	  -rss_limit_mb=4096 corpus seeds

clean:
	rm -rf build dist $(VENV) torchmdla/torch_[0-9]* torchmdla/devices/mdla/*.so torchmdla_runtime/*.so torchmdla/report/page/vendor \
	  *.egg-info
