"""`rookery k8s`: from a configuration to what `kubectl` applies."""

from __future__ import annotations

import re
from pathlib import Path

import click

from launch.cli.options import Configured
from launch.config_loader import load
from launch.kubernetes.overlay import Placement, render, way_to, write
from launch.run_plan import outline_of
from protocol.errors import ConfigurationError

PLAIN = Placement("run")
"""With all defaults."""


@click.group()
def k8s() -> None:
    """Runs on Kubernetes."""


@k8s.command("render", cls=Configured)
@click.argument("source", default="treasure-hunt", metavar="[PRESET or FILE.yaml]")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Change one key; may be repeated.")
@click.option("--name", default="", help="The run's folder on the volume, and the overlay; default: the source's name.")
@click.option("--namespace", default="rookery", show_default=True, help="Give each run that goes on at a time its own.")
@click.option("--image", default=PLAIN.image, show_default=True, metavar="NAME:TAG", help="Of the workers.")
@click.option(
    "--cuda-image",
    default=PLAIN.cuda_image,
    show_default=True,
    metavar="NAME:TAG",
    help="Of the learners, with the component gpu.",
)
@click.option(
    "--actors",
    default=4,
    show_default=True,
    type=click.IntRange(min=0),
    help="Pods of actors; with keda as many as it wants.",
)
@click.option(
    "--actors-per-pod",
    default=1,
    show_default=True,
    type=click.IntRange(min=1, max=8),
    help="More than one share memory, with a relay: weights cross the network once for all.",
)
@click.option(
    "--simulator", default="", metavar="IMAGE", help="Of a simulator beside each actor (environment external)."
)
@click.option("--with", "components", multiple=True, metavar="COMPONENT", help="Of k8s/components; may be repeated.")
@click.option("--k8s", "place", default="k8s", show_default=True, type=click.Path(path_type=Path), help="With base/.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Default: k8s/overlays/NAME.")
def command(
    source: str,
    settings: tuple[str, ...],
    name: str,
    namespace: str,
    image: str,
    cuda_image: str,
    actors: int,
    actors_per_pod: int,
    simulator: str,
    components: tuple[str, ...],
    place: Path,
    out: Path | None,
) -> None:
    """Makes an overlay for any configuration.

    \b
    rookery k8s render spread --set actors=50 --actors 10 --with spot
    kubectl apply -k k8s/overlays/spread
    """
    name = name or re.sub("[^a-z0-9]+", "-", Path(source).stem.lower()).strip("-")
    folder = out or place / "overlays" / name
    known = sorted(path.name for path in (place / "components").glob("*") if path.is_dir())
    for component in components:
        if component not in known:
            raise ConfigurationError("kubernetes_component_unknown", value=component, file=place, choices=list(known))
    run = load(source, settings)
    actors = min(actors, run.actors // actors_per_pod) if not _given("actors") else actors
    placement = Placement(name, namespace, image, cuda_image, actors, actors_per_pod, simulator, components)
    write(render(run, outline_of(run), placement, way_to(place, folder)), folder)
    click.echo(f"wrote {folder}; kubectl apply -k {folder}")


def _given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"
