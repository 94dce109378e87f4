"""A policy for other programs: its operations recorded as TorchScript or ONNX, for any number of rows.

In flow: a `ExportedModule` policy and its manifest. Out flow: one file that holds both, whose inputs and outputs are
those of the manifest, in that order (ONNX: by these names).
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
import warnings
from pathlib import Path

import torch

from protocol.errors import ConfigurationError
from workers.policies.export.export_manifest import KEY, ExportManifest
from workers.policies.export.module import ExportedModule
from workers.policies.export.safetensors import write_beside

_ROWS = 3
"""Of the example that is recorded; not 1, which would be taken for a constant."""


def write_torchscript(path: Path, manifest: ExportManifest, deployed: ExportedModule) -> None:
    """For `torch.jit.load`, which gives a module with a tuple of outputs; the manifest is its extra file."""
    aside = path.with_name(f".{path.name}.new")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather compile, which leaves no file
        module = torch.jit.freeze(torch.jit.trace(_alone(deployed), deployed.example(_ROWS)))
        torch.jit.save(module, aside, {f"{KEY}.json": manifest.text()})
    os.replace(aside, path)
    write_beside(path, manifest)


def write_onnx(path: Path, manifest: ExportManifest, deployed: ExportedModule) -> None:
    """For any runtime of ONNX; the manifest is among its metadata. ConfigurationError where packages are missing."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError("onnx_packages_missing", packages=" and ".join(missing))
    aside, rows = path.with_name(f".{path.name}.new"), torch.export.Dim("rows")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that nobody asked for
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        program = torch.onnx.export(
            _alone(deployed),
            deployed.example(_ROWS),
            input_names=[port.name for port in manifest.inputs],
            output_names=[port.name for port in manifest.outputs],
            dynamic_shapes=(tuple({0: rows} for _ in manifest.inputs),),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    model.metadata_props.add(key=KEY, value=manifest.text())
    aside.write_bytes(model.SerializeToString())
    os.replace(aside, path)
    write_beside(path, manifest)


def _alone(deployed: ExportedModule) -> ExportedModule:
    """A copy whose tensors have memory of their own: those of a policy lie together, which no format takes."""
    copied = copy.deepcopy(deployed).eval()
    for tensor in (*copied.parameters(), *copied.buffers()):
        tensor.data = tensor.detach().clone()
    return copied
