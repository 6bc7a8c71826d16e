# make demo · make explore · make docs · make test · make bench · make lint; each sets up .venv first.
PYTHON ?= python3.11
BIN := .venv/bin
export PYTHONHASHSEED := 0

.PHONY: release-check help setup demo explore docs test test-all test-gpu bench lint clean

help:
	@echo "make demo      train a Tversky layer and its equals on digits, explain one, draw it (a minute)"
	@echo "make explore   train the demo's layer and look at it in the browser (a minute)"
	@echo "make docs      the site, in site/: open site/index.html"
	@echo "make test      the tests"
	@echo "make test-all  the slow ones too"
	@echo "make test-gpu  the tests that need a CUDA device, with the python of that machine"
	@echo "make bench     time and memory, ours beside plain torch"
	@echo "make release-check  build both distributions, try the wheel and its extras on Python 3.11 to 3.13"
	@echo "make lint      ruff and pyright"

setup: .venv/ready

# The interpreter named by PYTHON, or whichever python3 there is.
.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv (two to five minutes the first time)"
	@(command -v $(PYTHON) >/dev/null && $(PYTHON) -m venv .venv) || python3 -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/similitude demo

# The page needs a small part of what the tests need, so that a fresh clone shows it soon.
.venv/page: pyproject.toml constraints.txt
	@if [ ! -e .venv/ready ]; then echo "setting up .venv with what the page needs (a minute the first time)"; \
	(command -v $(PYTHON) >/dev/null && $(PYTHON) -m venv .venv) || python3 -m venv .venv; \
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,explore]'; fi
	@touch $@

explore: .venv/page
	$(BIN)/similitude explore demo

# Sphinx and its theme are no part of what the tests need, so they come with the first `make docs`.
.venv/docs: .venv/ready
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: .venv/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site
	@echo "open site/index.html"

# Each worker begins with a half of the files, and takes from the other when it is done.
test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

# transformers' own testers come with its sources alone; without them their tests are skipped.
out/transformers: | setup
	@version=$$($(BIN)/python -c "import transformers; print(transformers.__version__)"); \
	echo "getting the sources of transformers $$version, for its testers"; \
	git clone --quiet --depth 1 --branch v$$version https://github.com/huggingface/transformers $@ \
		|| echo "they cannot be had now: transformers' testers are skipped"

test-all: setup $(if $(TRANSFORMERS_SOURCE),,out/transformers)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not gpu"

# Kernels' files have mostly no mark: they run on a GPU, or without one in Triton's interpreter. Eight at once, since what
# takes long is to compile them.
test-gpu:
	@rm -rf out/gpu && mkdir -p out/gpu
	@python3 -m pytest -o addopts=-q -m gpu --collect-only tests | grep :: > out/gpu/all
	@python3 -m pytest -o addopts=-q --collect-only tests/ops/test_*_triton.py | grep :: >> out/gpu/all
	@sort -u out/gpu/all | split -n r/8 - out/gpu/part-
	@ls out/gpu/part-* | xargs -P 8 -I{} python3 -m pytest -o addopts=-q -p no:cacheprovider @{}

bench: setup
	$(BIN)/python -m benchmarks

# In new environments, on every Python that is here; CHECK="--python 3.11" takes one.
release-check:
	@(command -v $(PYTHON) >/dev/null && $(PYTHON) -m venv out/release) || python3 -m venv out/release
	@out/release/bin/pip install --quiet --disable-pip-version-check build twine
	@out/release/bin/python release/check.py $(CHECK)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	@if [ -x node_modules/.bin/eslint ]; then node_modules/.bin/eslint --config tests/explore/eslint.config.mjs similitude; \
	else echo "the pages' modules are not checked: npm install --no-save eslint"; fi

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
