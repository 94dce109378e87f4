"""Several policies of DQN or IQN of equal shape as one: each layer of all of them is one batched product.

In flow: the policies. Out flow: one like them, with weights [K, ...], that gives for rows [K, B, ...] what each gives
for its own.

Legend: `K` policies, `B` rows of each.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

from workers.policies.networks.q_policy import QPolicy
from workers.policies.stacked.stacked_weights import StackedWeights

Kind = TypeVar("Kind", bound=QPolicy)


def stack_policies(policies: Sequence[Kind]) -> tuple[Kind, StackedWeights]:
    """All of `policies` as one, and its weights. They stay as they are until these are stored."""
    weights = StackedWeights(policies, lambda name: name.endswith((".bias", ".bias_scale")))
    stacked = copy.deepcopy(policies[0])
    for name, view in weights.views.items():
        owner, _, leaf = name.rpartition(".")
        layer = stacked.get_submodule(owner)
        delattr(layer, leaf)
        setattr(layer, leaf, view)
    return stacked, weights
