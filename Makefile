# `make help` lists what there is. Every target makes or refreshes .venv first, with what it needs.

# The first Python that is new enough; `make PYTHON=/path/to/python3 …` overrides it.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo install test check broker e2e bench-smoke image docs lint format

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

demo: .venv/.installed ## see it work: embedded broker, real connector processes, a live rebalance; needs only Python
	$(BIN)/connector demo

install: .venv/.installed-dev ## make .venv with everything that development needs

test: lint ## lint, types, import rules and all tests outside containers, each scenario with one group protocol
	$(BIN)/pytest -m "not containers"

check: lint ## lint, types, import rules and the tests that need no broker
	$(BIN)/pytest -m "not kafka and not postgres and not embedded and not promtool and not registry and not containers"

broker: PROTOCOLS = all
broker: .venv/.installed-dev ## the scenarios on a real Kafka, each with every group protocol
	$(BIN)/pytest tests/broker -m kafka --protocols $(PROTOCOLS)

e2e: .venv/.installed-dev ## the image and compose on Kafka and PostgreSQL containers; needs Docker
	$(BIN)/pytest tests/e2e -m containers

bench-smoke: .venv/.installed-dev ## the first speed marks against a bare client loop
	$(BIN)/python -m bench.smoke

image: VERSION = $(shell sed -nE 's/^version = "(.*)"/\1/p' pyproject.toml)
image: ## build the container image sluiceway, as `latest` and by its version; needs only Docker
	docker build -f deploy/Dockerfile -t sluiceway:latest -t sluiceway:$(VERSION) --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) .

docs: .venv/.installed-dev ## write docs/reference from the code
	$(BIN)/python -m connector.config.reference docs/reference

lint: .venv/.installed-dev ## format, lint, types and import rules, changing nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.installed-dev ## format, and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.venv/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or set PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@
