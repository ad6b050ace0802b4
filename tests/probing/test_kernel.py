"""The Linux kernel, from trees of other machines and as it is here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.machine import Container, DeviceFile, LinuxKernel
from flatout.probing import kernel
from probing.planted import GARBAGE, namespaces, plant

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux' kernel")

VERSION = {"proc/version": "Linux version 6.8.0-45-generic (x) #45\n"}
LOADED = """nvidia_uvm 4911104 2 - Live 0x0000000000000000 (POE)
nvidia_drm 118784 4 - Live 0x0000000000000000 (POE)
nvidia 60620800 101 nvidia_uvm,nvidia_drm, Live 0x0000000000000000 (POE)
ext4 1024000 1 - Live 0x0000000000000000
mlx5_core 2170880 1 mlx5_ib, Live 0x0000000000000000
"""
RELEASE = "6.8.0-45-generic"
INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 0\nDevice Minor: \t {}\n"


def test_modules(tmp_path: Path) -> None:
    assert kernel.modules(tmp_path) is None
    plant(tmp_path, VERSION)
    assert kernel.modules(tmp_path) == ()  # a kernel that loads none
    plant(tmp_path, {"proc/modules": LOADED})
    assert kernel.modules(tmp_path) == ("mlx5_core", "nvidia", "nvidia_drm", "nvidia_uvm")
    plant(tmp_path, {"proc/modules": "nouveau 3096576 10 - Live 0x0\nvideo 1 - Live\n"})
    assert kernel.modules(tmp_path) == ("nouveau",)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("updates/dkms/nvidia.ko", True),
        ("updates/dkms/nvidia-current.ko.xz", True),
        ("updates/dkms/nvidia-current-open.ko", True),
        ("updates/dkms/nvidia-tesla-470.ko", True),
        ("extra/nvidia.ko.xz", True),
        ("extra/drivers/video/nvidia/nvidia.ko", True),
        ("weak-updates/nvidia/nvidia.ko", True),
        ("extramodules/nvidia.ko.zst", True),
        ("kernel/drivers/video/nvidia.ko", True),
        ("kernel/nvidia-550-open/nvidia.ko", True),
        ("updates/dkms/nvidia-uvm.ko", False),
        ("updates/dkms/nvidia-drm.ko", False),
        ("kernel/drivers/i2c/i2c-nvidia.ko", False),
    ],
)
def test_where_distributions_put_the_module(file: str, found: bool, tmp_path: Path) -> None:
    plant(tmp_path, {f"lib/modules/{RELEASE}/{file}": "", "lib/modules/6.5.0-1/modules.dep": ""})
    assert kernel.nvidia_releases(tmp_path) == ((RELEASE,) if found else ())


def test_the_module_of_another_release_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel.platform, "release", lambda: "6.8.0-47-generic")
    plant(tmp_path, {**VERSION, f"lib/modules/{RELEASE}/updates/dkms/nvidia.ko": ""})
    plant(tmp_path, {"lib/modules/6.8.0-47-generic/modules.dep": ""})
    found = kernel.kernel(Container(), tmp_path)
    assert found.nvidia_module_on_disk is False
    assert found.nvidia_module_for == (RELEASE,)
    assert found.headers is False


@pytest.mark.parametrize("inside", [Container(kind="docker"), Container(wsl=2)])
def test_a_guest_does_not_see_the_files_of_its_host(inside: Container, tmp_path: Path) -> None:
    plant(tmp_path, {**VERSION, "proc/modules": LOADED, "dev/null": ""})
    found = kernel.kernel(inside, tmp_path)
    unknown = (found.nvidia_module_on_disk, found.nvidia_module_for, found.headers, found.dkms)
    assert unknown == (None, None, None, None)
    assert found.modules is not None
    missing = () if inside.kind else (DeviceFile("/dev/dxg", exists=False),)
    assert found.device_files == missing


def test_headers(tmp_path: Path) -> None:
    assert kernel.headers(tmp_path, RELEASE) is False
    headers = f"usr/src/linux-headers-{RELEASE}"
    build = plant(tmp_path, {}, {f"lib/modules/{RELEASE}/build": headers})
    assert kernel.headers(build, RELEASE) is False  # the link leads nowhere
    plant(tmp_path, {f"{headers}/Makefile": ""})
    assert kernel.headers(tmp_path, RELEASE) is True
    assert kernel.headers(tmp_path, "") is None


def cards(kinds: dict[str, str]) -> dict[str, str]:
    """Devices on the bus: class and kind of their IOMMU group."""
    files = {"sys/class/iommu/dmar0/x": "", "sys/kernel/iommu_groups/0/type": "DMA-FQ"}
    for index, (number, kind) in enumerate(kinds.items()):
        folder = f"sys/bus/pci/devices/0000:0{index}:00.0"
        files |= {f"{folder}/class": number, f"{folder}/iommu_group/type": kind}
    return files


@pytest.mark.parametrize(
    ("files", "translates"),
    [
        ({}, None),
        (cards({"0x030200": "DMA-FQ"}), True),
        (cards({"0x030000": "identity"}), False),
        (cards({"0x030200": "identity", "0x020000": "DMA"}), False),
        (cards({"0x020000": "identity"}), True),
        ({"sys/class/iommu/dmar0/x": "", "proc/cmdline": "ro iommu=pt quiet"}, False),
        ({"sys/class/iommu/dmar0/x": "", "proc/cmdline": "ro iommu=ptx"}, None),
    ],
)
def test_iommu(files: dict[str, str], translates: bool | None, tmp_path: Path) -> None:
    assert kernel.iommu(plant(tmp_path, files)) is translates


@pytest.mark.parametrize("folders", [("iommu",), ("iommu/dmar0", "../kernel/iommu_groups")])
def test_iommu_without_units_or_groups(folders: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    for folder in folders:
        (tmp_path / "sys/class" / folder).mkdir(parents=True)
    assert kernel.iommu(tmp_path) is False


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 1), ("0-1", 2), ("0-3,8", 5), ("", None), ("1-0", None), ("a", None), ("0,", None)],
)
def test_ranges(text: str, count: int | None) -> None:
    assert kernel.count_of_ranges(text) == count


SWITCH = {
    "sys/bus/pci/devices/0000:05:00.0/class": "0x068000\n",
    "sys/bus/pci/devices/0000:05:00.0/vendor": "0x10de\n",
}
FIRST = {"proc/1/comm": "systemd\n", "proc/900/comm": "sshd\n"}


def test_fabric_manager(tmp_path: Path) -> None:
    running = {"proc/77/comm": "nv-fabricmanage\n"}
    assert kernel.fabric_manager(plant(tmp_path / "a", {**FIRST, **running})) is True
    host = namespaces(plant(tmp_path / "b", {**FIRST, **SWITCH}))
    assert kernel.fabric_manager(host) is False
    inside = namespaces(plant(tmp_path / "c", {**FIRST, **SWITCH}), pid=4026532201)
    assert kernel.fabric_manager(inside) is None
    hidden = namespaces(plant(tmp_path / "d", SWITCH))  # processes of others do not show
    assert kernel.fabric_manager(hidden) is None
    assert kernel.fabric_manager(namespaces(plant(tmp_path / "e", FIRST))) is None


def test_device_files_and_what_this_process_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "dri/renderD128", "dri/card0")
    plant(tmp_path, {f"dev/{name}": "" for name in names})
    (tmp_path / "dev/nvidia-caps").mkdir()
    for name in names:
        (tmp_path / "dev" / name).chmod(0o660)
    found = kernel.device_files(tmp_path, ())
    assert found is not None
    paths = ["/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl", "/dev/dri/renderD128"]
    assert [file.path for file in found] == paths
    assert {file.mode for file in found} == {"0660"}
    assert all(file.exists and file.readable and file.writable for file in found)
    monkeypatch.setattr(kernel.os, "access", lambda path, mode: mode == os.R_OK)
    for file in kernel.device_files(tmp_path, ()):
        assert (file.readable, file.writable) == (True, False)


def test_files_that_the_loaded_driver_should_have_made(tmp_path: Path) -> None:
    gpus = "proc/driver/nvidia/gpus"
    files = {
        f"{gpus}/0000:1b:00.0/information": INFORMATION.format(0),
        f"{gpus}/0000:43:00.0/information": INFORMATION.format(1),
        "dev/nvidia0": "",
        "dev/nvidiactl": "",
    }
    found = kernel.device_files(plant(tmp_path, files), ("nvidia", "nvidia_uvm"))
    missing = [file.path for file in found if not file.exists]
    assert missing == ["/dev/nvidia1", "/dev/nvidia-uvm"]
    found = kernel.device_files(tmp_path, ("amdgpu",))
    assert DeviceFile("/dev/kfd", exists=False) in found
    assert kernel.device_files(tmp_path / "absent", ()) is None


READ = (
    "proc/version",
    "proc/modules",
    "proc/meminfo",
    "proc/cmdline",
    "proc/1/comm",
    "lib/modules/6.8.0/modules.dep",
    "sys/devices/system/node/has_cpu",
    "sys/class/iommu/dmar0/x",
    "sys/kernel/iommu_groups/0/type",
    "sys/bus/pci/devices/0000:01:00.0/class",
    "proc/driver/nvidia/gpus/0000:01:00.0/information",
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(READ, GARBAGE)))
def test_garbage_is_no_fact(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = kernel.kernel(Container(), plant(Path(folder), files))
    assert found.modules in (None, ())
    assert found.nvidia_module_for == ()
    assert found.iommu is None
    assert found.numa_nodes in (None, 1)  # "0" is one node
    assert found.fabric_manager is None
    assert found.device_files is None


def test_here() -> None:
    found = kernel.kernel()
    assert found != LinuxKernel()
    groups = subprocess.check_output(["id", "-Gn"], text=True).split()
    assert set(found.user_groups or ()) >= {name for name in groups if not name.isdecimal()}
    for file in found.device_files or ():
        assert file.exists is Path(file.path).exists()
    assert found.numa_nodes is None or found.numa_nodes >= 1
    assert found.xids is None
