"""Exported policies do what the live ones do, in every format, for every kind of space and batch (I2, J7)."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file as numpy_file
from safetensors.torch import load_file, save_file

from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from tests.tools import skip_or_fail
from tests.workers.policies.exports import CASES, Case, batches, case, live, made
from workers.policies.export import safetensors
from workers.policies.export.export_manifest import KEY, ExportManifest
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.policies.export.onnx import write_onnx, write_torchscript

Run = Callable[[dict[str, NDArray]], dict[str, NDArray]]


def by_file(one: Case, folder: Path) -> Run:
    safetensors.save_policy(folder / "p.safetensors", one.manifest, one.policy)
    return ExportedPolicy.load(folder / "p.safetensors", one.config.network.entries).act


def by_module(one: Case, folder: Path) -> Run:
    def run(given: dict[str, NDArray]) -> dict[str, NDArray]:
        with torch.no_grad():
            said = one.deployed(*(torch.from_numpy(given[port.name]) for port in one.manifest.inputs))
        return {port.name: column.numpy() for port, column in zip(one.manifest.outputs, said, strict=True)}

    return run


def by_torchscript(one: Case, folder: Path) -> Run:
    write_torchscript(folder / "p.pt", one.manifest, one.deployed)
    more = {f"{KEY}.json": ""}
    module = torch.jit.load(folder / "p.pt", _extra_files=more)
    told = ExportManifest.model_validate_json(more[f"{KEY}.json"])
    assert told == one.manifest

    def run(given: dict[str, NDArray]) -> dict[str, NDArray]:
        said = module(*(torch.from_numpy(given[port.name]) for port in told.inputs))
        return {port.name: column.numpy() for port, column in zip(told.outputs, said, strict=True)}

    return run


def by_onnx(one: Case, folder: Path) -> Run:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            skip_or_fail(f"{package} is not installed")
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it would keep a data base open
    import onnxruntime

    write_onnx(folder / "p.onnx", one.manifest, one.deployed)
    session = onnxruntime.InferenceSession(folder / "p.onnx")
    told = ExportManifest.model_validate_json(session.get_modelmeta().custom_metadata_map[KEY])
    assert told == one.manifest
    assert [node.name for node in session.get_inputs()] == [port.name for port in told.inputs]
    names = [port.name for port in told.outputs]

    def run(given: dict[str, NDArray]) -> dict[str, NDArray]:
        return dict(zip(names, session.run(names, given), strict=True))

    return run


COVERED = {
    "central critic",
    "one choice among legal ones",
    "several choices",
    "numbers",
    "many alike",
    "no hidden layer",
    "iqn",
    "dqn",
}
"""Cases with nothing that no other has: recording them takes time."""
COMBINED = {
    "members that look",
    "members that remember",
    "ppo of frames",
    "shared layers",
    "vdn",
    "qmix",
    "central critic of an lstm",
    "a common observation",
    "bits",
    "whole numbers",
    "without bounds",
    "choices in turn",
    "choices in turn of a central critic's actor",
}
"""Those whose parts others have."""
WAYS = [(way, name) for way in (by_file, by_module) for name in CASES]
WAYS += [(way, name) for way in (by_torchscript, by_onnx) for name in CASES if name not in COVERED | COMBINED]
ONNX_LATE = [
    (by_onnx, name)
    for name in (
        *("image", "lstm", "text", "a set", "image remembered by a central critic's actor"),
        *("images of frames for sac", "c51", "gru", "sac", "attention"),
        *("dqn that remembers", "iqn that remembers", "images of frames", "iqn of frames", "sac of choices"),
        "a whole network with choices of its own",
    )
]
"""What others and TorchScript have: all of the first line is recorded by day as one policy of all senses, and rows
that no encoder reads as those of all kinds at once; with a gru a game plays in tests/clients/test_policies.py."""
WAYS = [way for way in WAYS if way not in ONNX_LATE]
LONG = [*ONNX_LATE, *((way, name) for way in (by_torchscript, by_onnx) for name in sorted(COMBINED))]
LATE = [pytest.param(way, name, marks=pytest.mark.slow) for way, name in LONG]


@pytest.mark.parametrize(("way", "name"), [*WAYS, *LATE], ids=lambda one: getattr(one, "__name__", one))
def test_an_exported_policy_does_what_the_live_one_does_J7(way: Any, name: str, tmp_path: Path) -> None:
    one = case(name)
    run = way(one, tmp_path)
    distinct: set[bytes] = set()
    for rows in batches():
        given = one.columns(rows, rows)
        expected, found = live(one, given), run(given)
        for key, column in expected.items():
            if key not in found:
                assert way is by_file, key
                continue
            assert (found[key].dtype, found[key].shape) == (column.dtype, column.shape), key
            np.testing.assert_allclose(found[key], column, rtol=1e-5, atol=1e-5, err_msg=key)
            distinct |= {row.tobytes() for row in column} if key.startswith("action") else set()
    assert len(distinct) > 1, "rows that all do the same tell nothing"


@pytest.mark.parametrize("name", ["all at once", "numbers", "bits"])
def test_log_probabilities_are_those_of_acting(name: str) -> None:
    """Of the likeliest action: those of its choices, and of the middle of its numbers."""
    one = case(name)
    given = one.columns(64, 1)
    said = by_module(one, Path())(given)
    total = np.zeros(64)
    if "log_probabilities" in said:
        at = 0
        for size in one.interface.action_encoding.head_sizes:
            total += said["log_probabilities"][:, at : at + size].max(1)
            at += size
    if "log_std" in said:
        total -= (said["log_std"] + 0.5 * np.log(2 * np.pi)).sum(1)
    seen = one.interface.observation_encoding.encode(given.__getitem__, (64,))
    legal = (
        one.interface.action_encoding.legal(given.__getitem__, (64,)) if one.interface.action_encoding.masked else None
    )
    acted = one.policy.act(torch.from_numpy(seen), np.random.default_rng(0), greedy=True, legal=legal)
    np.testing.assert_allclose(total, acted["log_probability"], atol=1e-4)


def test_what_another_program_cannot_compute_of_a_users_module_is_told(tmp_path: Path) -> None:
    """A state of int64, whose bytes are numbers."""
    code = "tests.flows.dots:Trace"
    one = made("own core", *CASES["gru"][:2], {"core": {"entry": code}})
    with raises(ConfigurationError, "network_not_recorded", value=code, format="TorchScript"):
        write_torchscript(tmp_path / "p.pt", one.manifest, one.deployed)


def test_a_recurrent_policy_is_not_run_as_if_it_remembered_nothing(tmp_path: Path) -> None:
    one = case("lstm")
    given = {name: column for name, column in one.columns(3, 1).items() if name != "state"}
    with raises(EnvironmentFault, "policy_input_missing", policy="lstm", field="state"):
        by_file(one, tmp_path)(given)


@pytest.mark.parametrize("name", ["all at once", "central critic"])
def test_what_only_learners_see_is_no_input_and_passing_it_raises_I2(tmp_path: Path, name: str) -> None:
    one = case(name)
    act = by_file(one, tmp_path)
    given = one.columns(3, 1)
    assert "observation.truth" not in given
    with raises(EnvironmentFault, "input_withheld_from_policy", field="observation.truth"):
        act(given | {"observation.truth": np.zeros((3, 3), np.float32)})
    assert "truth" not in one.manifest.agent.model_dump_json()
    with pytest.raises(ValueError, match="zip"):
        one.deployed(*map(torch.from_numpy, given.values()), torch.zeros(3, 3))


@pytest.mark.parametrize(
    ("spoil", "kind", "facts"),
    [
        (
            lambda given: given | {"observation.nose": given["observation.gear"]},
            "unknown_policy_input",
            {"field": "observation.nose"},
        ),
        (
            lambda given: {k: v for k, v in given.items() if k != "observation.gear"},
            "policy_input_missing",
            {"field": "observation.gear"},
        ),
        (lambda given: given | {"observation.gear": given["observation.gear"][:2]}, "input_lengths_differ", {}),
        (
            lambda given: given | {"observation.camera": given["observation.camera"][:, :1]},
            "policy_input_has_wrong_form",
            {"field": "observation.camera", "shape": (3, 1, 2), "expected_shape": (2, 2)},
        ),
        (
            lambda given: given | {"observation.gear": given["observation.gear"].astype("i4")},
            "policy_input_has_wrong_form",
            {"field": "observation.gear", "dtype": np.dtype("i4"), "expected_dtype": np.dtype("i8")},
        ),
    ],
)
def test_columns_of_another_form_are_refused(spoil: Any, kind: str, facts: dict[str, Any], tmp_path: Path) -> None:
    one = case("all at once")
    with raises(EnvironmentFault, kind, policy="all at once", **facts):
        by_file(one, tmp_path)(spoil(one.columns(3, 1)))


def test_drawn_actions_are_those_of_the_live_policy_with_that_noise(tmp_path: Path) -> None:
    one = case("all at once")
    safetensors.save_policy(tmp_path / "p.safetensors", one.manifest, one.policy)
    frozen, given = ExportedPolicy.load(tmp_path / "p.safetensors"), one.columns(64, 1)
    first, again, greedy = (
        frozen.act(given, np.random.default_rng(5)),
        frozen.act(given, np.random.default_rng(5)),
        frozen.act(given),
    )
    seen = one.interface.observation_encoding.encode(given.__getitem__, (64,))
    legal = one.interface.action_encoding.legal(given.__getitem__, (64,))
    acted = one.policy.act(torch.from_numpy(seen), np.random.default_rng(5), legal=legal)
    _, done = one.interface.action_encoding.decode(acted["action"], acted["amount"])
    for name, column in one.interface.place.parts("action", done).items():
        np.testing.assert_array_equal(first[name], column)
        np.testing.assert_array_equal(again[name], column)
        assert not np.array_equal(greedy[name], column)


def test_a_file_holds_what_acting_needs_alone(tmp_path: Path) -> None:
    for name, idle in (("iqn", "target."), ("dqn", "target."), ("sac", "critics."), ("central critic", "critic.")):
        one = case(name)
        safetensors.save_policy(tmp_path / "p.safetensors", one.manifest, one.policy)
        names = set(load_file(tmp_path / "p.safetensors"))
        assert names
        assert not [key for key in names if key.startswith(idle)]
        assert json.loads((tmp_path / "p.json").read_text())["provenance"]["train_steps"] == 3


def test_without_its_packages_onnx_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, find = case("bits"), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with raises(ConfigurationError, "onnx_packages_missing", packages="onnxscript"):
        write_onnx(tmp_path / "p.onnx", one.manifest, one.deployed)
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    one, path = case("bits"), tmp_path / "p.safetensors"
    with raises(ConfigurationError, "exported_policy_unreadable", file=path):
        ExportedPolicy.load(path)
    path.write_bytes(b"nothing of the kind")
    with raises(ConfigurationError, "exported_policy_unreadable", file=path):
        ExportedPolicy.load(path)
    weights = {name: tensor.clone() for name, tensor in safetensors.acting_weights(one.policy).items()}
    save_file(weights, path)
    with raises(ConfigurationError, "exported_without_manifest"):
        ExportedPolicy.load(path)
    for changes, kind, facts in (
        ({"format": 9}, "format_not_supported", {"value": 9, "expected": 1}),
        ({"agent": 3}, "exported_manifest_invalid", {}),
    ):
        save_file(weights, path, {KEY: json.dumps(json.loads(one.manifest.text()) | changes)})
        with raises(ConfigurationError, kind, file=path, **facts):
            ExportedPolicy.load(path)
    weights["policy_bias"][0] = torch.nan
    save_file(weights, path, {KEY: one.manifest.text()})
    with raises(ConfigurationError, "exported_weights_not_finite", file=path, field="policy_bias"):
        ExportedPolicy.load(path)
    del weights["policy_bias"]
    save_file(weights, path, {KEY: one.manifest.text()})
    with raises(ConfigurationError, "exported_weights_of_other_network", file=path):
        ExportedPolicy.load(path)


def test_a_file_of_the_first_format_is_still_read_and_acts_as_it_did() -> None:
    """`format-1.safetensors` was written when this format was new, by a recurrent policy of choices and numbers with a
    mask (its core is named as it is today); `format-1-acts.safetensors` holds what it was given and what it did. A new
    format gets a file of its own."""
    folder = Path(__file__).parent / "stored"
    frozen, told = (
        ExportedPolicy.load(folder / "format-1.safetensors"),
        numpy_file(folder / "format-1-acts.safetensors"),
    )
    assert frozen.manifest.format == 1
    given = {name: told[f"in.{name}"] for name in frozen.inputs}
    for name, column in frozen.act(given).items():
        np.testing.assert_allclose(column, told[f"out.{name}"], rtol=1e-5, atol=1e-5, err_msg=name)
