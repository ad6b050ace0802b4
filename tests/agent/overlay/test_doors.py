"""Libraries that open files by themselves, and files of the script's own with their names."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from flatout_agent.overlay import doors

NAMES = sorted({door.module.split(".")[0] for door in doors.DOORS} - {"torch", "tokenizers"})


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_the_scripts_own_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = types.ModuleType(name)
    own.train = len
    for door in doors.DOORS:
        if door.module.startswith(name):
            monkeypatch.setitem(sys.modules, door.module, own)
    doors.hooks(object())[name](own)  # type: ignore[arg-type]
    assert own.train is len
