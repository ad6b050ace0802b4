"""README is short, names only commands that exist, and says the same in English and Chinese."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import typer

from flatout import commands
from flatout.knowledge import boosts
from law.sources import script_of_docs

LINES = 130
STATUS = "Windows and macOS code is type-checked and has not been run"
PAGES = ("README.md", "README.zh-CN.md")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s+# .*")
FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)*(?:x|%| ms| s\b)?")
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def code(page: str) -> list[str]:
    """The lines of all code blocks, without comments."""
    lines = (line for block in FENCED.findall(page) for line in block[1].splitlines())
    return [COMMENT.sub("", line) for line in lines]


def calls(page: str) -> list[str]:
    """Every call of flatout: in code blocks and in the text."""
    shell = (block[1] for block in FENCED.findall(page) if block[0] == "sh")
    lines = [COMMENT.sub("", line) for block in shell for line in block.splitlines()]
    words = [*lines, *INLINE.findall(FENCED.sub("", page))]
    return [text for text in words if text.startswith("flatout ")]


def figures(page: str) -> Counter[str]:
    """The numbers of the text with their units; a list counts its items, so these are left out."""
    text = re.sub(r"^\d+\. ", "", FENCED.sub("", page), flags=re.MULTILINE)
    return Counter(FIGURE.findall(LINK.sub("]", text)))


def inline(page: str) -> Counter[str]:
    return Counter(INLINE.findall(FENCED.sub("", page)))


def targets(page: str) -> list[str]:
    return [target for target in LINK.findall(page) if target not in PAGES]


@cache
def options(command: str) -> set[str]:
    """The options of a command. Raises KeyError where there is no such command."""
    if command not in commands.names():
        raise KeyError(command)
    known = typer.main.get_command(commands.application(command)).commands[command]
    parameters = [*known.params]
    for item in getattr(known, "commands", {}).values():
        parameters += item.params
    return {option for item in parameters for option in item.opts}


def unknown(call: str) -> str | None:
    """What a call names that the command line does not have; None: nothing."""
    _, name, *words = shlex.split(call)
    try:
        known = options(name)
    except KeyError:
        return name
    own: list[str] = []
    for word in words:
        if word.endswith(".py") or word in ("--", "-m"):
            break  # what follows belongs to the script
        own.append(word)
    return next((word for word in own if word.startswith("-") and word not in known), None)


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, root: Path) -> str:
    return (root / request.param).read_text(encoding="utf-8")


def test_it_is_short(page: str) -> None:
    assert len(page.splitlines()) <= LINES


def test_its_commands_exist(page: str) -> None:
    assert {call: word for call in calls(page) if (word := unknown(call))} == {}


def test_it_names_every_command(page: str) -> None:
    assert {shlex.split(call)[1] for call in calls(page)} == set(commands.names())


def test_the_guides_name_only_commands_that_exist(root: Path) -> None:
    guides = sorted((root / "docs").glob("guide-*.md"))
    assert len(guides) >= 5
    for guide in guides:
        text = guide.read_text(encoding="utf-8")
        assert {call: word for call in calls(text) if (word := unknown(call))} == {}, guide.name


def test_the_status_stands_in_the_first_screen(root: Path) -> None:
    first = (root / PAGES[0]).read_text(encoding="utf-8").splitlines()[:16]
    assert STATUS in " ".join(first)


def test_english_and_chinese_say_the_same(root: Path) -> None:
    english, chinese = ((root / name).read_text(encoding="utf-8") for name in PAGES)
    assert code(english) == code(chinese)
    assert figures(english) == figures(chinese)
    assert {item for item in inline(english) if " " in item} == {
        item for item in inline(chinese) if " " in item
    }
    assert targets(english) == targets(chinese)
    assert english.count("\n## ") == chinese.count("\n## ")


def test_figures_are_those_of_the_measurements(root: Path) -> None:
    """What README says was measured stands in docs/measured.md too."""
    readme = (root / PAGES[0]).read_text(encoding="utf-8")
    section = readme.partition("\n## Measured\n")[2].partition("\n## ")[0]
    measured = figures((root / "docs/measured.md").read_text(encoding="utf-8"))
    assert set(figures(section)) - set(measured) == set()


def test_pictures_and_tables_are_up_to_date(root: Path) -> None:
    """The recording is drawn from what was printed, the packages from the import contracts."""
    docs = root / "docs"
    printed = (docs / "assets/demo.txt").read_text(encoding="utf-8")
    pictures = {
        "assets/demo.svg": script_of_docs("recording").picture(printed),
        "assets/architecture.svg": script_of_docs("drawing").picture(),
    }
    wanted = {**pictures, **script_of_docs("tables").tables()}
    there = {name: (docs / name).read_text(encoding="utf-8") for name in wanted}
    assert [name for name in wanted if there[name] != wanted[name]] == [], "run `make docs`"
    for drawing in pictures.values():
        assert drawing.count("http") == 1, "its name space, and nothing that would be loaded"


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ("flatout tune --budget 5m train.py --epochs 3", None),
        ("flatout run -- torchrun --nproc-per-node 2 train.py", None),
        ("flatout env install --for gpu=rtx4090", None),
        ("flatout tune --bugdet 5m train.py", "--bugdet"),
        ("flatout tun train.py", "tun"),
    ],
)
def test_unknown_words_are_seen(call: str, word: str | None) -> None:
    assert unknown(call) == word


def test_the_guide_names_every_boost_with_its_risk(root: Path) -> None:
    guide = (root / "docs/guide-tune.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+)[^|]*\| (.+) \|$", guide, flags=re.MULTILINE)
    risks = {boost_id: row for row, cell in rows for boost_id in INLINE.findall(cell)}
    alike = {"exact": {"exact", "the"}, "rounding": {"rounding"}}
    assert risks.keys() == {boost.id for boost in boosts.every()}, "the table of docs/guide-tune.md"
    for boost in boosts.every():
        assert risks[boost.id] in alike[boost.risk.value], boost.id


def test_the_architecture_names_every_room(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract.get("containers", [""])[0] in ("flatout", "flatout_agent", "flatout_train"):
            rooms = {room.strip() for layer in contract["layers"] for room in layer.split("|")}
            assert {room for room in rooms if f"`{room}`" not in text} == set(), contract["name"]


def test_the_architecture_names_only_files_that_exist(root: Path) -> None:
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|tests|benchmarks)/[\w./]+)`", text)
    assert len(paths) > 30
    assert [path for path in paths if not (root / path).exists()] == []
