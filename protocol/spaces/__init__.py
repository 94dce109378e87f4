"""What agents observe and do: the tree of an environment, as plain data that round-trips through JSON.

`World` holds a population of agents and populations; each agent has an observation and an action space. Conversions
from and to Gymnasium and PettingZoo are in `protocol.spaces.gymnasium` and `protocol.spaces.pettingzoo`.
"""

from __future__ import annotations

from protocol.spaces.agent_slots import Place
from protocol.spaces.composite import Dict, Element, LeafSpace, Space, Tuple, elements, flatten, nest, unflatten
from protocol.spaces.model import Label
from protocol.spaces.policy_map import policy_map, symmetries
from protocol.spaces.primitive import Box, Discrete, MultiBinary, MultiDiscrete, Text, dtype_of
from protocol.spaces.rewards import Payoffs
from protocol.spaces.row_format import Leaf, RowFormat
from protocol.spaces.tree import (
    Action,
    Agent,
    ArrayPopulation,
    Component,
    DictPopulation,
    Observation,
    Payoff,
    Population,
    space_of,
)
from protocol.spaces.world import World, parse_world

__all__ = [
    "Action",
    "Agent",
    "ArrayPopulation",
    "Box",
    "Component",
    "Dict",
    "DictPopulation",
    "Discrete",
    "Element",
    "Label",
    "Leaf",
    "LeafSpace",
    "MultiBinary",
    "MultiDiscrete",
    "Observation",
    "Payoff",
    "Payoffs",
    "Place",
    "Population",
    "RowFormat",
    "Space",
    "Text",
    "Tuple",
    "World",
    "dtype_of",
    "elements",
    "flatten",
    "nest",
    "parse_world",
    "policy_map",
    "space_of",
    "symmetries",
    "unflatten",
]
