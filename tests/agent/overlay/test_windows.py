"""What only Windows has, through fakes: its own copying."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flatout_agent import overlay, wire
from flatout_agent.overlay import native


def test_what_shutil_and_pathlib_copy_with_on_windows_goes_to_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user"
    user.mkdir()
    best, new, other, third = (user / name for name in ("best.pt", "new.pt", "other.pt", "3.pt"))
    best.write_text("the best one so far")
    new.write_text("new")

    def copy(source: str, target: str, flags: int, progress_routine: object = None) -> None:
        native.copy_file(source, target)

    winapi: Any = ModuleType("_winapi")
    winapi.CopyFile2 = copy
    monkeypatch.setitem(sys.modules, "_winapi", winapi)
    orders = wire.TrialOrders(scratch=str(tmp_path / "scratch"), protect=str(user))
    redirected: list[str] = []
    undo = overlay.install(orders, lambda record: redirected.append(record.path))
    try:
        winapi.CopyFile2(str(new), str(best), 8)
        winapi.CopyFile2(existing_file_name=str(new), new_file_name=str(other), flags=1)
        winapi.CopyFile2(str(other), str(third), 0, None)
        assert [path.read_text() for path in (best, other, third)] == ["new"] * 3
        with pytest.raises(FileExistsError):
            winapi.CopyFile2(str(new), str(best), 1)
        with pytest.raises(FileNotFoundError):
            winapi.CopyFile2(str(user / "none.pt"), str(user / "4.pt"), 0)
    finally:
        undo()
    assert redirected == [str(best), str(other), str(third)]
    assert {path.name: path.read_text() for path in user.iterdir()} == {
        "best.pt": "the best one so far",
        "new.pt": "new",
    }
    assert winapi.CopyFile2 is copy
