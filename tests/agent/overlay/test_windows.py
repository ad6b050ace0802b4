"""What only Windows has, through fakes: its own copying, and its long and network paths."""

from __future__ import annotations

import ntpath
import os
import sys
from array import array
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flatout_agent import overlay, wire
from flatout_agent.overlay import index, native
from flatout_agent.overlay import overlay as overlays
from flatout_agent.overlay.territory import Territory


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


USUAL_AND_LONG = {
    r"C:\runs\model.pt": r"\\?\C:\runs\model.pt",
    r"\\server\share\model.pt": r"\\?\UNC\server\share\model.pt",
}


@pytest.mark.parametrize("usual", USUAL_AND_LONG)
def test_a_long_path_has_a_prefix_that_comes_off_again(
    usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert native.lengthened(usual) == native.plain(usual) == usual
    assert native.plain(USUAL_AND_LONG[usual]) == usual
    monkeypatch.setattr(native, "LONG_PATH", 5)
    assert native.lengthened(usual) == USUAL_AND_LONG[usual]
    assert native.lengthened(USUAL_AND_LONG[usual]) == USUAL_AND_LONG[usual]


def test_a_volume_without_a_letter_keeps_its_prefix() -> None:
    volume = r"\\?\Volume{26a21bda-a627-11d7-9931-806e6f6e6963}\data"
    assert native.plain(volume) == volume


@pytest.mark.parametrize("usual", USUAL_AND_LONG)
def test_a_program_may_name_its_files_with_the_prefix(
    usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    system = SimpleNamespace(
        _getfullpathname=lambda path: path, readlink=lambda path: USUAL_AND_LONG[path]
    )
    monkeypatch.setattr(overlays, "system", system)
    monkeypatch.setattr(native, "system", system)
    view: Any = SimpleNamespace(folder=None)
    assert overlays.Overlay.absolute(view, USUAL_AND_LONG[usual]) == usual
    assert native.read_link(usual) == usual


@pytest.mark.parametrize("root", [r"C:\scratch\prepared", r"\\server\share\prepared"])
def test_other_processes_are_told_of_files_with_long_paths(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {name: getattr(os, name) for name in dir(os) if name.startswith(("O_", "SEEK_"))}
    monkeypatch.setattr(index, "os", SimpleNamespace(path=ntpath, **flags))
    monkeypatch.setattr(sys, "platform", "win32")
    journal = index.Journal(root, index.Layer.PREPARED, memoryview(array("Q", [0] * 4)))
    journal.path = str(tmp_path / "journal")
    places = [ntpath.join(root, "files", "C", "x" * count) for count in (5, native.LONG_PATH)]
    places = [native.lengthened(place) for place in places]
    assert [place.startswith(native.PREFIX) for place in places] == [False, True]
    for place in places:
        journal.append(r"C:\user\x", "file", place, index.Layer.PREPARED)
    told = index.parse((tmp_path / "journal").read_bytes(), root, index.Layer.PREPARED)
    assert [where for _, _, where, _ in told] == places


def test_built_extensions_are_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `torch.utils.cpp_extension` builds on Windows."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "me"))
    built = Territory(str(tmp_path / "user"), (), lambda path: path)
    data = tmp_path / "me" / "AppData" / "Local"
    monkeypatch.setattr(built, "temp", ())
    assert not built.protected(str(data / "torch_extensions" / "torch_extensions" / "Cache" / "x"))
    assert built.protected(str(data / "other"))
