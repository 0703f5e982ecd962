# How the book is made:
#   notebooks/NN-name.ipynb   --etlib run-->     $(BUILD)/runs/NN-name/ (run.json, results)
#                             --on success-->    $(BUILD)/notebooks/NN-name.ipynb
#   those, book/, _*.yml      --copied-->        $(BUILD)/source
#                             --jupyter-book-->  $(BUILD)/html
# A chapter runs again when it, what is recorded of it (book/results/NN-name-*), the
# package, the lock or PRESET changed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV     ?= uv
VENV   ?= .venv
BUILD  ?= build
PRESET ?= book
PORT   ?= 8000

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/installed
PACKAGE   := $(shell find etlib -name '*.py')
PAGES     := _config.yml _toc.yml $(shell find book/*)
EXECUTED  := $(patsubst notebooks/%,$(BUILD)/notebooks/%,$(wildcard notebooks/*.ipynb))

.DELETE_ON_ERROR:
.PHONY: help setup book test smoke run lint bench bench-scale gpu-check results serve lab lock clean FORCE

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## Create .venv with the locked versions (PYTHON=python3.12 picks another Python)

book: $(BUILD)/html/index.html ## Execute what changed and build the book into build/html (PRESET=smoke|book|paper)
	@echo "The book: $<"

test: $(INSTALLED) ## Run every test (ARGS are passed to pytest)
	$(BIN)/python -m pytest $(ARGS)

smoke: ## The whole book at its smallest settings, into build/smoke
	@$(MAKE) book PRESET=smoke BUILD=$(BUILD)/smoke

run: $(INSTALLED) ## Run one chapter: make run CHAPTER=energy ARGS="-p alpha=0.5"
	$(BIN)/etlib run $(CHAPTER) $(ARGS)

lint: $(INSTALLED) ## Check code style, and that notebooks are stored as agreed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/test_notebooks.py

bench: $(INSTALLED) ## Measure time and memory of the models on this machine
	$(BIN)/python benchmarks/bench.py $(ARGS)

bench-scale: $(INSTALLED) ## Measure graphs of millions of nodes and images of thousands of tokens (ten minutes, 16 GB)
	$(BIN)/python benchmarks/bench_scale.py $(ARGS)

gpu-check: $(INSTALLED) ## Verify, time and train the image model on a GPU (ARGS="--dataset imagefolder:PATH")
	$(BIN)/python benchmarks/gpu_check.py $(ARGS)

results: $(INSTALLED) ## List and validate the recorded results
	$(BIN)/etlib results

serve: book ## Serve the built book on http://localhost:8000 (PORT=8000)
	$(BIN)/python -m http.server --bind localhost --directory $(BUILD)/html $(PORT)

lab: $(INSTALLED) ## Open the chapters in JupyterLab
	$(BIN)/jupyter lab notebooks

# torch pins its own CUDA packages, and which of them differs between its builds:
# they stay out of the lock so that it serves the CPU-only build too.
CUDA := bindings pathfinder toolkit
NVIDIA := cublas cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile curand cusolver \
  cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx

lock: ## Rewrite requirements.lock from pyproject.toml (needs uv)
	$(UV) pip compile pyproject.toml --universal --python-version 3.11 --fork-strategy fewest \
	  --extra chapters --extra graphs --extra book --extra test --extra lab \
	  --no-header --no-annotate \
	  $(patsubst %,--no-emit-package %,triton $(CUDA:%=cuda-%) $(NVIDIA:%=nvidia-%)) \
	  -o requirements.lock

clean: ## Remove what was built; .venv and your runs/ stay
	rm -rf $(BUILD) .pytest_cache .hypothesis .ruff_cache

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("etlib needs Python 3.11, 3.12 or 3.13: make setup PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -r requirements.lock
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	touch $@

ifneq ($(PRESET),$(shell cat $(BUILD)/preset 2>/dev/null))  # not the last build's
$(BUILD)/preset: FORCE
	@mkdir -p $(BUILD)
	@echo '$(PRESET)' > $@
endif

.SECONDEXPANSION:
$(BUILD)/notebooks/%.ipynb: notebooks/%.ipynb $$(wildcard book/results/$$*-*) $(PACKAGE) requirements.lock $(BUILD)/preset | $(INSTALLED)
	@rm -rf $(BUILD)/runs/$* $@
	@mkdir -p $(BUILD)/runs $(BUILD)/notebooks
	$(BIN)/etlib run $< -p preset=$(PRESET) --output $(BUILD)/runs/$*
	@cp $(BUILD)/runs/$*/$*.ipynb $@

$(BUILD)/results-table.md: $(shell find book/results) $(PACKAGE) | $(INSTALLED)
	@mkdir -p $(BUILD)
	$(BIN)/etlib results --markdown > $@

# Always built afresh: Sphinx would not repeat the warnings of a page that it has seen
# before, so a second build of a broken book would pass.
$(BUILD)/html/index.html: $(EXECUTED) $(PAGES) $(BUILD)/results-table.md
	@rm -rf $(BUILD)/source $(BUILD)/_build $(BUILD)/html
	@mkdir -p $(BUILD)/source/notebooks
	@cp -R _config.yml _toc.yml book $(BUILD)/source
	@cp $(EXECUTED) $(BUILD)/source/notebooks
	@cp $(BUILD)/results-table.md $(BUILD)/source/book
	$(BIN)/jupyter-book build $(BUILD)/source --path-output $(BUILD) -W -n --keep-going
	@# The extension brings all of MathJax (24 MB); keep what a page can ask for.
	@find $(BUILD)/_build/html/_static/mathjax -type f \
	  ! -name tex-chtml.js ! -path '*/woff-v2/*' ! -path '*/tex/extensions/*' \
	  ! -path '*/a11y/*' ! -name base.json ! -name en.json -delete
	@mv $(BUILD)/_build/html $(BUILD)/html
