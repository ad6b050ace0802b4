"""The user's interpreter tells what is installed in it."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from flatout.nouns.errors import UserError
from flatout.probing import packages


def test_this_interpreter() -> None:
    installed = packages.look(sys.executable)
    assert installed.python.startswith(f"{platform.python_version()} on ")
    assert installed.versions["packaging"] == version("packaging")
    assert f"packaging=={version('packaging')}" in installed.lines


def test_broken_metadata_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"mine-0.1": "Name: mine\nVersion: 0.1\n", "broken-1": ""}.items():
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info/METADATA").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = packages.look(sys.executable).versions
    assert found["mine"] == "0.1"
    assert "broken" not in found


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="scripts as programs")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo broken >&2; exit 3", "cannot list its packages: broken"),
        ("echo no json", "cannot list its packages"),
        ("echo '{}'", "cannot list its packages"),
        ("exec sleep 20", "did not answer within 0 s"),
    ],
)
def test_an_interpreter_that_does_not_answer(tmp_path: Path, body: str, said: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match=said):
        packages.look(str(program), limit_s=0.4 if "sleep" in body else 120)
    with pytest.raises(UserError, match="cannot list its packages"):
        packages.look(str(tmp_path / "none"))
