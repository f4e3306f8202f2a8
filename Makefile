# The two commands of the README are `make demo` and `make test`; each sets the machine up when needed.
PYTHON ?= python3
VENV   ?= .venv
RUN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

# Data sets beside the checkout are found where they exist; the code itself names no folder.
empty :=
DATA  := $(RICHBLL_DATA) $(wildcard ../shared/data)
export RICHBLL_DATA := $(subst $(empty) $(empty),:,$(strip $(DATA)))

export RICHBLL_PAPER ?= $(wildcard ../shared/paper/rich-bll.tex)

.PHONY: demo test lint bench peers docs readme clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(RUN)/python || $(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	touch $@

demo: $(STAMP)
	$(RUN)/python -m richbll_bench.demo --out out/demo

lint: $(STAMP)
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

test: lint
	$(RUN)/python -m pytest -n 2 --dist worksteal

# All of them run, whatever limits the first ones miss; every row is on record as soon as it is measured.
bench: $(STAMP)
	missed=; for part in predict_cost fit_cost growth ranks; do \
	  $(RUN)/python benchmarks/$$part.py || missed="$$missed $$part"; \
	done; test -z "$$missed" || { echo "limits missed:$$missed"; exit 1; }

# What the benchmarks compare with, outside of the virtual environment; rows of peers that are missing are skipped.
peers: $(STAMP)
	$(RUN)/python benchmarks/install_peers.py

docs: $(STAMP)
	$(RUN)/mkdocs build --strict

readme: $(STAMP)
	$(RUN)/python benchmarks/readme.py

clean:
	rm -rf $(VENV) build site out *.egg-info src/*.egg-info
