# make train    a virtual environment, the installation, then `rookery train`    (ARGS="cartpole --seed 1")
# make test     the tests with lint and types                                    (ARGS="-k ring")
# make portable how far the short tests of learning are from their bounds, with other seeds and arithmetics; an hour
# make returns  what algorithms earn, as they come and with published numbers, beside published figures; hours, and it
#               goes on where it was interrupted  (ARGS="--only 'cartpole dqn' --seeds 1")
# make check    lint, types, and the tests near to what has changed; less than a minute    (SINCE=main)
# make nightly  the long tests: returns that must be reached, and all forms of what the quick ones show in one
# make test-cluster  a real Kubernetes of one node, built at the first time, and a run on it  (root)
# make fuzz     a million spoilt messages at the ends of the wire, and files  (ARGS="--seed 1")
# make chaos    kill -9, full disks and worse while training        (MINUTES=30 SEED=1; all kinds of it need root)
# make hostile  one attack after another beside a run: who is harmed           (MINUTES=30 ARGS="--attack lies")
# make pairs    ends of actors and learners, started and killed a thousand times  (ARGS="--cycles 5000")
# make soak     a run in peace: what its processes hold stays flat     (MINUTES=60)
# make bench    what this machine can do
# make bench-peers  other systems on the same workloads, each in an environment of its own beside our torch
# make lint-k8s the manifests by checkov, in an environment of its own (400 MB)
# make docs     the site of the documents, in build/site, without a network once its generator is installed
# make wheel    what pip installs, with the site in it, in dist/
# make gallery  trains each preset and draws its curve; the page of a run, films     (ARGS=cartpole)
# make clean    removes what these made; runs/ stays
#
# PY chooses the interpreter, PIP_FLAGS goes to every pip command (another package index, say).

PY ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
PIP_FLAGS ?=
ARGS ?=
PEERS ?= stable-baselines3 pufferlib sample-factory torchrl rllib plain-loop
MINUTES ?= 5
SEED ?=
SINCE ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c .ci/constraints.txt $(PIP_FLAGS)
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.installed-test
DOCUMENTED := $(VENV)/.installed-docs
GAMES := $(VENV)/.installed-games
COMPILED := build/.compiled

# Otherwise each process of the tests would compile again all that it imports of ours.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train test portable test-cluster check nightly returns fuzz chaos hostile pairs soak bench bench-peers lint-k8s docs wheel gallery clean
.DELETE_ON_ERROR:

train: $(INSTALLED)
	$(BIN)/rookery train $(ARGS)

# A process of the tests that dies ends the run: xdist would give the file to another, and again, or wait for ever.
test: $(TESTABLE) $(COMPILED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n logical --maxprocesses 5 --dist loadfile \
		--no-loadscope-reorder --max-worker-restart 0 -m "not learning and not slow and not cluster" $(ARGS)

# goes on where it was interrupted; ARGS="--forget ''" measures everything again
portable: $(TESTABLE) $(COMPILED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.portable --table tests/PORTABLE.md $(ARGS)

returns: $(GAMES)
	$(BIN)/python -m tests.returns $(ARGS)

check: $(TESTABLE) $(COMPILED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.check $(if $(SINCE),--since $(SINCE)) $(ARGS)

# goes on where it was interrupted, unless any code has changed since; without build/nightly.jsonl from the beginning
nightly: $(GAMES) $(COMPILED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -m "learning or slow" --passed build/nightly.jsonl $(ARGS)

# One process compiles our code, and the tests as pytest rewrites them; all would do it at the same time. What it cannot
# import is told by the tests.
$(COMPILED): | $(TESTABLE)
	@mkdir -p $(@D)
	$(BIN)/python -m pytest --collect-only -qq > $@ || true

test-cluster: $(TESTABLE)
	tests/cluster/machine.sh install
	tests/cluster/kubernetes.sh
	tests/cluster/image.sh
	kubectl version --client --output json 2>/dev/null | grep -Eq '"minor": "(2[7-9]|[3-9][0-9])' || \
		$(BIN)/python .ci/kubectl.py $(BIN)
	ROOKERY_CI=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -x -s -m cluster tests/cluster $(ARGS)

fuzz: $(TESTABLE)
	$(BIN)/python -m tests.fuzz $(ARGS)

chaos: $(TESTABLE)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

hostile: $(TESTABLE)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.chaos.hostile --minutes $(MINUTES) $(ARGS)

pairs: $(TESTABLE)
	$(BIN)/python -m tests.chaos.pairs $(ARGS)

soak: $(TESTABLE)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

bench: $(TESTABLE)
	@set -- tests/benchmarks/bench_*.py; \
	if [ ! -e "$$1" ]; then echo "There is no tests/benchmarks/bench_*.py to run." >&2; exit 1; fi; \
	for file; do $(BIN)/python -m "tests.benchmarks.$$(basename "$$file" .py)" $(ARGS) || exit 1; done

# which of all can do the workload the command knows
bench-peers: $(TESTABLE) $(PEERS:%=build/peers/%/.installed)
	$(BIN)/python -m tests.benchmarks.peers $(ARGS) $(if $(filter file,$(origin PEERS)),,$(PEERS))

# What is installed in $(VENV), torch above all, is seen from there and not fetched again; a file names all else that a
# peer needs, since what it asks for itself would bring another torch.
build/peers/%/.installed: tests/benchmarks/peers/%.txt | $(TESTABLE)
	$(BIN)/python -m venv --without-pip build/peers/$*
	cd build/peers/$*/lib/python*/site-packages && \
		$(abspath $(BIN))/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > ours.pth
	$(PEER_SETUP)
	$(PEER_PIP) --no-deps -r $<
	@touch $@

PEER_PIP = env NO_OCEAN=1 PATH=/usr/bin:/bin $(abspath $(BIN))/python -m pip --python build/peers/$* install --quiet \
	--no-compile --disable-pip-version-check $(PIP_FLAGS) $(PEER_FLAGS)
# PufferLib compiles against our torch; PATH hides a compiler for GPUs; without its games, which it would fetch, its setup
# forgets to define a name
build/peers/pufferlib/.installed: PEER_FLAGS = --no-build-isolation
build/peers/pufferlib/.installed: PEER_SETUP = $(PEER_PIP) Cython==3.3.1 wheel==0.48.0 && \
	echo 'import builtins; builtins.c_extension_paths = []' > $$(echo build/peers/pufferlib/lib/python*/site-packages)/setup.pth

$(BIN)/python:
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Rookery needs Python 3.11 or newer, and '$(PY)' is older or missing: install one and name it, as in PY=python3.12." >&2; \
		exit 1; }
	@$(PY) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PY)' cannot make virtual environments: install the package python3-venv (apt-get install python3-venv) and try again." >&2; \
		exit 1; }
	$(PY) -m venv $(VENV)

# torch first: everything else then fits the torch that is there, and its download is not repeated when a later step fails
$(INSTALLED): pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(PIP) torch
	$(PIP) -e '.[dashboard]'
	@touch $@

$(TESTABLE): $(INSTALLED)
	$(PIP) -e '.[docs,test]'
	@touch $@

$(DOCUMENTED): $(INSTALLED)
	$(PIP) -e '.[docs]'
	@touch $@

# Without what they ask for: what only draws, and older releases of what we have.
$(GAMES): Makefile $(TESTABLE)
	$(PIP) ale-py==0.12.1 Box2D==2.3.10 chess==1.11.2 chex==0.1.92 flax==0.12.8 gym==0.26.2 jax==0.10.2 \
		jaxtyping==0.3.11 mujoco==3.3.7 opencv-python-headless==5.0.0.93 pymunk==7.3.1 seaborn==0.13.2
	$(PIP) --no-deps gymnax==1.0.1 jaxmarl==0.2.0 MinAtar==1.0.15 minigrid==3.2.0 pygame-ce rlcard==1.2.0 rware==2.0.0 \
		shimmy==2.0.1 termcolor vmas==1.5.2
	@touch $@

# left out: digests and pull policy, which images built on the spot cannot have, and CPU limits, which stall loops
lint-k8s: $(INSTALLED)
	$(BIN)/python -m venv build/checkov
	build/checkov/bin/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) checkov
	rm -rf build/k8s && mkdir -p build && cp -r k8s build/k8s
	rm -f build/k8s/components/keys/*.secret build/k8s/components/keys/*.public
	$(BIN)/rookery keys new build/k8s/components/keys
	@set -e; for overlay in build/k8s/overlays/*; do \
		kubectl kustomize "$$overlay" > build/k8s.yaml; \
		build/checkov/bin/checkov -f build/k8s.yaml --framework kubernetes --compact --quiet --skip-download \
			--skip-check CKV_K8S_11,CKV_K8S_15,CKV_K8S_43; done

# a warning, as of a link that leads nowhere, is an error
docs: $(DOCUMENTED)
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees -c launch/docs/site launch/docs build/site/rookery_docs
	$(BIN)/python -m tests.prose
	@echo "no warning, no broken link: $(BIN)/rookery docs opens build/site/rookery_docs/index.html"

# what was built before stays in build/lib and would be in it as well
wheel: docs
	rm -rf build/lib
	$(BIN)/python -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir dist .

gallery: $(TESTABLE)
	$(BIN)/python -m tests.gallery $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find launch protocol tests workers -name __pycache__ -type d -prune -exec rm -rf {} +
