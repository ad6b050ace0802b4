"""What others rely on: public names, commands and their options. A change here is a decision."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flatout
import flatout_agent
from flatout import commands

NAMES = [
    "Checkpoint",
    "__version__",
    "device",
    "find_batch_size",
    "image_loader",
    "loader",
    "memory",
    "to_device",
    "train_step",
]
OPTIONS = {
    "bench": ["--cached", "--device", "--expect", "--json", "--only", "--python", "--quick"],
    "doctor": ["--deep", "--json", "--machine", "--python", "--redact"],
    "eject": ["--json", "--plan"],
    "env": [
        "--apply",
        "--for",
        "--force",
        "--json",
        "--manager",
        "--mirror",
        "--python",
        "--shell",
        "--write",
        "--yes",
    ],
    "explain": ["--json", "--lang", "--python"],
    "profile": [
        "--compare",
        "--fail-over",
        "--json",
        "--no-bench",
        "--out",
        "--plan",
        "--python",
        "--skip",
        "--steps",
        "--stop",
        "--trace",
    ],
    "run": [
        "--exact",
        "--json",
        "--live",
        "--no-plan",
        "--only",
        "--plan",
        "--python",
        "--quiet",
        "--skip",
        "--steps-left",
    ],
    "tune": [
        "--allow",
        "--budget",
        "--exact",
        "--json",
        "--only",
        "--plan",
        "--python",
        "--seed",
        "--skip",
        "--steps",
        "--steps-left",
    ],
}


def test_public_names_of_flatout() -> None:
    assert flatout.__all__ == NAMES
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc|\.dev)\d+)?", flatout.__version__)
    for name in NAMES:
        assert getattr(flatout, name).__doc__ is not None, name
    assert set(NAMES) <= set(dir(flatout))
    with pytest.raises(AttributeError, match="tune_step"):
        _ = flatout.tune_step


def test_public_names_of_the_agent() -> None:
    assert ast_names(Path(inspect.getfile(flatout_agent))) == set()


def test_commands() -> None:
    assert commands.names() == sorted(OPTIONS)


@pytest.mark.parametrize("command", OPTIONS)
def test_options(command: str) -> None:
    arguments = [command, "--help"]
    shown = CliRunner().invoke(commands.application(command), arguments, prog_name="flatout")
    assert shown.exit_code == 0
    found = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", shown.stdout, flags=re.MULTILINE))
    assert sorted(found - {"--help"}) == OPTIONS[command]


@pytest.mark.parametrize("command", OPTIONS)
def test_help(command: str) -> None:
    line = commands.summary(command)
    assert line.endswith(".")
    assert len(line) <= 100


def ast_names(path: Path) -> set[str]:
    """Names that the file itself binds at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {item.asname or item.name for item in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found
