"""The `rookery` command: which commands there are, and where. Each is imported when it is named, so that help and a
shell's completions do not wait for all of them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from itertools import chain

import click
from click.shell_completion import CompletionItem

from launch.cli.exec import BECOMES, become
from protocol import RELEASE
from protocol.errors import one_sentence

_SECTIONS: dict[str, dict[str, tuple[str, str] | None]] = {
    "Train": {
        "train": ("cli.train:train", "Trains on this machine: starts all workers, watches them, ends them."),
        "presets": ("cli.presets:presets", "Lists the ready-made configurations, or prints one."),
        "new": ("cli.new:new", "Writes a project NAME that runs as it is: an environment, a configuration, a test."),
        "env": (
            "cli.doctor:env",
            "Says what an environment is, how fast it steps, what is suspicious in it, and how to begin with it.",
        ),
        "model": (
            "cli.doctor:model",
            "Says what each policy's network is made of, and what a row costs.",
        ),
        "import": (
            "cli.import_weights:import_weights",
            "Writes the weights in a file of torch's (.pt) as safetensors, which runs start from.",
        ),
        "sweep": (
            "sweeps.command:sweep",
            "Runs all combinations of settings and seeds in FILE.yaml, or those that a search draws.",
        ),
        "pbt": (
            "sweeps.command:pbt",
            "Trains a population side by side; the worst take over from the best, and explore from there.",
        ),
    },
    "Look at a run": {
        "status": ("cli.status:status", "How a run is doing: workers, rates, lag, waits, and what it waits for."),
        "page": None,
        "logs": (
            "local.logs:logs",
            "Prints what the workers of a run wrote, in the order of time.",
        ),
        "plot": (
            "cli.plot:plot",
            "Draws returns with evaluations, loss, lag and throughput of RUNS.",
        ),
        "evaluate": None,
        "watch": None,
        "play": None,
        "doctor": (
            "cli.doctor:doctor",
            "Says whether this machine can carry a run, which layer of learning fails first, and what to do.",
        ),
    },
    "Change a run": {
        "roster": (
            "cli.roster:roster",
            "Changes policies, agents and environments of a run that goes on.",
        )
    },
    "Take from a run": {"export": None, "dataset": None},
    "Several machines": {
        "hosts": ("cluster.hosts:hosts", "Runs on several machines, which a YAML file names."),
        "k8s": ("cluster.k8s:k8s", "Runs on Kubernetes."),
        "keys": ("cli.keys:keys", "Keys with which workers on several machines know each other."),
    },
    "One worker of a run": {
        "coordinator": (
            "cli.train:coordinator",
            "The coordinator of one run, for learners and actors that are started by hand.",
        ),
        **dict.fromkeys(("learner", "actor", "relay", "evaluator", "hooks", "simulate", "bridge")),
    },
    "This machine": {
        "docs": ("cli.presets:docs", "Opens the documents in a browser, from this machine and without a network."),
        "bench": None,
        "clean": ("cli.doctor:clean", "Removes shared memory that dead processes left; what is in use stays."),
    },
}
"""Commands as they are listed, each with where it is and its first sentence; None: it becomes another program."""
COMMANDS = dict(chain.from_iterable(section.items() for section in _SECTIONS.values()))
_DOES = {name: found[1] if found else f"{BECOMES[name][1]}." for name, found in COMMANDS.items()}


class _Group(click.Group):
    """Every error of ours is one sentence and its own exit code."""

    def invoke(self, ctx: click.Context) -> object:
        with one_sentence():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, which looks for what an unknown word may mean among what it holds."""
        if args and args[0] not in COMMANDS:
            self.commands = {name: command(name) for name in COMMANDS}
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """As they are listed."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imported now; None: there is none."""
        return command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By sections, with whole first sentences, in columns that begin at the same place."""
        width = max(map(len, COMMANDS))
        for section, names in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:{width}}", _DOES[name]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click does, which would import all of them for what they do."""
        named = [CompletionItem(name, help=does) for name, does in _DOES.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]


@cache
def command(name: str) -> click.Command:
    """The command that is called so."""
    found = COMMANDS[name]
    if found is None:
        return _hand_over(name, *BECOMES[name])
    module, _, attribute = found[0].partition(":")
    loaded: click.Command = getattr(import_module(f"launch.{module}"), attribute)
    return loaded


def _hand_over(name: str, module: str, does: str) -> click.Command:
    """A command that becomes another executable."""

    @click.command(
        name=name,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
        help=f"{does}.",
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def run(arguments: tuple[str, ...]) -> None:
        become(module, arguments)

    return run


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(RELEASE, prog_name="rookery")
def main() -> None:
    """Asynchronous multi-agent reinforcement learning by separate workers.

    \b
    rookery train                       the default run, on this machine
    rookery train cartpole --json       another preset, with its summary
    rookery presets                     what is ready-made
    """
