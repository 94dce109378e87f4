"""The reference of all configuration keys, made from the types: `python -m tests.configuration_reference` writes it.

In flow: the sections in protocol/, their fields, defaults, bounds and the docstrings behind them. Out flow:
launch/docs/reference/configuration.md; a test says when it is not what the types say.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from protocol.config.auxiliary import RND, AuxiliaryConfig
from protocol.config.environment import (
    Adversarial,
    CollectionMember,
    Curriculum,
    EnvironmentConfig,
    ObservedParts,
    Split,
)
from protocol.config.fixed_policy import FrozenPolicy, ScriptedPolicy
from protocol.config.network import (
    AttentionCore,
    CellCore,
    CNNEncoder,
    EntitiesEncoder,
    EntryCore,
    EntryEncoder,
    EntryNetwork,
    MLPEncoder,
    Network,
    ResidualEncoder,
    TokensEncoder,
)
from protocol.config.off_policy import C51, DQN, IQN, QMIX, SAC, VDN
from protocol.config.offline import BC, Dataset
from protocol.config.on_policy import IMPALA, PPO, Curiosity
from protocol.config.run import EvaluationConfig, PolicyConfig, Run
from protocol.config.source_names import Multiprocessing
from protocol.config.trainable import Freeze, Start
from tests.network_pictures import PICTURES, picture
from tests.tools import ROOT

__all__ = ["PATH", "SECTIONS", "explains", "keys", "main", "mentions", "reference"]

PATH = ROOT / "launch" / "docs" / "reference" / "configuration.md"
SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("", Run),
    ("environment", EnvironmentConfig),
    ("environment.observe", ObservedParts),
    ("environment.members.ID", CollectionMember),
    ("environment.split", Split),
    ("environment.curriculum", Curriculum),
    ("environment.adversarial", Adversarial),
    ("policy", PolicyConfig),
    ("policy.network", Network),
    *(
        (f"policy.network.encoder, name: {one.model_fields['name'].default}", one)
        for one in (MLPEncoder, CNNEncoder, ResidualEncoder, TokensEncoder, EntitiesEncoder)
    ),
    ("policy.network, of your own", EntryNetwork),
    ("policy.network.encoder, of your own", EntryEncoder),
    ("policy.network.core, name: lstm or gru", CellCore),
    ("policy.network.core, name: attention", AttentionCore),
    ("policy.network.core, of your own", EntryCore),
    *((f"policy.algorithm, name: {one.model_fields['name'].default}", one) for one in (PPO, IMPALA)),
    ("policy.algorithm.curiosity", Curiosity),
    *(
        (f"policy.algorithm, name: {one.model_fields['name'].default}", one)
        for one in (IQN, DQN, C51, VDN, QMIX, SAC, BC)
    ),
    ("policy.dataset", Dataset),
    ("policy.start", Start),
    ("policy.start.freeze", Freeze),
    *(
        (f"policies.NAME.algorithm, name: {one.model_fields['name'].default}", one)
        for one in (FrozenPolicy, ScriptedPolicy)
    ),
    ("auxiliaries.NAME", AuxiliaryConfig),
    ("auxiliaries.NAME.algorithm, name: rnd", RND),
    ("evaluation", EvaluationConfig),
    ("multiprocessing", Multiprocessing),
)
EXPLAINED = {
    "": ("../start/configure.md", "Change the configuration"),
    "environment": ("../environments/own.md", "Train your own environment"),
    "environment.observe": ("../environments/inputs.md", "Shape what agents observe"),
    "environment.members": ("../environments/curricula.md", "Train on several environments"),
    "environment.split": ("../environments/curricula.md", "Train on several environments"),
    "environment.curriculum": ("../environments/curricula.md", "Train on several environments"),
    "environment.adversarial": ("../environments/curricula.md", "Train on several environments"),
    "policy": ("../concepts/experience.md", "Segments, credit, lag and versions"),
    "policy.network": ("../networks/encoders.md", "Encoders"),
    "policy.network, of your own": ("../networks/whole.md", "Dependent actions and complete networks"),
    "policy.network.core": ("../networks/cores.md", "Recurrent policies"),
    "policy.algorithm, name: ppo": ("../algorithms/ppo.md", "PPO"),
    "policy.algorithm, name: impala": ("../algorithms/impala.md", "IMPALA"),
    "policy.algorithm.curiosity": ("../learning/curiosity.md", "Curiosity"),
    "policy.algorithm, name: iqn": ("../algorithms/iqn.md", "IQN"),
    "policy.algorithm, name: dqn": ("../algorithms/dqn.md", "DQN"),
    "policy.algorithm, name: c51": ("../algorithms/c51.md", "C51 and Rainbow"),
    "policy.algorithm, name: vdn": ("../algorithms/teams.md", "VDN and QMIX"),
    "policy.algorithm, name: qmix": ("../algorithms/teams.md", "VDN and QMIX"),
    "policy.algorithm, name: sac": ("../algorithms/sac.md", "SAC"),
    "policy.algorithm, name: bc": ("../algorithms/bc.md", "Behaviour cloning"),
    "policy.dataset": ("../learning/datasets.md", "Learn from a dataset"),
    "policy.start": ("../learning/start.md", "Start from another run"),
    "policies": ("../learning/fixed.md", "Opponents that do not learn"),
    "auxiliaries": ("../learning/curiosity.md", "Curiosity"),
    "evaluation": ("../guides/evaluate.md", "Evaluate policies"),
    "multiprocessing": ("most-used-keys.md", "Most used keys"),
}
"""The beginning of a section's name -> the page that explains its keys; of several the longest."""
KEYS = {
    "../algorithms/dqn.md": "anneal_learning_rate batch_size buffer_capacity double dueling epsilon epsilon_decay"
    " epsilon_decay_freq epsilon_min error_buffer exploration_fraction exploration_steps kappa learning_starts n_step"
    " noisy replay_ratio target_update target_update_freq tau",
    "../algorithms/ppo.md": "anneal_entropy c_clip central_critic central_state entropy_coefficient epochs gamma"
    " minibatches normalize_observation priority_alpha priority_beta rho_clip segments value_coefficient zero_last"
    " zero_start",
    "../concepts/agents.md": "copies",
    "../concepts/determinism.md": "seed",
    "../concepts/experience.md": "credits max_lag",
    "../concepts/survival.md": "actor_timeout learner_timeout lock_timeout monitor_period restarts stall_timeout"
    " starvation_sleep",
    "../environments/curricula.md": "adversarial curriculum members prior split",
    "../environments/inputs.md": "observe",
    "../environments/kinds.md": "id turn_mode",
    "../guides/diagnose.md": "largest_number max_grad_norm",
    "../guides/evaluate.md": "baseline_episodes",
    "../guides/hooks.md": "hooks",
    "../guides/loggers.md": "loggers",
    "../guides/performance.md": "checksums compress flush_after publish_interval publish_mode ring sync_interval"
    " transport wire_weights",
    "../guides/reproduce.md": "act_block commands lockstep_checkpoint_rounds replay schedule",
    "../guides/resume.md": "schedule_steps seconds target_return until",
    "../guides/watch.md": "log_dir log_format log_interval log_mebibytes logging",
    "../learning/change.md": "allow_entries",
    "../learning/checkpoints.md": "checkpoint_interval checkpoint_replay checkpoint_steps keep_checkpoint_every"
    " keep_checkpoints",
    "../learning/curiosity.md": "curiosity",
    "../learning/datasets.md": "dataset record",
    "../learning/start.md": "start",
    "../learning/teams.md": "team_reward teams",
    "../machines/cohorts.md": "cohort learners num_learner_processes",
    "../machines/gpu.md": "act_device compile device device_per_agent precision",
    "../machines/ranks.md": "ranks",
    "../networks/algorithm.md": "declares entry",
    "../networks/cores.md": "burn_in core frames",
    "../networks/encoders.md": "network",
    "../networks/whole.md": "autoregressive",
    "../start/configure.md": "learning_rate",
    "most-used-keys.md": "multiprocessing",
}
"""A page -> the keys that it explains where the page of their section does not."""
_HEAD = """# All configuration keys

Made from the types in [protocol/](../../../protocol/config/run.py) by `python -m tests.configuration_reference`.
[Change the configuration](../start/configure.md) explains what a configuration is. `policies.NAME` takes the keys of
`policy`. A range says what numbers are allowed; `[` and `]` belong to it, `(` and `)` do not.

A picture shows what the network above it is made of: what it sees, each layer with the shape of its weights and what it
gives of one row, and what comes out. `rookery model RUN.yaml --picture` draws the networks of a run.
"""
_SIGNS = {"ge": "[", "gt": "(", "le": "]", "lt": ")"}


def reference() -> str:
    """The whole document."""
    parts = [_HEAD]
    for name, section in SECTIONS:
        rows = [
            f"| {_linked(name, key)} | {_type(field.annotation)}{_range(field)} | {_default(field)} | {meaning} |"
            for key, field, meaning in keys(section)
        ]
        heading = f"`{name}`" if name else "At the top"
        page, title = _section_page(name)
        parts.append(f"## {heading}\n\nExplained on [{title}]({page}).")
        parts.append("\n".join(("| key | values | default | meaning |", "|---|---|---|---|", *rows)))
        parts += map(picture, PICTURES.get(name, ()))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def keys(section: type[BaseModel]) -> list[tuple[str, FieldInfo, str]]:
    """(key, field, meaning) of each key of a section; the meaning is the docstring behind the field, or empty."""
    said: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if issubclass(cls, BaseModel) and cls is not BaseModel:
            said |= _docstrings(cls)
    return [
        (name, field, re.sub(r"\bNone\b", "null", said.get(name, "")))
        for name, field in section.model_fields.items()
        if name != "name"
    ]


def explains(name: str, key: str) -> str:
    """The page that explains a key of a section, beside this reference: that of the section where it has the key."""
    page, other = _section_page(name)[0], next((page for page, found in KEYS.items() if key in found.split()), "")
    return page if not other or mentions(page, key) else other


def _section_page(name: str) -> tuple[str, str]:
    return EXPLAINED[max(filter(name.startswith, EXPLAINED), key=len)]


@cache
def mentions(page: str, key: str) -> bool:
    """Whether the page has the key in code."""
    text = (PATH.parent / page).read_text(encoding="utf-8")
    return any(re.search(rf"\b{key}\b", code) for code in re.findall(r"```.*?```|`[^`]*`", text, re.S))


def _linked(name: str, key: str) -> str:
    page = explains(name, key)
    return f"`{key}`" if page == _section_page(name)[0] else f"[`{key}`]({page})"


def _docstrings(cls: type[BaseModel]) -> dict[str, str]:
    """field -> the text that stands behind it in the class's source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = " ".join(text.value.value.split())
    return found


def _type(annotation: Any) -> str:
    """A type in a reader's words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        words = [_type(one) for one in arguments]
        return " or ".join(dict.fromkeys(words))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {bool: "true, false", int: "whole number", float: "number", str: "text", NoneType: "null"}[annotation]


def _range(field: FieldInfo) -> str:
    """The bounds of a number, in the manner of an interval; empty where it has none."""
    low = high = ""
    for mark in field.metadata:
        for name, sign in _SIGNS.items():
            bound = getattr(mark, name, None)
            if bound is None:
                continue
            if name in ("ge", "gt"):
                low = f"{sign}{_bound(bound)}"
            else:
                high = f"{_bound(bound)}{sign}"
    return f" in {low or '(-∞'}, {high or '∞)'}" if low or high else ""


def _bound(bound: float) -> str:
    return "2^63" if bound == 2**63 else f"{bound:,}"


def _default(field: FieldInfo) -> str:
    """The default as YAML has it; dashes for a section, whose own keys have theirs."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "must be given"
    if isinstance(value, BaseModel):
        return "as below"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def main() -> None:
    """Writes the reference in its place."""
    PATH.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
