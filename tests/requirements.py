"""Which requirements have a test, and which have none: `python -m tests.requirements`.

In flows: the names and docstrings of the test functions under tests/. A test carries its requirements' numbers in
either: `test_race_for_a_gem_has_one_winner_D3`, or a docstring with `D3`, `D1, D2` or `K1..K4` in it. A test that is
skipped always or expected to fail proves nothing and does not count.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["REQUIREMENTS", "main", "numbers", "scan"]

REQUIREMENTS = {
    "A1": "one actor, a learner per agent and a coordinator, separate processes, started in any order",
    "A2": "stopped learners slow no actor (drop_oldest and replay)",
    "A3": "each agent's rows, model and optimiser are its own",
    "A4": "a slow learner leaves the others' rate alone",
    "A5": "shared state is models, versions, rings, counters and the stop flag, no more",
    "A6": "worlds and models are built inside the worker, from configuration",
    "A7": "works without fork; parallel actors, each with its own world and one thread",
    "A8": "bulk by shared memory, control by messages",
    "A9": "--sequential runs the same configuration in one process without a queue",
    "A10": "num_learner_processes: one per policy, or fewer that share",
    "B1": "ring payload has the documented types and bytes",
    "B2": "ring overwrites its oldest; counters are 64-bit",
    "B3": "too little data is not-ready, never an error",
    "B4": "samples have the documented fields and shapes",
    "B5": "stacks and successors never cross an episode's end",
    "B6": "no sample crosses the write head",
    "B7": "indices are unique within a batch",
    "B8": "memory is zero when created",
    "B9": "attaching gives the same ring and creates nothing",
    "B10": "names are unique, also against a dead process's leftovers",
    "B11": "only the holder of the exclusive lock unlinks; nothing stays after any death",
    "B12": "a stranger that attaches and exits leaves the memory alive",
    "B13": "no torn row reaches a reader",
    "B14": "row interface: add, clear, state, index, save and load",
    "B15": "(1, F) is flattened at the boundary; any other mismatch raises",
    "B16": "rows overwritten, starvation and fill are counted",
    "B17": "batches are allocated once; what is returned is a copy",
    "C1": "publication by double buffer or snapshot, snapshot by default",
    "C2": "weights can be pulled into a private copy",
    "C3": "the slot flips after the whole copy; versions grow by one",
    "C4": "no torn read against a hostile publisher, in every mode",
    "C5": "network, target, epsilon and version arrive as one",
    "C6": "memory is twice or once the weights, exactly",
    "C7": "the other slot can be started warm",
    "C8": "epsilon reaches the actor within one sync",
    "C9": "the optimiser after a weight copy is fresh and refers to the new parameters",
    "C10": "copied tensors own their memory; gradients flow after a copy",
    "C11": "publishing copies tensors and never moves the module",
    "C12": "actors sync each sync_interval; staleness is reported and bounded",
    "C13": "the actor's first step uses the learner's first weights",
    "D1": "entities change first, then agents",
    "D2": "an agent sees what the one before it did",
    "D3": "one of two agents collects, with no double reward",
    "D4": "simultaneous worlds observe all before anyone acts",
    "D5": "the stack acted on is the stack sampled",
    "D6": "acting takes no gradients and runs in evaluation mode",
    "D7": "the next observation follows the act; the end is stored on the last step",
    "D8": "stop, end of episode and interrupt are obeyed within a turn",
    "D9": "total reward and each agent's return are reported",
    "E1": "IQN loss equals the reference's on a fixed batch; DQN and PPO exist",
    "E2": "gradients are clipped to the norm",
    "E3": "the target is updated once each target_update_freq, softly or hard",
    "E4": "epsilon follows its closed form",
    "E5": "arrays become tensors of type and device; wrong input is refused clearly",
    "E6": "a batch without a valid row makes no step and no NaN",
    "E7": "a starved learner sleeps and wakes at once",
    "E8": "the replay ratio is bounded and reported",
    "E9": "devices are chosen in order, one or spread over all",
    "E10": "it learns: loss falls, parameters move, reward beats random",
    "E11": "on-policy losses are corrected for lag",
    "F1": "unknown keys are errors and every accepted key does something",
    "G1": "a dead learner is restarted from its checkpoint, never from random",
    "G2": "a dead actor is restarted while learners train on",
    "G3": "errors and tracebacks reach the coordinator",
    "G4": "signals stop all within the deadline, with a meaningful exit code",
    "G5": "starting is bounded when a child dies at once",
    "G6": "locks have deadlines, an order and a watchdog",
    "G7": "kill -9 inside a critical section blocks nobody",
    "G8": "memory, files and descriptors stay flat",
    "G9": "a learner's crash leaves world and other agents alone",
    "H1": "doctor checks from data to update and names the first broken layer",
    "H2": "batch statistics, loss, gradient, versions and staleness are logged",
    "H3": "a log file per worker, each under its right name",
    "H4": "rates and waits per worker; learners log on their own steps",
    "I1": "the tree of spaces round-trips through JSON, nested too",
    "I2": "evaluation-only parts reach learners and no deployed policy",
    "I3": "only non-atomic actions may arrive in parts",
    "I4": "payoff structure is validated",
    "I5": "agents of a population join and leave within an episode",
    "I6": "built-in worlds are batched and start on any worker",
    "I7": "external simulators are launched, capped, and relaunched after a crash",
    "I8": "external worlds push observations and all active ones are answered",
    "I9": "worlds have IDs; collections have a structure",
    "I10": "a gymnasium world is a special case",
    "I11": "teams, symmetry and payoffs come from the world",
    "I12": "worlds that reset by hand and send when they can are served",
    "J1": "exploring, evaluating, fixed and auxiliary roles",
    "J2": "policies are mapped to agents, many to one and one to many",
    "J3": "weights change only in sync; nothing new moves no bytes",
    "J4": "sending is fire-and-forget for the actor",
    "J5": "learners are driven by data, static data included",
    "J6": "trainers iterate, nest and form barriers",
    "J7": "self-play and leagues over exported frozen policies",
    "J8": "the transport hides behind an interface",
    "J9": "the same frame is stored once on a node and crosses once",
    "K1": "one turn is one row of a group's segments; groups alternate",
    "K2": "groups own their halves of the rows",
    "K3": "slots are ordered by environment, then agent",
    "K4": "no sample from unwritten or mixed slots; surplus is masked",
    "K5": "segments span episode ends",
    "K6": "recurrent state is zeroed at ends, acting and training alike",
    "K7": "advantages never cross an end",
    "K8": "desynchronised starts spread the phases evenly",
    "K9": "priorities and importance weights follow the formula",
    "K10": "stepping overlaps inference",
    "K11": "sizes that do not divide are refused with the remedy",
    "L1": "lock-step equals sequential, bit for bit",
    "L2": "speed against sequential is reported",
    "L3": "a long soak has no deadlock and no race",
    "L4": "messages are batched and nothing is locked per step",
    "L5": "documents: interface, examples, troubleshooting, tuning",
    "L6": "evaluation and checkpoints follow global counters",
    "L7": "sequential and distributed can be compared step by step",
    "L8": "further optimisations are measured before adoption",
    "Z1": "a late subscriber gets current weights",
    "Z2": "drops are counted; the newest weights win",
    "Z3": "sending without a peer is bounded",
    "Z4": "messages have a strict header and raw buffers; bad or old ones are rejected",
    "Z5": "memory and TCP give identical batches",
    "U1": "no lock that protects nothing",
    "U2": "the cursor moves after the row is written",
    "U3": "loading into shared memory is never trusted to be atomic",
    "U4": "epsilon crosses processes",
    "U5": "no configuration key without effect",
    "U6": "learners are rate-limited",
    "U7": "ends are stored and stop bootstrapping",
    "U8": "the boundary size is not-ready, not an error",
    "U9": "no successor from across the write head",
    "U10": "n-step returns sum n rewards",
    "U11": "actor and learner stack the same history",
    "U12": "a reader's exit unlinks nothing",
    "U13": "start and stop are bounded when a child dies",
    "U14": "all memory is unlinked, and only by who may",
    "U15": "monitoring, restarts, errors and true losses",
    "U16": "waiting is no polling",
    "U17": "no lock per action or row",
    "U18": "signal handlers only set a flag",
}

_NUMBER = re.compile(r"(?<![A-Za-z0-9.-])([A-Z])([1-9]\d?)(?:\s*(?:\.\.|-|–)\s*\1([1-9]\d?))?(?![A-Za-z0-9]|\.\d|-\d)")
_ORDINARY = re.compile(r"\b(?:L[12][ -](?:norm|loss|cache|distance|penalty|regulari[sz]ation))", re.IGNORECASE)


def numbers(text: str) -> set[str]:
    """The requirements that a test's name or docstring names: single, listed or as a range."""
    found: set[str] = set()
    for letter, first, last in _NUMBER.findall(_ORDINARY.sub(" ", text.replace("_", " "))):
        found |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return found & REQUIREMENTS.keys()


@cache
def scan(folder: Path) -> dict[str, list[str]]:
    """Requirement -> the tests (`file::function`) that name it."""
    covered: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for test in _tests(ast.parse(path.read_text(encoding="utf-8"))):
            for number in numbers(f"{test.name}\n{ast.get_docstring(test) or ''}"):
                covered.setdefault(number, []).append(f"{path.relative_to(folder)}::{test.name}")
    return {number: covered[number] for number in REQUIREMENTS if number in covered}


def _tests(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
            if marks.isdisjoint({"pytest.mark.skip", "pytest.mark.xfail"}):
                yield node


def main(arguments: list[str] | None = None) -> None:
    """Prints what has no test yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description="Requirements without a test.")
    parser.add_argument("--json", action="store_true", help="both lists, with the tests of each covered requirement")
    chosen = parser.parse_args(arguments)
    covered = scan(Path(__file__).parent)
    missing = [number for number in REQUIREMENTS if number not in covered]
    if chosen.json:
        print(json.dumps({"missing": missing, "covered": covered}, indent=2))
        return
    for number in missing:
        print(f"{number:4} {REQUIREMENTS[number]}")
    print(f"{len(missing)} of {len(REQUIREMENTS)} requirements have no test")


if __name__ == "__main__":
    main()
