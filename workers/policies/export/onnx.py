"""A policy for other programs: its operations recorded as TorchScript or ONNX, for any number of rows.

In flow: a `ExportedModule` policy and its manifest. Out flow: one file that holds both, whose inputs and outputs are
those of the manifest, in that order (ONNX: by these names); or the bytes of an ONNX graph without weights, which are
inputs as well.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from protocol.config.run import PolicyConfig
from protocol.errors import ConfigurationError
from protocol.messages.core import OPSET
from workers.policies.build import published_weights
from workers.policies.export.export_manifest import KEY, ExportManifest
from workers.policies.export.module import ExportedModule
from workers.policies.export.safetensors import write_beside
from workers.runtime.entry_points import calling

_ROWS = 3
"""Of the example that is recorded; not 1, which would be taken for a constant."""


def write_torchscript(path: Path, manifest: ExportManifest, deployed: ExportedModule) -> None:
    """For `torch.jit.load`, which gives a module with a tuple of outputs; the manifest is its extra file."""
    aside = path.with_name(f".{path.name}.new")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch would rather compile, which leaves no file
        with _recording(manifest.config, "TorchScript"):
            module = torch.jit.freeze(torch.jit.trace(_alone(deployed), deployed.example(_ROWS)))
            module(*deployed.example(_ROWS - 1))
        torch.jit.save(module, aside, {f"{KEY}.json": manifest.text()})
    os.replace(aside, path)
    write_beside(path, manifest)


def write_onnx(path: Path, manifest: ExportManifest, deployed: ExportedModule) -> None:
    """For any runtime of ONNX; the manifest is among its metadata. ConfigurationError where packages are missing."""
    aside, model = path.with_name(f".{path.name}.new"), _recorded(manifest.config, deployed).model_proto
    model.metadata_props.add(key=KEY, value=manifest.text())
    aside.write_bytes(model.SerializeToString())
    os.replace(aside, path)
    write_beside(path, manifest)


def graph(config: PolicyConfig, deployed: ExportedModule) -> bytes:
    """The ONNX graph of a policy without its weights: inputs called `weights.` and as in their manifest stand for
    those. ConfigurationError where packages are missing or an operation cannot be recorded."""
    program = _recorded(config, deployed, optimize=False, opset_version=OPSET)  # to optimize would fold weights
    for entry in published_weights(deployed.policy).entries:
        value = program.model.graph.initializers.pop(f"policy.{entry.name}", None)
        if value is not None:
            value.name, value.const_value = f"weights.{entry.name}", None
            program.model.graph.inputs.append(value)
    for node in program.model.graph.all_nodes():  # where in whose files it was recorded
        node.metadata_props.clear()
    return program.model_proto.SerializeToString()


def _recorded(config: PolicyConfig, deployed: ExportedModule, **options: Any) -> torch.onnx.ONNXProgram:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError("onnx_packages_missing", packages=" and ".join(missing))
    rows = torch.export.Dim("rows")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that nobody asked for
    with torch.no_grad(), warnings.catch_warnings(), _recording(config, "ONNX"):
        warnings.simplefilter("ignore")  # of the exporter, about itself
        program = torch.onnx.export(
            _alone(deployed),
            deployed.example(_ROWS),
            input_names=[port.name for port in deployed.inputs],
            output_names=[port.name for port in deployed.outputs],
            dynamic_shapes=(tuple({0: rows} for _ in deployed.inputs),),
            dynamo=True,
            external_data=False,
            verbose=False,
            **options,
        )
        assert program is not None
        if not all(port.type.tensor_type.shape.dim[0].dim_param for port in program.model_proto.graph.input):
            raise ValueError(f"it takes {_ROWS} rows alone, as len(x) is a constant and x.shape[0] is none")
    return program


@contextmanager
def _recording(config: PolicyConfig, kind: str) -> Iterator[None]:
    """In here a network is recorded. Where it is the user's own, what cannot be is a ConfigurationError."""
    code = ", ".join(sorted(config.network.entries))

    def failed(**at: Any) -> ConfigurationError:
        return ConfigurationError("network_not_recorded", value=code, format=kind, **at)

    with calling(code, failed) if code else nullcontext():
        yield


def _alone(deployed: ExportedModule) -> ExportedModule:
    """A copy whose tensors have memory of their own: those of a policy lie together, which no format takes."""
    copied = copy.deepcopy(deployed).eval()
    for tensor in (*copied.parameters(), *copied.buffers()):
        tensor.data = tensor.detach().clone()
    return copied
