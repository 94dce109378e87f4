"""What the documents promise: every key with its meaning, every command, and a section for each task a user has."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import rookery
from launch.cli.main import COMMANDS, command
from launch.config_loader import load
from protocol.config.run import parse_run
from tests import command_reference as commands
from tests import gallery
from tests.configuration_reference import PATH, SECTIONS, explains, keys, mentions, reference
from tests.tools import ROOT

WIDTH = 120
FOLDERS = ("launch", "workers", "protocol", "k8s", "tests")
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    if "node_modules" not in path.parts
)
WRITTEN = [path for path in DOCUMENTS if path != commands.PATH]
PLACES = {
    "interface": ("launch/docs/guides/python.md", "What a run offers"),
    "every key": ("launch/docs/start/configure.md", "Change the configuration"),
    "the wire": ("protocol/README.md", "Messages"),
    "examples": ("README.md", "Train something else"),
    "an environment": ("launch/docs/environments/own.md", "Train your own environment"),
    "an algorithm": ("launch/docs/contribute/algorithm.md", "Add an algorithm"),
    "a simulator": ("launch/docs/environments/simulators.md", "Which side has the clock"),
    "troubleshooting": ("launch/docs/guides/troubleshooting.md", "Troubleshooting"),
    "no learning": ("launch/docs/guides/diagnose.md", "Why does my run not learn?"),
    "tuning": ("launch/docs/guides/performance.md", "Keep the lag low"),
    "many machines": ("launch/docs/machines/hosts.md", "Keys of hosts.yaml"),
    "resuming": ("launch/docs/guides/resume.md", "Change keys on the way"),
    "export": ("launch/docs/guides/export.md", "Inputs and outputs"),
    "from PufferLib": ("launch/docs/moving/pufferlib.md", "From PufferLib"),
    "from RLlib": ("launch/docs/moving/rllib.md", "From RLlib"),
    "from Sample Factory": ("launch/docs/moving/sample-factory.md", "From Sample Factory"),
    "from Stable-Baselines3": ("launch/docs/moving/stable-baselines3.md", "From Stable-Baselines3"),
}


README_LINES = 120
PICTURE_BYTES, ALL_PICTURES_BYTES = 100_000, 1_000_000
VALUED = ("--steps", "--seed", "--run-dir", "--replay")
LIBRARIES = ("PufferLib", "RLlib", "Sample Factory", "Stable-Baselines3")


def text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def headings(document: str) -> list[str]:
    """Headings outside fenced blocks."""
    return re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text(document), flags=re.M | re.S), re.M)


def test_there_is_a_section_for_interface_examples_troubleshooting_tuning_and_each_task_L5() -> None:
    assert [what for what, (document, heading) in PLACES.items() if heading not in headings(document)] == []


def test_the_reference_of_the_configuration_is_what_the_types_say_L5() -> None:
    assert PATH.read_text(encoding="utf-8") == reference(), "run python -m tests.configuration_reference"


def test_the_reference_of_the_commands_is_what_they_say() -> None:
    assert commands.PATH.read_text(encoding="utf-8") == commands.reference(), "run python -m tests.command_reference"


def test_each_preset_and_each_algorithm_shows_the_curve_of_a_run() -> None:
    assert gallery.PATH.read_text(encoding="utf-8") == gallery.reference(), "run make gallery"
    pages = {*(ROOT / "launch/docs/algorithms").glob("*.md")}
    assert [page.name for page in pages if "/site/gallery/" not in page.read_text("utf-8")] == ["index.md"]
    assert sum(picture.stat().st_size for picture in gallery.FOLDER.iterdir()) < ALL_PICTURES_BYTES


def test_every_key_says_what_it_means_L5() -> None:
    every = [(section.__name__, *rest) for _, section in SECTIONS for rest in keys(section)]
    assert [(section, key) for section, key, _, meaning in every if not meaning] == []


def test_every_key_is_explained_on_a_page_that_has_it() -> None:
    found = {(name, key): explains(name, key) for name, section in SECTIONS for key, *_ in keys(section)}
    assert {key: page for key, page in found.items() if not mentions(page, key[1])} == {}


def configuration(library: str) -> dict[str, Any]:
    """The configuration on the page "From LIBRARY"."""
    page = text(f"launch/docs/moving/{library.lower().replace(' ', '-')}.md")
    return dict(yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0]))


def test_configuration_for_those_who_come_from_elsewhere_is_valid_L5() -> None:
    assert {parse_run(configuration(library)).policy.algorithm.name for library in LIBRARIES} == {"ppo"}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_configuration_for_those_who_come_from_elsewhere_runs_L5(library: str, tmp_path: Path) -> None:
    path = tmp_path / "moved.yaml"
    path.write_text(yaml.safe_dump(configuration(library)))
    done = rookery.train(str(path), steps=4_000, run_dir=tmp_path / "run", progress=False)
    assert done.complete
    assert all(done.summary["train_steps"].values())


def test_every_command_is_in_a_document_L5() -> None:
    everything = "".join(path.read_text(encoding="utf-8") for path in WRITTEN)
    assert [name for name in COMMANDS if f"rookery {name}" not in everything] == []


def test_commands_and_options_in_the_documents_are_real() -> None:
    for path in DOCUMENTS:
        for line in re.findall(r"rookery [a-z][^`\n]*", path.read_text(encoding="utf-8")):
            name, *words = line.split()[1:]
            found = command(name) if name in COMMANDS else None
            if found is None or found.context_settings.get("ignore_unknown_options"):
                continue
            known = {option for parameter in found.params for option in parameter.opts}
            if isinstance(found, click.Group):
                known |= {o for sub in found.commands.values() for p in sub.params for o in p.opts}
            strange = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)} - known - {"--help"}
            assert not strange, f"{path}: {line}"


def test_every_training_in_the_documents_has_a_valid_configuration() -> None:
    everything = "\n".join(path.read_text(encoding="utf-8") for path in WRITTEN).replace("\\\n", " ")
    for line in dict.fromkeys(re.findall(r"rookery train ([^`\n|&]*)", everything)):
        words = iter(shlex.split(line.partition(" -->")[0], comments=True))
        sources, settings, env = [], [], None
        for word in words:
            if word == "--set":
                settings.append(next(words))
            elif word == "--env":
                env = next(words, None)
            elif word in VALUED:
                next(words, None)
            elif not word.startswith("--"):
                sources.append(word)
        # a run's own file, and that of a new project, which tests/launch/cli/test_new.py loads, are not here
        if not any(source.startswith("runs/") or source == "train.yaml" for source in sources):
            load(sources[0] if sources else None, settings, env=env)


def test_files_modules_and_targets_that_a_document_names_are_there() -> None:
    said = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    files = re.findall(r"(?<![\w/])((?:tests|protocol|workers|launch|k8s)/[\w./-]+\.(?:py|yaml|cpp|js|hpp))", said)
    modules = [name.replace(".", "/") for name in re.findall(r"python -m (tests[\w.]*\w)", said)]
    targets = re.findall(r"(?:^|`)make (\w[\w-]*)", said, re.M)
    made = re.findall(r"^([\w-]+):", text("Makefile"), re.M)
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert [
        name for name in modules if not (ROOT / f"{name}.py").exists() and not (ROOT / name / "__main__.py").exists()
    ] == []
    assert [name for name in targets if name not in made] == []


def test_lines_of_documents_are_at_most_120_long() -> None:
    long = [
        f"{path}:{number} has {len(line)}"
        for path in DOCUMENTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > WIDTH and not line.lstrip().startswith(("|", "<!--"))
    ]
    assert long == []


def test_links_lead_to_files_and_headings_that_are_there() -> None:
    targets = [(path, to) for path in DOCUMENTS for to in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8"))]
    for path, target in targets:
        name, _, anchor = target.partition("#")
        where = (path.parent / name).resolve() if name else path
        if "://" not in target:
            assert where.exists(), f"{path}: {target}"
            assert not anchor or anchor in anchors(str(where.relative_to(ROOT))), f"{path}: {target}"


def test_the_readme_is_short_and_its_picture_small() -> None:
    """A stranger reads it whole."""
    assert len(text("README.md").splitlines()) <= README_LINES
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text("README.md"))
    assert len(pictures) == 1
    assert all((ROOT / picture).stat().st_size < PICTURE_BYTES for picture in pictures)


def test_each_result_of_the_readme_is_in_the_evidence_with_its_command() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([^|]+) \|$", text("README.md").partition("## Results")[2], re.M)
    assert len(rows) == 5
    evidence = text("tests/EVIDENCE.md")
    for given, measured in rows:
        assert given in evidence
        assert [figure for figure in re.findall(r"\d[\d.,]*\d", measured) if figure not in evidence] == [], given


def test_tests_that_documents_name_are_there() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    known = {
        *re.findall(r"^ *def (test_\w+)", code, re.M),
        *(path.stem for path in (ROOT / "tests").rglob("test_*.py")),
    }
    named = {name for path in DOCUMENTS for name in re.findall(r"`[^`\n]*?\b(test_\w+)", path.read_text("utf-8"))}
    assert named - known == set()
    assert named


@cache
def anchors(document: str) -> set[str]:
    """What a link into it may end with."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(document)}
