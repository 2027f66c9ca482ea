# make demo | test | lint | format | build | clean: each sets up what it needs in .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CXX_FILES := $(wildcard $(foreach folder,src src/* torchmdla/devices/mdla/*,$(folder)/*.cpp $(folder)/*.h))
SOURCES := $(CXX_FILES) CMakeLists.txt torchmdla/devices/mdla/CMakeLists.txt setup.py
# Tests are mostly waiting for compiler processes: two workers keep two cores busy.
JOBS   ?= 2

.PHONY: demo test lint format build clean

demo: build
	$(BIN)/python test.py $(ARGS)

test: build
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

build: $(VENV)/.built

$(VENV)/.installed: requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	touch $@

# The package is installed in place, so Python changes need no build; C++ changes rebuild by ninja.
$(VENV)/.built: $(VENV)/.installed $(SOURCES) pyproject.toml
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

clean:
	rm -rf build $(VENV) torchmdla/*.so torchmdla/devices/mdla/*.so *.egg-info
