"""Disks: which mount holds a folder, and what is known of it; real ones here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.probing import disk
from flatout.probing.disk import Mount
from probing.planted import plant

SERVER = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 27 8:17 / /data rw,relatime shared:3 master:2 - xfs /dev/sdb1 rw
31 27 0:44 / /home rw,relatime - nfs4 filer:/home rw,vers=4.2
32 27 0:45 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
33 27 0:46 /@ /srv rw - btrfs /dev/sdc rw,subvol=/@
34 27 253:0 / /mnt/my\040disk rw - ext4 /dev/mapper/vg-data rw
35 30 0:50 / /data rw - tmpfs tmpfs rw
nonsense
36 27 rw - ext4
"""
MOUNTS = disk.from_mountinfo(SERVER)


@pytest.mark.parametrize(
    ("path", "folder", "file_system"),
    [
        ("/usr/lib", "/", "ext4"),
        ("/", "/", "ext4"),
        ("/home/me/job", "/home", "nfs4"),
        ("/homework", "/", "ext4"),
        ("/mnt/my disk/x", "/mnt/my disk", "ext4"),
        ("/data/set", "/data", "tmpfs"),  # mounted over the other one
    ],
)
def test_the_mount_of_a_folder(path: str, folder: str, file_system: str) -> None:
    mount = disk.mount_of(path, MOUNTS)
    assert mount is not None
    assert (mount.folder, mount.file_system) == (folder, file_system)


@given(st.text())
def test_mounts_of_garbage(text: str) -> None:
    for mount in disk.from_mountinfo(text):
        assert mount.file_system in text
        assert mount.device in text


@pytest.mark.parametrize(
    ("file_system", "network"),
    [
        ("nfs4", True),
        ("lustre", True),
        ("fuse.gcsfuse", True),
        ("ext4", False),
        ("NTFS", False),
        ("overlay", False),
        ("9p", None),
        ("virtiofs", None),
        ("fuse", None),
        ("", None),
    ],
)
def test_network(file_system: str, network: bool | None) -> None:
    assert disk.network(file_system) is network


class Blocks:
    """/sys/dev/block and /sys/class/block in a test's folder."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        patch.setattr(disk, "BLOCKS", root / "block")
        patch.setattr(disk, "BLOCKS_BY_NAME", root / "class")

    def add(self, place: str, number: str, flag: str | None = None, **files: str) -> Path:
        folder = self.root / "devices" / place
        plant(folder, {f"device/{name}": text for name, text in files.items()})
        folder.mkdir(parents=True, exist_ok=True)
        if flag is not None:
            plant(folder, {"queue/rotational": f"{flag}\n"})
        name = place.rpartition("/")[2]
        links = {f"block/{number}": f"devices/{place}", f"class/{name}": f"devices/{place}"}
        plant(self.root, {}, links)
        return folder


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blocks:
    return Blocks(tmp_path, monkeypatch)


def of(number: str, source: str = "none") -> bool | None:
    return disk.rotational(Mount(number, "/", "ext4", source))


@pytest.mark.parametrize(
    ("place", "maker"),
    [
        ("pci0000:00/0000:00:02.0/virtio1/block/vda", {}),
        ("LNXSYSTM:00/VMBUS:01/fd1d/host0/block/sda", {"vendor": "Msft", "model": "Virtual Disk"}),
        ("pci0000:00/host0/block/sda", {"vendor": "VMware", "model": "Virtual disk"}),
        ("pci0000:00/ata1/block/sda", {"vendor": "ATA", "model": "QEMU HARDDISK"}),
        ("vbd-51712/block/xvda", {}),
    ],
)
def test_disks_of_virtual_machines_always_claim_to_turn(
    place: str, maker: dict[str, str], blocks: Blocks
) -> None:
    folder = blocks.add(place, "254:0", "1", **maker)
    assert of("254:0") is None
    plant(folder, {"queue/rotational": "0\n"})
    assert of("254:0") is False


def test_what_lies_on_other_disks(blocks: Blocks) -> None:
    blocks.add("pci0000:00/ata1/block/sda", "8:0", "1", vendor="ATA", model="WDC")
    blocks.add("pci0000:00/ata2/block/sdb", "8:16", "0", vendor="ATA", model="Samsung")
    blocks.add("virtual/block/dm-0", "253:0", "1")
    plant(
        blocks.root,
        {},
        {"devices/virtual/block/dm-0/slaves/sda": "devices/pci0000:00/ata1/block/sda"},
    )
    blocks.add("virtual/block/dm-1", "253:1", "0")
    plant(
        blocks.root,
        {},
        {"devices/virtual/block/dm-1/slaves/sdb": "devices/pci0000:00/ata2/block/sdb"},
    )
    blocks.add("virtual/block/loop0", "7:0", "1")
    assert (of("253:0"), of("253:1"), of("7:0")) == (True, False, None)


def test_file_systems_of_several_disks(blocks: Blocks) -> None:
    blocks.add("pci0000:00/ata3/block/sdc", "8:32", "1", vendor="ATA", model="WDC")
    assert of("0:46", "/dev/sdc") is True
    assert of("0:46", "tank/data") is None  # ZFS
    assert of("0:52", "overlay") is None


@given(number=st.text(max_size=8), flag=st.binary(max_size=4))
def test_garbage_is_no_fact(number: str, flag: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        here = Blocks(Path(folder), patch)
        plant(here.add("pci/sda", "8:0"), {"queue/rotational": flag})
        found = of("8:0")
        assert of(number, f"/dev/{number}") in (None, found)
    assert found is None or flag.strip(b"\0 \t\r\n") in (b"0", b"1")


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    absent = tmp_path / "not/there/yet"
    variables = {"XDG_CACHE_HOME": str(absent), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    found = disk.disks(variables)
    assert found is not None
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
    assert found is not None
    assert "work" not in [item.use for item in found]


@pytest.mark.skipif(sys.platform != "linux", reason="df as on Linux")
def test_here_as_df_says() -> None:
    found = disk.disks()
    assert found is not None
    work = found[0]
    said = subprocess.check_output(["df", "--output=fstype,size", "-B1", os.getcwd()], text=True)
    file_system, size = said.splitlines()[1].split()
    assert (work.file_system, work.total_bytes) == (file_system, int(size))
