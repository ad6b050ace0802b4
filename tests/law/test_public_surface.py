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
    "CheckpointError",
    "NonfiniteError",
    "UsageError",
    "__version__",
    "device",
    "explain",
    "export",
    "image_loader",
    "live",
    "loader",
    "to_device",
    "train_step",
]
SCRIPT = "--json --only --plan --python --skip --steps-left"
OPTIONS = {
    "bench": "--device --expect --json --only --python --quick",
    "compare": "--fail-above --json",
    "doctor": "--deep --fail-on --json --machine --python --redact",
    "eject": "--json --no-run --plan",
    "env": "",
    "env docker": "--for --json --mirror --python",
    "env hook": "--json --remove",
    "env install": "--for --json --manager --mirror --python",
    "explain": "--json --lang --python",
    "export": (
        "--allow --capture --exact --for --json --limit --model --only --out "
        "--python --skip --threads --weights"
    ),
    "launch": (
        "--account --cancel --dry-run --env --follow --gpus --hosts --image --json --list "
        "--name --no-follow --no-plan --nodes --partition --plan --python --queue --ranks "
        "--restarts --set --time --yes"
    ),
    "memory": "--gpus --json --limit --memory --nodes --python",
    "monitor": (
        "--every --follow --json --once --port --prometheus --remote --replay --slurm --speed --web"
    ),
    "profile": "--fail-above --json --no-bench --plan --python --skip --steps --stop",
    "run": (
        "--exact --gpus --live --no-plan --no-trial --nodes --nodes-wait --quiet "
        f"--ranks --restarts --scale-batch {SCRIPT}"
    ),
    "tune": f"--budget --exact --seed --steps --why {SCRIPT}",
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
    assert commands.names() == sorted(name for name in OPTIONS if " " not in name)


def shown(command: str, *arguments: str) -> str:
    words = command.split()
    application = commands.application(words[0])
    done = CliRunner().invoke(
        application, [*words, *arguments], prog_name="flatout", env={"COLUMNS": "80"}
    )
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("command", OPTIONS)
def test_options(command: str) -> None:
    found = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", shown(command, "--help"), flags=re.MULTILINE)
    assert sorted(set(found) - {"--help"}) == sorted(OPTIONS[command].split())


@pytest.mark.parametrize("command", OPTIONS)
def test_help_fits_80_columns_in_whole_sentences(command: str) -> None:
    text = shown(command, "--help")
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert text.isascii()
    first = text.split("\n\n")[1].strip()
    assert first.endswith(".") and "\n" not in first
    assert "\n  Examples:\n" in text
    assert re.search(r"<[a-z]+[a-z\[\] ]*>", text) is None  # a type where a name should stand


def test_commands_are_listed_on_one_line_each() -> None:
    lines = CliRunner().invoke(commands.application(), ["--help"], prog_name="flatout").stdout
    for name in commands.names():
        entry = commands.entry(name)
        assert entry.group in commands.GROUPS, name
        assert f"  {name.ljust(7)}  {entry.summary}\n" in lines
    headings = [line[:-1] for line in lines.splitlines() if re.fullmatch(r"\w[\w ]+:", line)]
    assert headings == [*commands.GROUPS, "Options"]


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
