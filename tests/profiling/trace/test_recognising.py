"""A trace or a program: by the suffix, or by what the file or folder holds."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from flatout.profiling.trace import recognising

TRACE = b'\n{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X"}]}'
PROFILE = b'{\n  "schema": "flatout.profile/1",\n  "step_ms": 1.0}'


@pytest.mark.parametrize(
    "name",
    [
        "a.json",
        "a.json.gz",
        "host_1.17.pt.trace.json",
        "host.pt.trace.json.gz",
        "A.JSON",
        "x/a.json",
    ],
)
def test_suffixes_of_traces_also_of_files_that_are_missing(name: str) -> None:
    assert recognising.is_trace(name)


@pytest.mark.parametrize("name", ["train.py", "train.pyw", "torchrun", "-m", "--", "", "a.json.py"])
def test_programs(name: str) -> None:
    assert not recognising.is_trace(name)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TRACE, True),
        (b"\xef\xbb\xbf" + TRACE, True),
        (gzip.compress(TRACE, mtime=0), True),
        (gzip.compress(TRACE, mtime=0)[:-12], True),
        (b'[{"ph": "X", "name": "aten::add"}]', True),
        (b'[{"lr": 0.1}]', False),
        (PROFILE, False),
        (b"", False),
        (b"\x1f\x8b", False),
        (b"\x1f\x8b not packed", False),
        (b'#!/bin/sh\n# "traceEvents": [\n', False),
        (b"\x7fELF\x02", False),
    ],
)
def test_content_where_the_suffix_says_nothing(
    content: bytes, expected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "recording"
    path.write_bytes(content)
    assert recognising.is_trace(str(path)) is expected


def test_a_script_is_a_script_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(TRACE)
    assert not recognising.is_trace(str(path))


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "log" / "rank0.pt.trace.json").write_bytes(TRACE)
    (tmp_path / "package" / "config.json").write_bytes(b'{"lr": 0.1}')
    folders = ("empty", "log", "package")
    known = [name for name in folders if recognising.is_trace(str(tmp_path / name))]
    assert known == ["log"]


def test_documents_of_flatout(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(PROFILE)
    assert recognising.document(path) == "flatout.profile"
    path.write_bytes(TRACE)
    assert recognising.document(path) is None
    assert recognising.document(tmp_path / "absent.json") is None
