"""Disks: which mount holds a folder, and what is known of it; real ones here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flatout.probing import disk

MOUNTS = [
    ("/proc", "proc"),
    ("/", "ext4"),
    ("/data", "xfs"),
    ("/home", "nfs4"),
    ("/mnt/my disk", "btrfs"),
    ("/data", "tmpfs"),
]


@pytest.mark.parametrize(
    ("path", "file_system"),
    [
        ("/usr/lib", "ext4"),
        ("/", "ext4"),
        ("/home/me/job", "nfs4"),
        ("/homework", "ext4"),
        ("/mnt/my disk/x", "btrfs"),
        ("/data/set", "tmpfs"),  # mounted over the other one
    ],
)
def test_the_file_system_of_a_folder(path: str, file_system: str) -> None:
    assert disk.file_system(path, MOUNTS) == file_system


@pytest.mark.parametrize(
    ("file_system", "network"),
    [("nfs4", True), ("fuse.gcsfuse", True), ("NFS", True), ("ext4", False), ("9p", False)],
)
def test_network(file_system: str, network: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "mounts", lambda: [("/", file_system)])
    found = disk.disks()
    assert {(item.file_system, item.network) for item in found} == {(file_system, network)}


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    absent = tmp_path / "not/there/yet"
    variables = {"XDG_CACHE_HOME": str(absent), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    found = disk.disks(variables)
    assert [(item.use, item.path) for item in found] == [
        ("work", str(Path.cwd())),
        ("temporary", str(tmp_path)),
        ("cache", str(absent)),
        ("cache", str(tmp_path / "triton")),
    ]
    assert {item.total_bytes for item in found} == {shutil.disk_usage(tmp_path).total}


def test_a_current_folder_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Path:
        raise FileNotFoundError(2, "no")

    monkeypatch.setattr(disk.Path, "cwd", gone)
    found = disk.disks({})
    assert "work" not in [item.use for item in found]


@pytest.mark.skipif(sys.platform != "linux", reason="df as on Linux")
def test_here_as_df_says() -> None:
    found = disk.disks()
    work = found[0]
    said = subprocess.check_output(["df", "--output=fstype,size", "-B1", os.getcwd()], text=True)
    file_system, size = said.splitlines()[1].split()
    assert (work.file_system, work.total_bytes) == (file_system, int(size))
