"""What of a policy stays as it was taken from elsewhere, for so many steps or for good.

In flow: `policy.start.freeze`, and how far the policy is. Out flow: parameters that its optimiser leaves alone, and
statistics that nothing is added to.
"""

from __future__ import annotations

from torch import Tensor, nn

from protocol.config.run import AuxiliaryConfig, PolicyConfig
from workers.algorithms.common.adam import FlatAdam
from workers.policies.export.start import named
from workers.policies.networks.normalization import PopArtValue, RunningMoments


class HeldParts:
    """What the `freeze` of its `config` names of `policy`, which `optimizer` moves; the statistics of returns go with a
    value head, which speaks in their unit."""

    def __init__(self, policy: nn.Module, optimizer: FlatAdam, config: PolicyConfig | AuxiliaryConfig) -> None:
        freeze = config.freeze if isinstance(config, PolicyConfig) else None
        self._optimizer, self._steps = optimizer, None if freeze is None else freeze.steps
        names = set[str]() if freeze is None else named(policy, freeze.only, "freeze")
        self._parameters: list[Tensor] = [one for name, one in policy.named_parameters() if name in names]
        self._several = len([*policy.parameters()])
        moments = ((name, one) for name, one in policy.named_modules() if isinstance(one, RunningMoments))
        self._moments = [one for name, one in moments if f"{name}.mean" in names]
        if isinstance(policy, PopArtValue) and any(
            one is head for head in policy.value_head for one in self._parameters
        ):
            self._moments.append(policy.returns)

    @property
    def everything(self) -> bool:
        """Whether a step moves nothing now."""
        return len(self._optimizer.held) == self._several

    def hold(self, rows: int) -> None:
        """As is due after so many agent steps of the policy."""
        held = self._steps is None or rows < self._steps
        self._optimizer.held = self._parameters if held else []
        for one in self._moments:
            one.held = held
