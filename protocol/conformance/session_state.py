"""Where the conversation with one simulator stands, as an actor sees it: what it may say next.

In flow: its messages. Out flow: a Flaw for what breaks a rule, with the code of its refusal; otherwise who is to act.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.conformance.probe import Flaw
from protocol.conformance.samples import Masks, flaw, mask_flaw, masks_of
from protocol.messages.simulator import End, Observe
from protocol.spaces import Place, World
from protocol.spaces.row_format import nbytes

_ASKS, _EARNS, _ENDS, _PARTS = (f"The conversation, {rule}" for rule in (3, 4, 5, 7))


class SessionState:
    """Of one that was just admitted to `world`."""

    def __init__(self, world: World, drives: bool) -> None:
        self._places: dict[str, Place] = {slot: place for place in world.places for slot in place.slots}
        self._drives = drives
        self._number = self.episode = 0
        self._playing = False
        self._open: set[str] = set()
        """Who acted and did not end since."""
        self.observes = self.ended = 0
        """How many there were: `observe`s, and episodes that ended."""

    def reset(self) -> int:
        """The episode that one that does not drive is now told to begin."""
        self.episode, self._playing = self.episode + 1, True
        return self.episode

    def observe(self, message: Observe, frames: Sequence[Any]) -> list[tuple[Place, Masks]]:
        """Where those stand who are to act, and what they may do."""
        if not message.agents:
            raise Flaw("observe_without_agents", "`observe`", "agent")
        places = self._named(message.agents)
        if message.number <= self._number:
            raise Flaw("observe_number_not_rising", "`observe`", "number", value=message.number, previous=self._number)
        self._expect_episode(message)
        self._check_rewards(message)
        for name in message.elements:
            self._check_element(places, name)
        allowed = []
        frame = _only(frames, sum(nbytes(place.observed) + nbytes(place.masked) for place in places), "an observe")
        at = 0
        for name, place in zip(message.agents, places, strict=True):
            seen, masks = nbytes(place.observed), nbytes(place.masked)
            wrong = flaw(place.observed, frame[at : at + seen])
            wrong = wrong or mask_flaw(place, frame[at + seen : at + seen + masks])
            if wrong:
                raise Flaw("observation_invalid", "Simulators", "value", agent=name, reason=wrong)
            allowed.append((place, masks_of(place, frame[at + seen : at + seen + masks])))
            at += seen + masks
        self._number, self.episode, self._playing = message.number, message.episode, True
        self._open.update(message.agents)
        self.observes += 1
        return allowed

    def end(self, message: End, frames: Sequence[Any]) -> bool:
        """Whether the episode is over for everybody."""
        if not self._playing or message.episode != self.episode:
            state = f"episode {self.episode} goes on" if self._playing else "none goes on"
            raise Flaw("end_of_other_episode", _ENDS, "episode", episode=message.episode, state=state)
        places = self._named(message.agents)
        idle = [name for name in message.agents if name not in self._open]
        if idle:
            raise Flaw("end_of_idle_agent", _ENDS, "order", agent=idle[0])
        forgotten = self._open.difference(message.agents)
        if message.over and forgotten:
            raise Flaw("end_of_agent_missing", _ENDS, "order", agent=min(forgotten))
        self._check_rewards(message)
        if message.infos and len(message.infos) != len(message.agents):
            count, expected = len(message.infos), len(message.agents)
            raise Flaw("infos_count_wrong", "`end`", "info", count=count, expected=expected)
        size = sum(nbytes(place.observed) for place in places) if message.truncated else 0
        frame, at = _only(frames, size, f"an end that is {'' if message.truncated else 'not '}cut"), 0
        for name, place in zip(message.agents, places, strict=True) if message.truncated else ():
            wrong = flaw(place.observed, frame[at : at + nbytes(place.observed)])
            if wrong:
                raise Flaw("last_observation_invalid", "Simulators", "value", agent=name, reason=wrong)
            at += nbytes(place.observed)
        self._open.difference_update(message.agents)
        self._playing = not message.over
        self.ended += message.over
        return message.over

    def _named(self, agents: Sequence[str]) -> list[Place]:
        unknown = [name for name in agents if name not in self._places]
        if unknown:
            some = ", ".join([*self._places][:8])
            raise Flaw("agent_unknown_to_world", "`place`", "agent", agent=unknown[0], choices=some)
        if len(set(agents)) < len(agents):
            raise Flaw("agent_named_twice", _ASKS, "agent")
        return [self._places[name] for name in agents]

    def _expect_episode(self, message: Observe) -> None:
        if not self._playing and not self._drives:
            raise Flaw("observe_before_reset", _ASKS, "episode")
        wanted = self.episode if self._playing else self.episode + 1
        if message.episode != wanted:
            raise Flaw("observe_of_wrong_episode", _ENDS, "episode", episode=message.episode, expected=wanted)

    def _check_rewards(self, message: Observe | End) -> None:
        if message.rewards and len(message.rewards) != len(message.agents):
            raise Flaw(
                "rewards_count_wrong",
                f"`{message.type}`",
                "reward",
                count=len(message.rewards),
                expected=len(message.agents),
            )
        for name, reward in zip(message.agents, message.rewards, strict=False):
            if reward and name not in self._open:
                raise Flaw("reward_without_action", _EARNS, "reward", agent=name)

    def _check_element(self, places: list[Place], name: str) -> None:
        for place in places:
            if name not in {leaf.path[0] for leaf in place.acted.leaves if leaf.path}:
                raise Flaw("action_element_unknown", _PARTS, "element", agent=place.name, field=name)


def _only(frames: Sequence[Any], size: int, what: str) -> bytes:
    """The one frame of arrays."""
    if not size and not frames:
        return b""
    if len(frames) != 1 or len(frames[0]) != size:
        sizes = ", ".join(str(len(frame)) for frame in frames) or "no"
        raise Flaw("arrays_size_wrong", "Simulators", "size", message=what, sizes=sizes, expected=size)
    return bytes(frames[0])
