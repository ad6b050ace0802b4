"""The way in: what is loaded, what belongs to the script, and how wrong usage is told."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import flatout
from commands.called import process
from flatout import commands
from flatout.__main__ import INTERNAL_ERROR, outcome
from flatout.commands import profile
from flatout.nouns.errors import INTERRUPTED, UserError
from flatout.probing import machine
from flatout.profiling import recording


@pytest.mark.parametrize(
    ("rest", "words", "module"),
    [
        (["train.py", "--lr", "3", "--help"], ("train.py", "--lr", "3", "--help"), None),
        (["-m", "pkg.mod", "--lr", "3"], ("--lr", "3"), "pkg.mod"),
        (["bash", "job.sh"], ("bash", "job.sh"), None),
        (["train.py", "-m", "x"], ("train.py", "-m", "x"), None),
        ([], (), None),
    ],
)
def test_program(rest: list[str], words: tuple[str, ...], module: str | None) -> None:
    assert commands.program("run", rest) == (words, module)


def test_patterns_of_files_are_filled_in_where_no_shell_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rank1.log", "rank0.log", "train.py", "0.trace.json", "1.trace.json"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    patterns = ["--json", "*.log", "none*", "a text"]
    assert commands._modern(["explain", *patterns])[1] == ["explain", *patterns]
    monkeypatch.setattr(sys, "platform", "win32")
    told = ["--json", "rank0.log", "rank1.log", "none*", "a text"]
    assert commands._modern(["explain", *patterns])[1] == ["explain", *told]
    assert commands._modern(["compare", "*.log"])[1] == ["compare", "rank0.log", "rank1.log"]
    assert commands._modern(["run", "train.py", "*.log"])[1] == ["run", "train.py", "*.log"]
    traces: list[Path] = []
    monkeypatch.setattr(recording, "from_traces", traces.extend)
    monkeypatch.setattr(profile, "_report", lambda *_: 0)
    assert outcome(["profile", "?.trace.json"]) == 0
    assert traces == [Path("0.trace.json"), Path("1.trace.json")]


@pytest.mark.parametrize(
    ("line", "args", "exact"),
    [
        ("--exact train.py --lr 3 --help", ["train.py", "--lr", "3", "--help"], True),
        ("train.py --exact", ["train.py", "--exact"], False),
        ("train.py -- x", ["train.py", "--", "x"], False),
        ("-m pkg.mod --exact", ["-m", "pkg.mod", "--exact"], False),
        ("--exact -- bash job.sh --exact", ["bash", "job.sh", "--exact"], True),
    ],
)
def test_what_follows_the_script_belongs_to_it(
    line: str, args: list[str], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    module = importlib.import_module("flatout.commands.eject")

    def command(
        ctx: typer.Context,
        exact: bool = typer.Option(False, "--exact"),
    ) -> int:
        """Probe."""
        seen.update(args=ctx.args, exact=exact)
        return 7

    command.__annotations__ = {"ctx": typer.Context, "exact": bool, "return": int}
    monkeypatch.setattr(module, "command", command)
    monkeypatch.setattr(module, "CONTEXT", commands.SCRIPT_CONTEXT, raising=False)
    assert outcome(["eject", *line.split()]) == 7
    assert seen == {"args": args, "exact": exact}


def test_only_the_command_asked_for_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from flatout.__main__ import outcome; outcome(['eject', '--help']);"
        "print(sorted(m for m in sys.modules if m.startswith('flatout.commands.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['flatout.commands._options', 'flatout.commands.eject']"


def test_help_and_version() -> None:
    assert process().stdout == process("--help").stdout
    shown = process("-h")
    assert shown.returncode == 0
    assert [name for name in commands.names() if f"\n  {name} " not in shown.stdout] == []
    assert process("--version").stdout == f"flatout {flatout.__version__}\n"


def test_help_keeps_lines_that_show_commands() -> None:
    assert (
        "\n  Examples:\n    flatout eject\n    flatout eject | patch train.py\n"
        "    flatout eject --plan other.toml\n" in process("eject", "-h").stdout
    )


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def call(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(commands, "call", call)
    return outcome(["eject"])


def test_errors_are_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FLATOUT_TRACEBACK", raising=False)
    assert raising(UserError("no", "go", 1), monkeypatch) == 1
    assert raising(UserError("no"), monkeypatch) == 2
    assert raising(OSError(28, "No space left on device", "/x/y"), monkeypatch) == 2
    assert raising(KeyboardInterrupt(), monkeypatch) == INTERRUPTED
    assert raising(ValueError("surprise"), monkeypatch) == INTERNAL_ERROR
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["flatout: no", "  next: go", "flatout: no"]
    assert lines[3] == "flatout: No space left on device: /x/y"
    assert lines[5:7] == ["flatout: interrupted", "flatout: internal error: ValueError: surprise"]


@pytest.mark.parametrize("arguments", [["doctor"], ["env", "install"]])
def test_a_command_that_is_interrupted_says_so(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer makes an exit code of it, and nothing else."""

    def look(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "look", look)
    assert outcome(arguments) == INTERRUPTED
    assert capsys.readouterr().err == "flatout: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tune", "--json", "none.py"], True),
        (["explain", "--json", "none.log"], True),
        (["run", "train.py", "--json"], False),
        (["run", "--", "train", "--json"], False),
    ],
)
def test_with_json_an_error_is_a_document(
    arguments: list[str],
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def call(arguments: object) -> int:
        raise UserError("no", "go", 1)

    monkeypatch.setattr(commands, "call", call)
    assert outcome(arguments) == 1
    out, err = capsys.readouterr()
    assert err == "flatout: no\n  next: go\n"
    document = {"schema": "flatout.error/1", "error": "no", "next": "go", "exit_code": 1}
    assert [json.loads(line) for line in out.splitlines()] == ([document] if told else [])


def test_errors_of_ours_can_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_TRACEBACK", "1")
    with pytest.raises(ValueError, match="surprise"):
        raising(ValueError("surprise"), monkeypatch)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
def test_reader_that_goes_away() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""
