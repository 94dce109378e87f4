"""What can be wrong with a policy's learning, layer by layer, and what to do: the vocabulary of verdicts. No torch.

In flows: the counters of learners, of which each finding has one a policy, and what returns show. Out flow: findings in
order, the lowest layer first: what lies above a layer that fails only shows its symptoms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from workers.metrics.segment_accounting import Pages, sum_counters

Excess = tuple[float, float]
"""A number and the limit that it is beyond."""
LAYERS = ("data", "sharing", "shape", "computation", "gradient", "update", "learning")
OUTSIDE = "observation_outside"
INFOS_CUT, INFOS_NOT_FINITE = "infos_cut", "infos_not_finite"
OF_ACTORS = (OUTSIDE, INFOS_CUT, INFOS_NOT_FINITE)
"""The findings of actors; all others are of learners or of the run."""
CUT = 10
"""Names of numbers left out that are told of a policy at most."""
LOOKED_AT = "batches_checked"
"""Counter of the batches of a policy that were looked at."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that may be found. A note may be meant so; a fault keeps the policy from learning."""

    name: str
    layer: str
    level: Literal["note", "fault"]
    says: str
    remedy: str


_FOUND: dict[tuple[str, Literal["note", "fault"]], dict[str, tuple[str, str]]] = {
    ("data", "fault"): {
        "not_finite": (
            "a batch has observations, rewards or other numbers that are not finite",
            "look at what the world's step returns (the segments are kept in the run's folder under refused/)",
        ),
        "observation_zero": (
            "every observation is all zeros",
            "look at what the world's reset and step return; where there is nothing to be seen, show the number 1",
        ),
        "action_constant": (
            "the same action in every row, though others were legal",
            "look at what the actor does with the policy's outputs, at masks and at epsilon or entropy_coefficient",
        ),
        "never_a_batch": (
            "rows came, but never enough of them at once for one update",
            "give the run more steps, or ask for less: algorithm.segments, batch_size or learning_starts; on replay, "
            "where segments are short, raise buffer_capacity",
        ),
    },
    ("data", "note"): {
        "segments_refused": (
            "segments that nothing can be learned from were refused; the others are trained on",
            "look in the learner's log which actor sent them, and why (event=segments_refused), and mend that actor",
        ),
        "observation_constant": (
            "every observation is the same",
            "if that is not how the world is meant, look at what its step returns",
        ),
        "privileged_constant": (
            "what only the critic sees is the same in every row",
            "look at the world's evaluation-only observations, or leave central_critic out",
        ),
        "reward_zero": (
            "no reward but 0 so far",
            "if the world's rewards are not that rare, look at what its step returns",
        ),
        "limit_before_horizon": (
            "a time limit cuts episodes off long before gamma stops counting what comes: most of a value is a guess at "
            "what nobody ever sees, which nothing corrects, and policies learn to please the guess",
            "lower algorithm.gamma to 1 - 1/steps of an episode or less, or, if the task really ends with its time, "
            "let the world say terminated and show the time that is left",
        ),
        OUTSIDE: (
            "an observation lies outside the space that the world declares",
            "correct the bounds, or scale or clip what is seen; the actor's log names field and bounds "
            "(event=observation_outside)",
        ),
        INFOS_CUT: (
            "the world tells more numbers of its episodes (info) than there are curves, or by names that are too long",
            "tell only those that you want to see: 30 of a policy are drawn, 600 of all, with names of 48 letters",
        ),
        INFOS_NOT_FINITE: (
            "numbers that the world tells of its episodes (info) are not finite, or beyond 1e12, and were left out",
            "look at what the world's step puts into info when an episode ends",
        ),
        "picture_as_vector": (
            "an observation holds an image, and the network takes each of its pixels for an input of its own: it sees "
            "no shapes, and is slow",
            "let an encoder read it, as policy: {network: {encoder: cnn}}, or {encoder: {PART: cnn}} for a part of an "
            "observation; cnn reads bytes and bits, an encoder of your own anything",
        ),
        "image_faint": (
            "the bytes of an image are much smaller than what they are divided by: the network sees next to nothing",
            "name the greatest byte that occurs, as policy: {network: {encoder: {name: cnn, scale: 10}}}, or correct "
            "the bounds of the space",
        ),
        "buffer_smaller": (
            "replay keeps fewer rows than buffer_capacity asks for, as each actor keeps whole blocks",
            "lower segment_length, environment.copies or actors, or raise buffer_capacity",
        ),
    },
    ("sharing", "fault"): {
        "memory_disagrees": (
            "what lies in memory was not made by the weights that its announcement names: the learner reads other "
            "memory than the actor writes",
            "attach both to one file (same run, same ROOKERY_MEMORY, same /dev/shm), or set transport: tcp",
        ),
        "batch_repeated": (
            "one batch after the other has the same bytes",
            "look whether the actor writes to the memory that the learner reads, and whether what was used is given "
            "back",
        ),
        "nothing_whole": (
            "segments were announced, but none was there when it was read",
            "attach both to one file (same run, same ROOKERY_MEMORY), raise credits, or set transport: tcp",
        ),
    },
    ("shape", "fault"): {
        "wrong_shape": (
            "a batch has another shape than its layout",
            "give each row the shape that the space declares; nothing is broadcast or reshaped on the way",
        ),
    },
    ("computation", "fault"): {
        "not_tensors": (
            "a batch holds something else than tensors",
            "convert it with torch.from_numpy, to the learner's device",
        ),
        "loss_not_finite": (
            "finite data gave a loss or gradient that is not finite; the update was skipped",
            "lower learning_rate, scale rewards and observations down, or set normalize_observation",
        ),
    },
    ("gradient", "fault"): {
        "gradient_zero": (
            "the gradient is exactly zero",
            "look whether the loss depends on the parameters: units that are all off, detached outputs, coefficients "
            "of 0",
        ),
    },
    ("update", "fault"): {
        "weights_unmoved": (
            "the weights do not move although the gradient is not zero",
            "raise learning_rate, and look whether the optimiser holds the parameters that compute the loss",
        ),
        "weights_not_finite": (
            "the weights are not finite and were not published",
            "lower learning_rate or max_grad_norm, and scale observations and rewards down",
        ),
    },
    ("learning", "note"): {
        "exploration_stays": (
            "by the end of the run most actions will still be random",
            "let epsilon fall over a part of the run (exploration_fraction, without epsilon_decay), or give it more "
            "steps",
        ),
        "gradient_grew": (
            "the gradient is a thousand times as steep as in the first batches with a reward",
            "lower learning_rate or max_grad_norm, and scale rewards down",
        ),
        "reward_scale": (
            "errors are far beyond what the loss can take: values do not get to where rewards are",
            "scale rewards down, let values be told in units of returns (normalize_return), or raise kappa or "
            "max_grad_norm",
        ),
        "critic_explains_nothing": (
            "values tell nothing of what is earned (explained variance), and no policy earns more than a random player",
            "lower learning_rate, raise value_coefficient, or show the critic what rewards depend on (central_critic)",
        ),
        "no_better_than_random": (
            "after half of the run no policy earns more than a random player",
            "give the run more steps, explore more (epsilon, entropy_coefficient, curiosity), or begin with a smaller "
            "world, in which chance finds a reward",
        ),
        "entropy_collapsed": (
            "the policy does nearly always the same, and earns no more than a random player",
            "raise entropy_coefficient, lower learning_rate, or scale rewards down",
        ),
        "forgotten": (
            "most of what had been learned is lost again",
            "lower learning_rate or let it fall (anneal_learning_rate), and keep more rows (buffer_capacity, "
            "segments); `--checkpoint best` has what was best",
        ),
    },
    ("learning", "fault"): {
        "target_never_updated": (
            "the target network is to be updated after more train steps than the run will make",
            "lower target_update_freq, raise replay_ratio, or give the run more steps",
        ),
        "values_impossible": (
            "values are far beyond what the rewards seen and gamma allow: the estimate feeds on itself",
            "update the target network less often (target_update_freq), lower learning_rate, and train less for each "
            "row (replay_ratio, epochs)",
        ),
        "values_at_the_end": (
            "values, counted from the middle of v_min and v_max, lie at the end of what can be told, and returns "
            "beyond it",
            "let v_min and v_max span the discounted returns, or scale rewards",
        ),
    },
}
"""Layer and level -> finding -> what it says, and its remedy."""
FINDINGS = {name: Diagnostic(name, *place, *told) for place, found in _FOUND.items() for name, told in found.items()}
BOUNDED = ("values_impossible", "values_at_the_end", "gradient_grew", "reward_scale")
"""Those whose number and bound a learner tells."""
OF_RUNS = (
    "buffer_smaller",
    "exploration_stays",
    "target_never_updated",
    "critic_explains_nothing",
    "no_better_than_random",
    "entropy_collapsed",
    "forgotten",
)
"""Those that no batch shows: what is foreseen by the configuration, and what episodes earn."""


def counter(name: str, policy: str) -> str:
    """The counter of the looks in which a finding held; 0 again when it no longer does."""
    return f"health.{name}.{policy}"


def counters(policy: str) -> list[str]:
    """All counters of a policy's health."""
    others = {*OF_ACTORS, *OF_RUNS}
    return [f"{LOOKED_AT}.{policy}", *(counter(name, policy) for name in FINDINGS if name not in others)]


def bound_counters(name: str, policy: str) -> tuple[str, str]:
    """Of one of `BOUNDED`: its number when it was found last, without its sign, and the bound that it broke."""
    return f"finding_value.{name}.{policy}", f"finding_limit.{name}.{policy}"


def outside_counters(policy: str, agent: str) -> tuple[str, str]:
    """Of an actor: the first number of that agent that lay outside, and in which step."""
    return f"outside_value.{policy}/{agent}", f"outside_step.{policy}/{agent}"


def cut_counter(policy: str, name: str) -> str:
    """Of an actor: it says only that a world tells a number of this name, which is left out."""
    return f"{INFOS_CUT}.{policy}/{ascii(name)[1:-1][:48]}"


def describe(policy: str, finding: Diagnostic, told: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """As views and summaries have it, with what is `told` besides: `agent`, `value` and `step` of a number outside its
    space, `value` and `bound` of what is measured, `names` of what is left out."""
    says = finding.says
    if "bound" in told:
        says += f": {told['value']:.4g}, where {told['bound']:.4g} is the limit"
    elif "step" in told:
        says += f": {told['value']:g} (agent {told['agent']}, step {told['step']})"
    elif told.get("names"):
        says += f": {', '.join(told['names'])}"
    return {
        "policy": policy,
        "layer": finding.layer,
        "level": finding.level,
        "finding": finding.name,
        "says": says,
        "remedy": finding.remedy,
        **told,
    }


def _outside(policy: str, actors: Pages) -> dict[str, Any]:
    for page in actors.values():
        places = [name.partition("/")[2] for name in page if name.startswith(f"outside_step.{policy}/")]
        for value, step, agent in ((*outside_counters(policy, one), one) for one in places):
            if page[step] and value in page and agent.isprintable():  # as far as is known who tells it
                return {"agent": agent, "value": page[value], "step": int(page[step]) - 1}
    return {}


def findings_of(
    policies: Iterable[str],
    learners: Pages,
    actors: Pages = MappingProxyType({}),
    of_run: Mapping[str, Mapping[str, Excess]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """What holds of `policies`, or held when a learner of them ended, and what is found of the run as a whole
    (`of_run`): faults before notes, the lowest layer first."""
    found = []
    for policy in policies:
        for name, one in FINDINGS.items():
            if name in of_run.get(policy, {}):
                value, bound = of_run[policy][name]
                found.append(describe(policy, one, {"value": value, "bound": bound}))
            having = [
                page for page in (actors if name in OF_ACTORS else learners).values() if page.get(counter(name, policy))
            ]
            if having and name == OUTSIDE:
                found.append(describe(policy, one, _outside(policy, actors)))
            elif having and name == INFOS_CUT:
                begin = cut_counter(policy, "")
                names = {place.removeprefix(begin) for page in having for place in page if place.startswith(begin)}
                found.append(describe(policy, one, {"names": sorted(filter(str.isprintable, names))[:CUT]}))
            elif having and name in BOUNDED:
                keys = zip(("value", "bound"), bound_counters(name, policy), strict=True)
                found.append(describe(policy, one, {key: having[-1][place] for key, place in keys}))
            elif having:
                found.append(describe(policy, one))
    return sorted(found, key=lambda one: (one["level"] != "fault", LAYERS.index(one["layer"])))


def batches_checked(policy: str, learners: Pages) -> int:
    """Batches of `policy` that all incarnations looked at."""
    return sum_counters(learners.values(), f"{LOOKED_AT}.{policy}")
