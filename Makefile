# What a clone can do. Every target sets up what it needs and may be run again.

PYTHON ?= python3
INPUT ?=
SPARK ?=
MINUTES ?= 60
ONLY ?=
BASE ?=
POSTGRES ?=
PART ?=
PORT ?=
KEY ?=
CHROMIUM := chromium chromium-browser google-chrome
VENV := .venv
BIN := $(VENV)/bin
# pip as the lock wants it: hashes are checked, the network is asked for nothing else.
PIP_FLAGS := --quiet --disable-pip-version-check --no-input
# What is missing, in words; empty when all is there.
MISSING = $$( \
	test "$$(uname -s)" = Linux || printf ', Linux'; \
	command -v git >/dev/null || printf ', git'; \
	if ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
		printf ', Python 3.11 or later (PYTHON=$(PYTHON) is not)'; \
	elif ! "$(PYTHON)" -c 'import venv, ensurepip' >/dev/null 2>&1; then \
		printf ', the venv module of $(PYTHON) (Debian: python3-venv)'; \
	fi )

.DEFAULT_GOAL := help
.PHONY: help check links chromium etcd demo docs test-site wheels release test test-all test-changed test-oldest test-postgres test-console pictures test-spark test-kafka test-patroni test-install test-mutants test-mutants-all test-long lint generate format lock clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 25

check: ## name what is missing on this machine
	@missing="$(MISSING)"; if [ -n "$$missing" ]; then echo "missing: $${missing#, }" >&2; exit 1; fi

# A source archive cannot hold links: its folders go to where a clone has them.
links:
	@for each in cli migrations spark_jobs; do \
		test -e $$each || { mv msgtx/$$each $$each && ln -s ../$$each msgtx/$$each; } || exit 1; \
	done

# The stamp goes first and comes back last: an installation that was interrupted starts from nothing.
$(VENV)/installed: requirements.lock pyproject.toml | check links
	@echo "setting up $(VENV)" >&2
	@test -e $@ || "$(PYTHON)" -m venv --clear $(VENV)
	@rm -f $@
	@$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-index --no-build-isolation --no-deps -e .
	@touch $@

# pyspark is an archive of 456 MB that pip builds, with the setuptools of the first lock: for those who need it only.
$(VENV)/spark: requirements-spark.lock $(VENV)/installed
	@echo "adding Spark to $(VENV)" >&2
	@rm -f $@
	@$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes --use-pep517 --no-build-isolation -r requirements-spark.lock
	@touch $@

$(VENV)/docs: requirements-docs.lock $(VENV)/installed
	@echo "adding MkDocs to $(VENV)" >&2
	@rm -f $@
	@$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements-docs.lock
	@touch $@

demo: $(VENV)/$(if $(SPARK),spark,installed) ## consume, transform, produce, exactly once, with a crash in the middle (INPUT=FILE: on real data; SPARK=1: as a Spark job; CONSOLE=1: then look at it in a browser, at PORT)
	@$(BIN)/msgtx demo $(if $(INPUT),--input "$(INPUT)") $(if $(SPARK),--spark) $(if $(CONSOLE),--console --allow-changes $(if $(PORT),--port "$(PORT)"))

test: $(VENV)/installed ## the everyday tests, three minutes: the same ones every day, of every room
	@$(BIN)/python -m tests --everyday

test-all: $(VENV)/installed ## all tests but those of Spark and of a browser: every crash sweep, interleaving, bad day and history (PART=N: every test, a ninth of the cases, which N chooses)
	@$(BIN)/python -m tests $(if $(PART),--part "$(PART)")

$(VENV)-oldest/installed: tests/oldest.py $(VENV)/installed
	@echo "setting up $(VENV)-oldest" >&2
	@"$(PYTHON)" -m venv --clear $(VENV)-oldest
	@$(BIN)/python -m tests.oldest > $(VENV)-oldest/requirements.txt
	@$(VENV)-oldest/bin/python -m pip install $(PIP_FLAGS) -r $(VENV)-oldest/requirements.txt
	@$(VENV)-oldest/bin/python -m pip install $(PIP_FLAGS) --no-index --no-build-isolation --no-deps -e .
	@touch $@

test-oldest: $(VENV)-oldest/installed ## what touches SQLAlchemy, click and the like, with the oldest versions that pyproject.toml allows
	@$(VENV)-oldest/bin/python -m tests --everyday tests/database tests/sessions tests/orm tests/aio tests/cli

test-postgres: $(VENV)/installed ## what depends on the server, on each PostgreSQL of the extra `embedded` but that of `make test-all` (POSTGRES=FOLDER: on that one)
	@for each in $(or $(POSTGRES),$$($(BIN)/python -m tests.postgres)); do \
		MSGTX_POSTGRES="$$each" $(BIN)/python -m tests --everyday \
			tests/store tests/database tests/admin tests/sessions tests/system/test_standby.py \
			tests/testing/test_plugin.py::test_the_maker_of_roles_may_act_as_one_of_them || exit 1; \
	done

chromium:
	@for each in $(CHROMIUM); do command -v $$each >/dev/null && exit 0; done; \
		echo "missing: Chromium (Debian: apt-get install chromium)" >&2; exit 1

docs: $(VENV)/docs ## build/site: the documentation, with every link checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site

test-site: docs | chromium ## build/site in a browser: searches find their pages, no code is cut, no other host is asked (needs Chromium)
	@$(BIN)/python -m tests tests/docs/test_site.py

wheels: $(VENV)/installed ## dist/: the source archive, and a wheel of pure Python for every machine
	@rm -rf dist && $(BIN)/python -m hatchling build --target sdist --directory dist
	@$(BIN)/python -m pip wheel $(PIP_FLAGS) --no-index --no-build-isolation --no-deps --wheel-dir dist dist/msgtx-*.tar.gz

# An environment of its own: what checks an upload.
$(VENV)/release/installed: requirements-release.lock $(VENV)/installed
	@echo "setting up $(VENV)/release" >&2
	@"$(PYTHON)" -m venv --clear $(VENV)/release
	@$(VENV)/release/bin/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements-release.lock
	@touch $@

release: wheels $(VENV)/release/installed ## dist/: what can be uploaded: checked, and listed in SHA256SUMS; signed if KEY names a key (a file: ssh-keygen's, else gpg's)
	@$(VENV)/release/bin/twine check --strict dist/*
	@$(BIN)/python -m tools.release dist $(if $(KEY),--key "$(KEY)")

test-install: $(VENV)/spark $(VENV)/release/installed ## each extra in an environment of its own, by what the wheel says; types; the list of a release and its signature
	@$(BIN)/python -m tests tests/install

test-console: $(VENV)/installed | chromium ## the console in a browser; screenshots in build/console (needs Chromium; PART=N: as of `make test-all`)
	@$(BIN)/python -m tests tests/console/test_browser.py tests/console/test_tour.py $(if $(PART),--part "$(PART)")

pictures: $(VENV)/installed ## docs/pictures: pages of the console (needs Chromium)
	@$(BIN)/python -m tests.console.pictures

test-spark: $(VENV)/spark ## the tests of Spark (PART=N: as of `make test-all`)
	@$(BIN)/python -m tests tests/spark $(if $(PART),--part "$(PART)")

# A broker, by the Ivy and on the Java of Spark.
$(VENV)/kafka: tests/kafka/broker.py $(VENV)/spark
	@echo "adding Kafka's broker to $(VENV)" >&2
	@$(BIN)/python -m tests.kafka.broker
	@touch $@

test-kafka: $(VENV)/kafka ## mirrors from and to a real Kafka, which the tests start
	@$(BIN)/python -m tests tests/kafka

# An environment of its own: Patroni brings packages that msgtx does not use.
$(VENV)/patroni/installed: requirements-patroni.lock $(VENV)/installed
	@echo "setting up $(VENV)/patroni" >&2
	@"$(PYTHON)" -m venv --clear $(VENV)/patroni
	@$(VENV)/patroni/bin/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements-patroni.lock
	@touch $@

etcd:
	@command -v etcd >/dev/null || { echo "missing: etcd (Debian: apt-get install etcd-server)" >&2; exit 1; }

test-patroni: $(VENV)/patroni/installed | etcd ## servers under Patroni, which the tests start (needs etcd)
	@$(BIN)/python -m tests tests/patroni

# An environment of its own: these packages bring others, in versions that are not ours.
$(VENV)/compat/installed: requirements-compat.lock tests/packages/sources.py $(VENV)/installed
	@echo "setting up $(VENV)/compat" >&2
	@"$(PYTHON)" -m venv --clear $(VENV)/compat
	@$(VENV)/compat/bin/python -m pip install $(PIP_FLAGS) --require-hashes -r requirements-compat.lock
	@$(BIN)/python -m tests.packages.sources
	@touch $@

test-compat: $(VENV)/compat/installed ## public packages that use confluent-kafka, by their own tests, on msgtx (CONFLUENT=FOLDER: also the examples and unit tests of confluent-kafka-python, of which FOLDER is a checkout)
	@$(BIN)/python -m tests tests/packages

test-mutants: $(VENV)/spark ## planted bugs: each must be caught by the tests that it names
	@$(BIN)/python -m tests.mutants

test-mutants-all: $(VENV)/installed ## mutants in bulk: every statement and condition dropped or negated, some test must fail (hours; continues where the last run ended; ONLY=PATTERN)
	@$(BIN)/python -m tests.reach --record
	@$(BIN)/python -m tools.mutate $(if $(ONLY),--only "$(ONLY)") $(if $(filter command line,$(origin MINUTES)),--minutes "$(MINUTES)")

test-changed: $(VENV)/installed ## the tests that reach what has changed since BASE (the last commit shared with main), by what `python -m tests.reach --record` has noted
	@$(BIN)/python -m tests.reach --changed $(BASE)

test-long: $(VENV)/installed ## random histories with faults, a storm of workers, and the model, for MINUTES (60); prints seeds and what was checked
	@$(BIN)/python -m tests.long --minutes "$(MINUTES)"

# The code of the documents: its lines fit into the site's column (tests/house/test_documents.py).
DOCUMENTS = README.md ARCHITECTURE.md CONTRIBUTING.md STYLE.md CHANGELOG.md SECURITY.md $$(find docs examples deploy -name '*.md')
FORMAT_DOCUMENTS = $(BIN)/ruff format --config 'line-length = 78' --config 'format.exclude = []' $(DOCUMENTS)

lint: $(VENV)/spark ## ruff, mypy (also over the code of the documents), import-linter, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(FORMAT_DOCUMENTS) --check
	@$(BIN)/mypy -p msgtx -p pyspark_msgtx -p examples.orders -p tools
	@$(BIN)/python -m tests.docs
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.generate --check

generate: $(VENV)/installed ## write the copies of what is declared once
	@$(BIN)/python -m tools.generate

format: $(VENV)/installed ## let ruff format and fix what it can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .
	@$(FORMAT_DOCUMENTS)

# Its own environment: a lock that cannot be installed can still be renewed. The other locks agree with the first, but for that of `test-compat`.
PIP_COMPILE := env -u PIP_FIND_LINKS .venv-lock/bin/pip-compile --quiet --upgrade --strip-extras --generate-hashes \
	--allow-unsafe --no-header --no-annotate --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
LOCKS := requirements.lock requirements-spark.lock requirements-docs.lock requirements-patroni.lock requirements-compat.lock requirements-release.lock
EXTRA := import sys, tomllib; \
	found = tomllib.load(open("pyproject.toml", "rb")); \
	print(*{**found["project"]["optional-dependencies"], **found["dependency-groups"]}[sys.argv[1]], sep="\n")

lock: | check ## renew the six locks from pyproject.toml
	@test -x .venv-lock/bin/pip-compile || { "$(PYTHON)" -m venv --clear .venv-lock \
		&& .venv-lock/bin/python -m pip install $(PIP_FLAGS) 'pip-tools>=7.5,<8'; }
	@$(PIP_COMPILE) --extra embedded --extra async --extra otel --extra console --extra examples --extra kafka --extra dev --output-file requirements.lock.new pyproject.toml
	@for extra in spark docs patroni release; do lock=requirements-$$extra.lock; \
		.venv-lock/bin/python -c '$(EXTRA)' $$extra > $$lock.in || exit 1; \
		$(PIP_COMPILE) --constraint requirements.lock.new --output-file $$lock.new $$lock.in || exit 1; rm $$lock.in; done
	@.venv-lock/bin/python -c '$(EXTRA)' compat > requirements-compat.lock.in \
		&& $(PIP_COMPILE) --output-file requirements-compat.lock.new requirements-compat.lock.in && rm requirements-compat.lock.in
	@for lock in $(LOCKS); do \
		{ sed -n '/^#/!q;p' $$lock; cat $$lock.new; } > $$lock.full && mv $$lock.full $$lock && rm $$lock.new || exit 1; done

clean: ## remove what make and the tools left in this folder (the embedded server's data stays: MSGTX_HOME)
	@rm -rf $(VENV) $(VENV)-oldest .venv-lock build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
