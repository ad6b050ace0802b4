"""The user's interpreter tells what is installed in it."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from flatout.nouns.errors import UserError
from flatout.probing import packages
from flatout_programs import packages as program


def test_this_interpreter() -> None:
    listing = packages.look(sys.executable)
    found = {item.name.lower(): item for item in listing.packages}
    assert found["packaging"].version == version("packaging")
    assert listing.python == ".".join(map(str, sys.version_info[:3]))
    assert listing.conda is None or listing.conda
    assert len(found) == len(listing.packages)


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with three packages, one of them broken."""
    for name, files in {
        "mine-0.1.dist-info": {
            "METADATA": "Name: mine\nVersion: 0.1\n",
            "direct_url.json": json.dumps({"url": "file:///x", "dir_info": {"editable": True}}),
            "INSTALLER": "uv\n",
        },
        "theirs-2.0.dist-info": {
            "METADATA": "Name: theirs\nVersion: 2.0\n",
            "direct_url.json": json.dumps(
                {"url": "https://e.org/t", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
            ),
        },
        "broken-1.dist-info": {"METADATA": "", "direct_url.json": "{"},
    }.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    return tmp_path


def test_where_packages_come_from(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(fake))
    found = {item.name: item for item in packages.look(sys.executable).packages}
    assert found["mine"].editable and found["mine"].folder and found["mine"].installer == "uv"
    assert (found["theirs"].vcs, found["theirs"].commit) == ("git", "abc")
    assert "broken" not in found


def test_conda_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = tmp_path / "conda-meta"
    meta.mkdir()
    record = {"name": "python", "version": "3.11", "build": "h0", "channel": "conda-forge", "x": 1}
    (meta / "python.json").write_text(json.dumps(record))
    (meta / "bad.json").write_text("[]")
    (meta / "history").write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    answers: list[dict[str, Any]] = []
    program.main([], answers.append)
    assert answers[0]["conda"] == [
        {key: record[key] for key in ("name", "version", "build", "channel")}
    ]


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
