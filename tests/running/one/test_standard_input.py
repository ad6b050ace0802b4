from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.running.one import standard_input

ASK = """
import sys
from pathlib import Path
from flatout.running.one import standard_input
from flatout.running.one.command import Command
command = standard_input.given(Command(("x",), None, "x", ("x",)), Path(sys.argv[1]))
print(None if command.input is None else command.input.read_text())
"""


def asked(folder: Path, **options: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )
    return str(done.stdout).strip()


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe there cannot be asked for data")
def test_what_comes_through_a_pipe_is_kept_for_each_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"1\n2\n3\n")  # before it starts: it does not wait for long
    os.close(writing)
    try:
        assert asked(tmp_path, stdin=reading) == "1\n2\n3"
    finally:
        os.close(reading)


def test_what_a_file_holds_from_where_it_stands(tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("first\nsecond\n")
    with data.open("rb", buffering=0) as file:
        file.read(6)
        assert asked(tmp_path / "run", stdin=file) == "second"


def test_no_input(tmp_path: Path) -> None:
    assert asked(tmp_path, stdin=subprocess.DEVNULL) == "None"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe there cannot be asked for data")
def test_an_open_pipe_that_gives_nothing_holds_nobody_up(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        assert asked(tmp_path, stdin=reading) == "None"
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe there cannot be asked for data")
def test_too_much_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(1000))
    monkeypatch.setattr(standard_input, "MOST_BYTES", 999)
    with path.open("rb") as file:
        assert standard_input._read(file.fileno(), is_pipe=False) == b""
    monkeypatch.setattr(standard_input, "MOST_BYTES", 1000)
    with path.open("rb") as file:
        assert len(standard_input._read(file.fileno(), is_pipe=False)) == 1000
