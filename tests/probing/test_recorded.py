"""A recorded machine comes back as it was; any other file is told apart, with what to do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flatout.nouns.errors import UserError
from flatout.probing import recorded
from machines.healthy import HEALTHY


def file(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "machine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize("name", HEALTHY)
def test_read(name: str, tmp_path: Path) -> None:
    machine = HEALTHY[name]()
    document = {"schema": recorded.SCHEMA, "machine": dataclasses.asdict(machine)}
    assert recorded.read(file(tmp_path, document)) == machine


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no machine"),
        ({"schema": "flatout.doctor/1"}, "holds no machine"),
        ({"schema": "flatout.doctor/2", "machine": {}}, "'flatout.doctor/2'"),
        ({"machine": {}}, "schema None"),
        (
            {"schema": "flatout.doctor/1", "machine": {"memory": {"swap_used_bytes": "x"}}},
            "machine.memory.swap_used_bytes cannot be read",
        ),
    ],
)
def test_refused(document: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as raised:
        recorded.read(file(tmp_path, document))
    assert "doctor --json" in (raised.value.next_step or "")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        recorded.read(tmp_path / "absent.json")
