# Everything runs in .venv, which is made on first use. PYTHON names another interpreter than python3.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two test processes with one thread each are faster than one with many.
export OMP_NUM_THREADS ?= 1
# Of the package, for the tests.
EXTRAS := cluster,parquet,report
# What runs with the lowest versions of the packages that we need, but for BUT.
LOWEST_TESTS ?= tests/vnnlib tests/model/test_model_files.py tests/model/test_model_posterior.py tests/test_options.py tests/test_cli.py
BUT ?=
# How long, where to start, one kind of case alone; AGAIN=fuzz-runs/seed-N/case.json runs one failing case again.
MINUTES ?= 30
SEED ?= 0
DRAWS ?= 300
ONLY ?=
# The demo asks for the CPU build of torch where the platform has it beside the default one (Linux): a quarter of the size.
# TORCH_INDEX= (empty) takes the default build.
TORCH_INDEX ?= $(if $(filter Linux,$(shell uname -s)),https://download.pytorch.org/whl/cpu)
# In an environment that is there already the demo needs none of its own.
DEMO := $(if $(wildcard $(STAMP)),$(VENV),$(VENV)-demo)
# Where the studies write; DATA=folder says where they read.
OUT ?= study-results
PANEL ?= panel-results

# A fresh environment with a pip that knows groups.
define environment
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
endef

.PHONY: help demo docs docs-version gallery test test-checker test-libraries test-lowest fuzz fuzz-inputs fuzz-operators lint reference data-named panel wheel clean

help:
	@echo "make demo   verify some instances of the shipped benchmark and print tables"
	@echo "make test   run all tests"
	@echo "make test-checker  the tests of bnn-vnnlib-check in an environment without torch"
	@echo "make test-libraries   run the pages of docs/libraries in environments that have the libraries (gigabytes)"
	@echo "make test-lowest   some tests with the lowest versions that pyproject.toml allows; BUT=torch leaves torch as it is (old ones are gigabytes on Linux)"
	@echo "make fuzz   attack the bounds for MINUTES (30), from SEED (0) on; see docs/testing.md"
	@echo "make fuzz-inputs   read mangled files for MINUTES (30), from file SEED (0) on, also of CORPUS=folder, KIND=.npz; docs/testing.md"
	@echo "make fuzz-operators   DRAWS (300) random uses of every ONNX operator, against onnxruntime; docs/testing.md"
	@echo "make lint   ruff, mypy and the order of the packages (import-linter)"
	@echo "make reference  docs/reference and the picture of the packages, from the code"
	@echo "make study-NAME DATA=folder   tables and figures of a study into OUT (study-results); LIMIT=n inputs; docs/studies"
	@echo "make panel   how useful answers are on ordinary networks; DATA=folder adds MNIST and concrete; benchmarks/panel"
	@echo "make docs    the documentation as a site in site/, with its links checked"
	@echo "make docs-version  the same as one version among others, in the local branch gh-pages"
	@echo "make gallery  the examples of docs/gallery, with their figures"
	@echo "make wheel  build the wheel into dist/"
	@echo "make clean  remove what the others made"

demo: $(DEMO)/.installed
	$(DEMO)/bin/python scripts/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --durations=20
	cd checker && ../$(BIN)/python -m pytest -q

# Alone: an environment without torch and bnn_vnnlib.
test-checker: $(VENV)-checker/.installed
	cd checker && ../$(VENV)-checker/bin/python -m pytest -q
	$(VENV)-checker/bin/bnn-vnnlib-check --version
	! $(VENV)-checker/bin/python -c 'import torch' 2>/dev/null

test-libraries: $(VENV)-libraries/.installed $(VENV)-libraries-tensorflow/.installed
	$(VENV)-libraries/bin/python -m pytest tests/adapters
	$(VENV)-libraries-tensorflow/bin/python -m pytest tests/adapters/test_libraries_docs.py

test-lowest: $(VENV)-lowest/.installed
	PYTHONPATH=$(abspath $(VENV)-lowest) $(BIN)/python -m pytest -n 2 -W ignore::DeprecationWarning $(LOWEST_TESTS)

fuzz: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED) --folder fuzz-runs \
		$(if $(ONLY),--only $(ONLY)) $(if $(AGAIN),--again $(AGAIN))

fuzz-inputs: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m hostile --minutes $(MINUTES) --seed $(SEED) --folder fuzz-runs/inputs \
		$(foreach folder,$(CORPUS),--corpus $(folder)) $(if $(KIND),--kind $(KIND)) $(if $(AGAIN),--again $(AGAIN))

fuzz-operators: $(STAMP)
	OPERATOR_DRAWS=$(DRAWS) $(BIN)/python -m pytest -n 2 tests/model/test_random_operators.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

reference: $(STAMP)
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/architecture.py

study-%: data-named $(STAMP)
	$(BIN)/python scripts/study.py $* --data $(DATA) --out $(OUT) $(if $(LIMIT),--limit $(LIMIT))

# Before anything is installed.
data-named:
	$(if $(DATA),,$(error say where the data are: make study-NAME DATA=folder, see docs/studies/README.md))

panel: $(STAMP) $(VENV)-libraries/.installed
	$(VENV)-libraries/bin/python benchmarks/panel/train.py --out $(PANEL) $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/panel/estimate.py --out $(PANEL) $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/panel/answer.py --out $(PANEL) --cells docs/panel.csv --revision $$(git rev-parse --short HEAD)
	$(BIN)/python benchmarks/panel/page.py --cells docs/panel.csv

docs: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/python -m mkdocs build --clean
	@echo "read it: python3 -m http.server --directory site, then http://localhost:8000"

# mike writes into the local branch gh-pages and pushes nothing.
docs-version: $(VENV)-docs/.installed
	version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' bnn_vnnlib/__init__.py) && PATH="$(abspath $(VENV)-docs)/bin:$$PATH" \
		NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases "$$version" latest
	$(VENV)-docs/bin/mike set-default latest

gallery: $(STAMP)
	$(BIN)/python scripts/gallery.py

wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) $(VENV)-checker $(VENV)-libraries $(VENV)-libraries-tensorflow $(VENV)-lowest $(VENV)-demo $(VENV)-docs dist build site fuzz-runs

$(VENV)-docs/.installed: pyproject.toml
	$(call environment,$(VENV)-docs)
	$(VENV)-docs/bin/python -m pip install --quiet --group docs
	@touch $@

# The package and what it needs, nothing else.
$(VENV)-demo/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-demo
	[ -z "$(TORCH_INDEX)" ] || $(VENV)-demo/bin/python -m pip install --quiet --retries 1 --index-url $(TORCH_INDEX) torch \
		|| echo "$(TORCH_INDEX) has no torch for this machine: the default build follows, which is larger"
	$(VENV)-demo/bin/python -m pip install --quiet --editable .
	@touch $@

# Not an environment: a folder that comes before the packages of $(VENV).
$(VENV)-lowest/.installed: $(STAMP) scripts/lowest.py
	$(BIN)/python -m pip install --quiet --upgrade --target $(VENV)-lowest $$($(BIN)/python scripts/lowest.py $(BUT))
	@touch $@

$(VENV)-checker/.installed: checker/pyproject.toml
	$(call environment,$(VENV)-checker)
	$(VENV)-checker/bin/python -m pip install --quiet ./checker 'pytest>=8.3'
	@touch $@

# One environment for each group: TensorFlow does not fit beside the others.
$(VENV)-%/.installed: pyproject.toml
	$(call environment,$(VENV)-$*)
	$(VENV)-$*/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group dev --group $*
	@touch $@

$(STAMP): pyproject.toml
	$(call environment,$(VENV))
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group dev
	@touch $@
