"""`rookery export`: policies of a run as files that act without it.

python -m workers.tools.export runs/first --policy agent_0

In flow: a run's folder, finished or not. Out flow: a file, and its manifest beside it.
"""

from __future__ import annotations

from pathlib import Path

import click

from protocol.errors import ConfigurationError, one_sentence
from workers import freeze_startup_objects
from workers.policies.export import onnx, safetensors
from workers.policies.export.from_checkpoint import export_module, find_checkpoint, saved_policies
from workers.runtime import torch_setup

FORMATS = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


def export(run: Path, policy: str | None, kind: str, out: Path | None, which: str) -> Path:
    """Writes the policy called `policy` (None: the only one) of the run in the folder `run`, as of the checkpoint
    `which`: `newest`, `best` or a train step. Returns the file. ConfigurationError in one sentence."""
    name = _policy(run, policy)
    step, manifest, found = find_checkpoint(run, name, which)
    path = out or run / "exports" / f"{name}-{step}{FORMATS[kind]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "safetensors":
        safetensors.save_policy(path, manifest, found)
    else:
        module = export_module(manifest.interface, manifest.config, found)
        (onnx.write_onnx if kind == "onnx" else onnx.write_torchscript)(path, manifest, module)
    return path


def _policy(run: Path, policy: str | None) -> str:
    names = saved_policies(run)
    if not names:
        raise ConfigurationError("run_without_checkpoint", file=run)
    if policy in names:
        return policy
    if policy is None and len(names) == 1:
        return names[0]
    fault = "has several policies" if policy is None else f"has no checkpoint of a policy {policy!r}"
    raise ConfigurationError("policy_option_needed", file=run, reason=fault, choices=list(names))


@click.command(name="export", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN", type=click.Path(file_okay=False, path_type=Path))
@click.option("--policy", metavar="NAME", help="Which policy; not needed where there is one.")
@click.option("--format", "kind", type=click.Choice([*FORMATS]), default="safetensors", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The file; default RUN/exports/…")
@click.option("--checkpoint", "which", default="newest", show_default=True, metavar="newest|best|N", help="Which one.")
def main(run: Path, policy: str | None, kind: str, out: Path | None, which: str) -> None:
    """Writes a policy of RUN as a file that acts without it; its manifest (JSON) lies beside it."""
    torch_setup.configure_torch()
    with one_sentence("another --out"):
        click.echo(export(run, policy, kind, out, which))


if __name__ == "__main__":
    freeze_startup_objects()
    main(prog_name="rookery export")
