# Every target works from a fresh checkout: `.venv` is made when it is missing or its pins changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The strict reading of Ansible: what passes here runs under either setting.
export ANSIBLE_INJECT_FACT_VARS := false

.PHONY: help
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): tests/requirements.txt pyproject.toml
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 2; }
	$(BIN)/pip install -q --require-hashes -r <(sed -n '/^uv==/,/^[^ ]/p' tests/requirements.txt | sed '$$d')
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r tests/requirements.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: venv
venv: $(STAMP) ## prepare .venv with the pinned tools

.PHONY: lock
lock: $(STAMP) ## pin the tools again (tests/requirements.txt)
	uv pip compile -q --upgrade --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --python-version 3.11 pyproject.toml tests/requirements.in -o tests/requirements.txt
