# Everything starts from Python 3.11 and make: each target that needs an environment creates it first. Another Python is
# named like this: make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3.11
VENV ?= .venv
BENCH_VENV ?= .venv-bench
# Three processes for the two cores of a small machine, because tests wait almost half of their time. Tests of one file share
# a process, and with it its fixtures.
# `make test PYTEST_ARGS=` runs them one after the other.
PYTEST_ARGS ?= -n 3 --dist loadfile
# Tests that run minray in their own process: the parts alone, and the simulation, in which all rooms share one process.
COVERAGE_ARGS ?= --ignore=tests/real --ignore=tests/cluster --ignore=tests/debugging --ignore=tests/spec --ignore=tests/zoo --ignore=tests/tidy
DEMO_ARGS ?=
DOCS_ARGS ?=
SITE_ARGS ?=
BENCH_ARGS ?=
CONFORMANCE_ARGS ?=
SPEC_ARGS ?= --seconds 90
SPEC_REAL_ARGS ?= --seconds 60
EXHAUSTIVE_ARGS ?=
CHAOS_ARGS ?= --seconds 600
ATTACK_ARGS ?= --frames 100000
ANYWHERE_ARGS ?=
KUBERNETES_ARGS ?=
DASK_ARGS ?=
ZOO_ARGS ?=
BROWSER_ARGS ?=
NOTEBOOKS_ARGS ?=
MUTANTS_ARGS ?=
LABS_ARGS ?=
SCALE_ARGS ?=

PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
BROWSER_STAMP := $(VENV)/.installed-test-browser
NOTEBOOKS_STAMP := $(VENV)/.installed-test-notebooks
DEMO_STAMP := $(VENV)/.installed-demo
BENCH_STAMP := $(BENCH_VENV)/.installed

.PHONY: help venv test-docs test-site lint types unit test test-seeds test-grpc test-shared-memory test-local test-anywhere coverage demo docs docs-quick serve-docs bench conformance test-kubernetes ray-utilities examples-on-both trace-equality specification ray-issues ray-issues-on-ray leak-check zoo mutants reach spec spec-real exhaustive chaos attack dask-tests dask-on-ray clean test-browser test-client labs test-labs playground test-playground scale validate-links notebooks test-notebooks

help:
	@echo "make venv            the environment, with the checkout compiled"
	@echo "make demo            the main job on a local cluster"
	@echo "make test            lint, types and tests"
	@echo "make test-seeds      all seeds, bugs and long searches of the simulation, and all transports; make test takes a part"
	@echo "make test-grpc       the tests of real clusters, over gRPC"
	@echo "make test-shared-memory  the tests of real clusters, with the object stores in multiprocessing.shared_memory"
	@echo "make test-local      the tests of real clusters, with the whole cluster inside the test's process"
	@echo "make test-client     the tests of real clusters, in a remote client of the cluster"
	@echo "make test-anywhere   tests in checkouts whose paths are long, have a space, or end with minray"
	@echo "make test-kubernetes  the manifests of deploy/, executed in network namespaces; it needs Linux and root"
	@echo "make test-browser    the dashboard's page in a headless Chromium, which must be installed"
	@echo "make notebooks       write examples/notebooks from the examples"
	@echo "make test-notebooks  execute these notebooks, and cells of real kernels of Jupyter"
	@echo "make playground      build the playground, a simulated cluster in a page, into build/playground"
	@echo "make test-playground  the playground in a headless Chromium: its page, and its runs beside those of this Python"
	@echo "make coverage        the lines that the unit tests run; gcs and raylets of real clusters are not measured"
	@echo "make docs            build the site into docs/_build/html, with the playground, and check its words and links"
	@echo "make docs-quick      the same without the runs of the zoo of bugs, which take minutes"
	@echo "make serve-docs      serve the site on this machine, at http://localhost:8000/"
	@echo "make test-docs       run the programs and commands that the pages show, and compare their output with what is shown"
	@echo "make test-site       the built site in Chromium and Firefox: the landing page's cluster, the search, narrow screens"
	@echo "make bench           six documents' workloads beside Ray and Dask, in an environment of their own"
	@echo "make conformance     the tests of the public API on Ray; what differs must be in docs/differences_from_ray.md"
	@echo "make ray-utilities   Ray's own utilities, from an installed Ray, on minray"
	@echo "make examples-on-both  the examples on minray and on Ray, with nothing changed but the import"
	@echo "make trace-equality  the simulation's traces under two hash seeds"
	@echo "make scale           what simulated clusters of up to 1,000 nodes and 100,000 tasks cost; ten minutes, and 4 GB"
	@echo "make validate-links  the laboratory's simulation beside real nodes with shaped links; needs root, takes ten minutes"
	@echo "make specification   write docs/specification_trace.md from the names of the tests"
	@echo "make ray-issues      write docs/ray_issues.md from the tests of tests/ray_issues"
	@echo "make ray-issues-on-ray  the same tests on Ray, which must do what their markers say"
	@echo "make zoo             plant known bugs, and measure how many seeds it takes to catch them"
	@echo "make mutants         plant small mistakes in protocol files, and show those that nothing catches"
	@echo "make reach           where in the protocol the campaign's scenarios come, and where they do not"
	@echo "make labs            the archives of the labs, for students and for Gradescope, into build/labs"
	@echo "make test-labs       each lab: its archive, its starter, the real file, and wrong solutions; it takes a quarter of an hour"
	@echo "make spec            a campaign: programs and faults by seed, judged; a failure becomes a small witness"
	@echo "make spec-real       the same programs and judge on real clusters, whose processes are killed, stopped and cut off"
	@echo "make exhaustive      small programs, and every fault of three kinds at every point of theirs"
	@echo "make chaos           ten minutes of mixed work on three nodes, whose processes are killed at random; then ten minutes"
	@echo "                     on nodes of minray start, whose gcs, raylets and zygotes are killed, stopped and terminated"
	@echo "make attack          100,000 broken frames to all sockets of a cluster, over both transports, with and without token"
	@echo "make dask-tests      Dask's own tests, with minray as their scheduler"
	@echo "make dask-on-ray     the tests of minray's Dask scheduler, on Ray"
	@echo "make leak-check      fail if a minray process, file or shared memory is left on this machine"
	@echo "make clean           remove what the targets above have made"

# pip compiles what it installs, but not the checkout. Where Python may not write byte code (PYTHONDONTWRITEBYTECODE), every
# process would compile minray again. This takes a moment if nothing has changed.
COMPILE := $(PY) -m compileall -q minray

venv: $(STAMP)
	$(COMPILE)

$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[test,docs]"
	$(COMPILE)
	@touch $@

$(BENCH_STAMP): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[bench,conformance]"
	@touch $@

lint: $(STAMP)
	$(PY) -m ruff check .

types: $(STAMP)
	$(PY) -m mypy --strict minray labs _minray_pytestplugin.py tests/typed_program.py

unit: $(STAMP)
	$(PY) -m pytest $(PYTEST_ARGS)

test: lint types unit

test-seeds: $(STAMP)
	MINRAY_TEST_SEEDS=all $(PY) -m pytest $(PYTEST_ARGS) tests/simulation tests/spec tests/zoo tests/platform/test_network_contract.py

# The real clusters once more, with every operation a gRPC call.
test-grpc: $(STAMP)
	MINRAY_TRANSPORT=grpc $(PY) -m pytest $(PYTEST_ARGS) tests/real tests/cluster

# And with another kind of memory.
test-shared-memory: $(STAMP)
	MINRAY_ARENA=shared_memory $(PY) -m pytest $(PYTEST_ARGS) tests/real tests/cluster

# The real clusters once more, each in the test's own process; tests/real/not_local.py lists what cannot run there.
test-local: $(STAMP)
	MINRAY_TRANSPORT=local $(PY) -m pytest $(PYTEST_ARGS) tests/real tests/in_process

# The pods are made of namespaces: without the right to make them all tests are skipped, with the reason.
test-kubernetes: $(STAMP)
	$(PY) -m pytest -rs tests/kubernetes/in_pods.py $(KUBERNETES_ARGS)
# And as remote clients of a head; tests/real/not_client.py lists what is not for them.
test-client: $(STAMP)
	MINRAY_TEST_AS=client $(PY) -m pytest $(PYTEST_ARGS) tests/real tests/remote_client

test-anywhere: $(STAMP)
	$(PY) -m tests.anywhere $(ANYWHERE_ARGS) -- $(PYTEST_ARGS)

# Each view of the dashboard, in a browser that the system has.
$(BROWSER_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[test-browser]"
	@touch $@

test-browser: $(BROWSER_STAMP)
	MINRAY_TEST_BROWSER=1 $(PY) -m pytest tests/dashboard/browser $(BROWSER_ARGS)

notebooks: $(STAMP)
	$(PY) examples/notebooks/write.py

# Two minutes; each notebook has a kernel and a cluster.
$(NOTEBOOKS_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[test-notebooks]"
	@touch $@

test-notebooks: $(NOTEBOOKS_STAMP)
	MINRAY_TEST_NOTEBOOKS=1 $(PY) -m pytest tests/notebooks $(NOTEBOOKS_ARGS)

# Pyodide comes from npm and wheels come from PyPI, the first time; docs/playground.md says how to serve the site.
playground: $(STAMP)
	$(PY) docs/playground/build.py build/playground

test-playground: $(BROWSER_STAMP) playground
	MINRAY_TEST_PLAYGROUND=$(CURDIR)/build/playground $(PY) -m pytest tests/playground $(PLAYGROUND_ARGS)

# The site as docs-quick builds it, with the playground.
test-site: $(BROWSER_STAMP) playground docs-quick
	MINRAY_TEST_SITE=$(CURDIR)/docs/_build/html $(PY) -m pytest tests/site/in_browser.py $(SITE_ARGS)

# The configuration is in setup.cfg.
coverage: $(STAMP)
	rm -rf build/coverage
	mkdir -p build/coverage
	$(PY) -m coverage run -m pytest $(PYTEST_ARGS) $(COVERAGE_ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage html --quiet
	$(PY) -m coverage report
	@echo "build/coverage/html/index.html"

# An environment that has only the demo's requirements, unless there is one with those of the tests already.
$(DEMO_STAMP): setup.cfg pyproject.toml
	test -e $(STAMP) || $(PYTHON) -m venv $(VENV)
	test -e $(STAMP) || $(PY) -m pip install --quiet --disable-pip-version-check --editable ".[demo]"
	$(COMPILE)
	@touch $@

demo: $(DEMO_STAMP)
	$(PY) examples/identifier_index.py $(DEMO_ARGS)

docs: $(STAMP) playground
	$(PY) -m tests.site.spelling
	$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(PY) -m tests.site.built docs/_build/html
	@echo "docs/_build/html/index.html"

# Everything but the runs of the zoo's bugs, which take minutes to simulate, and with the playground only if it was built before.
docs-quick: $(STAMP)
	$(PY) -m tests.site.spelling
	$(PY) -m sphinx -W --keep-going -q -b html -D zoo_runs=0 docs docs/_build/html
	$(PY) -m tests.site.built docs/_build/html zoo_runs $(if $(wildcard build/playground/index.html),,playground)
	@echo "docs/_build/html/index.html"

# A server of files, because browsers run no cluster in a page that was opened as a file.
serve-docs: $(STAMP)
	$(PY) -m http.server --directory docs/_build/html --bind 127.0.0.1 8000

# DOCS_ARGS="-k learn" runs the chapters alone.
test-docs: $(STAMP)
	$(PY) -m pytest tests/site/in_full.py $(DOCS_ARGS)

# Compiled first, as pip does it for the peers, also where Python is told not to (PYTHONDONTWRITEBYTECODE).
bench: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m compileall -q minray
	$(BENCH_VENV)/bin/python -m benchmarks $(BENCH_ARGS)

conformance: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m tests.conformance $(CONFORMANCE_ARGS)

ray-utilities: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m pytest tests/ray_utilities

examples-on-both: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m tests.conformance.examples

trace-equality: $(STAMP)
	@first=$$(PYTHONHASHSEED=0 $(PY) -m minray.simulation --digest) && \
	second=$$(PYTHONHASHSEED=1 $(PY) -m minray.simulation --digest) && \
	echo "hash seed 0: $$first" && echo "hash seed 1: $$second" && \
	test -n "$$first" && test "$$first" = "$$second"
	$(PY) -m tests.spec.hash_seeds

# Other loads and links: VALIDATE_LINKS_ARGS="--nodes 2 --mbit 50 fft:width=4,output=1e6". It needs Linux, root, ip and tc.
validate-links: $(STAMP)
	$(PY) -m tests.laboratory.shaped_links $(VALIDATE_LINKS_ARGS)

# Other sizes are given as nodes:tasks, such as SCALE_ARGS="100:2000 300:6000".
scale: $(STAMP)
	$(PY) -m tests.simulation.scale $(SCALE_ARGS)

specification: $(STAMP)
	$(PY) -m tests.tidy.specification --write

ray-issues: $(STAMP)
	$(PY) -m tests.ray_issues.page --write

ray-issues-on-ray: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m tests.ray_issues.on_ray

zoo: $(STAMP)
	$(PY) -m tests.zoo.measure $(ZOO_ARGS)

mutants: $(STAMP)
	$(PY) -m tests.zoo.mutants $(MUTANTS_ARGS)

reach: $(STAMP)
	$(PY) -m tests.zoo.reach --unreached $(REACH_ARGS)

labs: $(STAMP)
	$(PY) -m labs.archive $(LABS_ARGS)

test-labs: $(STAMP)
	$(PY) -m pytest tests/labs/in_full.py $(LABS_ARGS)

spec: $(STAMP)
	$(PY) -m tests.spec.campaign $(SPEC_ARGS)

spec-real: $(STAMP)
	$(PY) -m tests.spec.real_tier $(SPEC_REAL_ARGS)

# A process for each program, two at a time: what is left of many worlds slows the next ones down.
exhaustive: $(STAMP)
ifeq ($(EXHAUSTIVE_ARGS),)
	@names=$$($(PY) -m tests.spec.exhaustive --list) && test -n "$$names" && \
	printf '%s\n' "$$names" | xargs -d '\n' -n 1 -P 2 $(PY) -m tests.spec.exhaustive --program
else
	$(PY) -m tests.spec.exhaustive $(EXHAUSTIVE_ARGS)
endif

chaos: $(STAMP)
	$(PY) -m tests.spec.mixed_work $(CHAOS_ARGS)
	$(PY) -m tests.spec.started_nodes $(CHAOS_ARGS)

attack: $(STAMP)
	$(PY) -m tests.attack.campaign $(ATTACK_ARGS)

# An hour on two cores; DASK_ARGS="bag" is one of the suites.
dask-tests: $(STAMP)
	$(PY) -m tests.dask_suite.run $(DASK_ARGS)

dask-on-ray: $(BENCH_STAMP)
	$(BENCH_VENV)/bin/python -m tests.dask_suite.on_ray

leak-check: $(STAMP)
	$(PY) -m tests.leaks

clean:
	rm -rf $(VENV) $(BENCH_VENV) build docs/_build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find minray tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
