"""Why a test may be skipped: all reasons there are. A skip for another one fails its test, and with it the run."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["REASONS", "Reason", "fault", "reason_in"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Where a skip is expected, and whether what is missing must be there with ROOKERY_CI=1."""

    where: str
    in_ci: bool = True
    """.ci/run installs it, or the machines that run it have it: there the skip is a failure."""


_TEST_EXTRA = "environments without the extra `test`, which `make test` installs"
_UNPRIVILEGED = "containers without the privileges of root"
_UTIL_LINUX = "systems without util-linux"

REASONS: dict[str, Reason] = {
    # the machine
    "/dev/shm cannot be written": Reason("systems other than Linux, and sandboxes"),
    "connections are not seen": Reason("systems other than Linux"),
    "there is no /dev/full": Reason("systems other than Linux"),
    "futexes are missing": Reason("systems other than Linux"),
    "the C library is not glibc": Reason("systems other than Linux, and Alpine"),
    "pidfds are missing": Reason("systems other than Linux, and sandboxes"),
    "needs a CUDA device": Reason("machines without an NVIDIA GPU", in_ci=False),
    "no later Python": Reason("machines with one Python only", in_ci=False),
    # rights
    "needs root": Reason("runs of an ordinary user"),
    "no mount namespaces": Reason(_UNPRIVILEGED),
    "no network namespaces": Reason(_UNPRIVILEGED),
    "no TUN device": Reason(_UNPRIVILEGED),
    # programs and libraries of the system
    "a game of `make returns` is not installed": Reason(
        "environments that `make returns` was not called in", in_ci=False
    ),
    "chromedriver is not installed": Reason("machines without a browser (apt-get install chromium-driver)"),
    "chromium is not installed": Reason("machines without a browser (apt-get install chromium)"),
    "git is not installed": Reason("machines that have the code without its history (apt-get install git)"),
    "g++ is not installed": Reason("machines without a C++ compiler (apt-get install g++)"),
    "ip is not installed": Reason("small images (apt-get install iproute2)"),
    "kubectl is not installed": Reason("machines that start no pods (.ci/kubectl.py build/bin)"),
    "kubectl is older than 1.27": Reason("old distributions: it cannot build ours (.ci/kubectl.py build/bin)"),
    "libonnxruntime-dev is not installed": Reason(
        "systems older than Debian 13, which have no such package", in_ci=False
    ),
    "libzmq3-dev is not installed": Reason("machines that compile nothing with ZeroMQ (apt-get install libzmq3-dev)"),
    "nft is not installed": Reason("small images (apt-get install nftables)"),
    "node is not installed": Reason("machines without Node.js (apt-get install nodejs)"),
    "prometheus is not installed": Reason("machines without Prometheus (apt-get install prometheus)"),
    "promtool is not installed": Reason("machines without Prometheus (apt-get install prometheus)"),
    "slurmctld is not installed": Reason("machines without Slurm (apt-get install slurmctld slurmd)", in_ci=False),
    "slurmd is not installed": Reason("machines without Slurm (apt-get install slurmctld slurmd)", in_ci=False),
    "setpriv is not installed": Reason(_UTIL_LINUX),
    "the cluster is not built": Reason("whatever did not begin with `make test-cluster`"),
    "cmake is not installed": Reason("machines without CMake (apt-get install cmake)", in_ci=False),
    "the npm package onnxruntime-web is not installed": Reason(
        "fresh clones (npm ci --prefix protocol/clients/javascript)"
    ),
    "the npm package typescript is not installed": Reason("fresh clones (npm ci --prefix protocol/clients/javascript)"),
    "the npm package zeromq is not installed": Reason("fresh clones (npm ci --prefix protocol/clients/javascript)"),
    "tmux is not installed": Reason("machines without tmux (apt-get install tmux)", in_ci=False),
    "unshare is not installed": Reason(_UTIL_LINUX),
    # packages of Python
    "hadolint is not installed": Reason(_TEST_EXTRA),
    "ipykernel and nbclient are not installed": Reason(_TEST_EXTRA),
    "lbforaging is not installed": Reason(_TEST_EXTRA),
    "minari is not installed": Reason(_TEST_EXTRA),
    "mlflow is not installed": Reason("environments without the extra `mlflow`", in_ci=False),
    "mpe2 is not installed": Reason(_TEST_EXTRA),
    "mypy is not installed": Reason(_TEST_EXTRA),
    "onnx is not installed": Reason(_TEST_EXTRA),
    "onnxruntime is not installed": Reason(_TEST_EXTRA),
    "onnxscript is not installed": Reason(_TEST_EXTRA),
    "rookery is not installed": Reason("environments without this package, which `make test` installs"),
    "ruff is not installed": Reason(_TEST_EXTRA),
    "Sphinx is not installed": Reason("environments without the extra `docs`, which `make test` installs"),
    "wandb is not installed": Reason("environments without the extra `wandb`", in_ci=False),
}
"""A skip says one of these, or one with ": " and a detail behind it."""


def reason_in(said: str) -> str:
    """What a skip said, without its detail."""
    return said.partition(": ")[0]


def fault(said: str) -> str | None:
    """Why a skip that said this may not be, here and now; None where it may."""
    reason = REASONS.get(reason_in(said))
    if reason is None:
        return f"{said!r} is no reason to skip: tests/skips.py has all there are"
    if reason.in_ci and os.environ.get("ROOKERY_CI") == "1":
        return f"{said} (a skip is a failure with ROOKERY_CI=1)"
    return None
