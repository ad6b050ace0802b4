"""The Linux kernel: its modules, NVIDIA's module files, device files and groups.

The errors in the kernel's log (`xids`) are read elsewhere.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from flatout.nouns.machine import Container, DeviceFile, LinuxKernel
from flatout.probing import container as surroundings
from flatout.probing import reading

ROOT = Path("/")

MODULES = frozenset(
    (
        "nvidia",
        "nvidia_uvm",
        "nvidia_modeset",
        "nvidia_drm",
        "nvidia_peermem",
        "nv_peer_mem",
        "nvidia_fs",
        "nouveau",
        "nova",
        "nova_core",
        "amdgpu",
        "i915",
        "xe",
        "gdrdrv",
        "mlx5_core",
        "mlx5_ib",
        "ib_core",
        "vfio_pci",
    )
)
MODULE_FOLDERS = ("lib/modules", "run/booted-system/kernel-modules/lib/modules")
"""The second folder is NixOS'."""
MODULE_PLACES = (
    "updates/dkms",
    "updates",
    "updates/nvidia",
    "extra",
    "extra/nvidia",
    "extra/drivers/video/nvidia",
    "weak-updates",
    "weak-updates/nvidia",
    "weak-updates/updates",
    "extramodules",
    "kernel/drivers/video",
    "kernel/drivers/video/nvidia",
    "kernel/nvidia",
    "kernel/nvidia-*",
)
MODULE_FILE = re.compile(
    r"nvidia(-current|-tesla|-legacy)?(-open)?(-[0-9]+(xx)?)?\.ko(\.(xz|zst|gz))?"
)
"""Debian ships nvidia-current.ko or nvidia-tesla-470.ko, all others nvidia.ko."""
DEVICES = re.compile(r"nvidia[0-9]+|nvidiactl|nvidia-uvm|kfd|dxg|nvmap|nvhost-gpu|nvhost-ctrl-gpu")
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of screens and accelerators."""
FABRIC_MANAGER = "nv-fabricmanage"
"""The kernel keeps 15 letters of a process's name."""


if sys.platform == "linux":

    def kernel(inside: Container | None = None, root: Path = ROOT) -> LinuxKernel:
        """Facts about the kernel. inside: the container, if already known."""
        inside = surroundings.container(root=root) if inside is None else inside
        release = platform.release()
        loaded = modules(root)
        guest = inside.kind is not None or inside.wsl is not None
        releases = None if guest else nvidia_releases(root)
        groups = None  # of this process; a new group takes effect at the user's next login
        with suppress(OSError):
            groups = tuple(map(_group_name, dict.fromkeys([os.getegid(), *os.getgroups()])))
        return LinuxKernel(
            modules=loaded,
            nvidia_module_on_disk=None if releases is None else release in releases,
            nvidia_module_for=releases,
            headers=None if guest else headers(root, release),
            dkms=None if guest else shutil.which("dkms") is not None,
            iommu=iommu(root),
            numa_nodes=numa_nodes(root),
            fabric_manager=fabric_manager(root),
            device_files=device_files(root, () if guest else loaded or (), inside.wsl == 2),
            user_groups=groups,
        )

    def _group_name(number: int) -> str:
        import grp

        try:
            return grp.getgrgid(number).gr_name
        except (KeyError, OSError):
            return str(number)

else:

    def kernel(inside: Container | None = None, root: Path = ROOT) -> LinuxKernel:
        """No facts: they are Linux'."""
        return LinuxKernel()

    def _group_name(number: int) -> str:
        return str(number)


def modules(root: Path) -> tuple[str, ...] | None:
    """Loaded modules that matter for training; a kernel without /proc/modules has none."""
    if not reading.exists(root / "proc/version"):
        return None
    text = reading.text(root / "proc/modules")
    if text is None:
        return () if reading.exists(root / "proc/modules") is False else None
    names = (line.split(" ", 1)[0] for line in text.splitlines())
    return tuple(sorted({name for name in names if name in MODULES}))


def nvidia_releases(root: Path) -> tuple[str, ...] | None:
    """Kernel releases with an NVIDIA module on disk."""
    names: list[str] = []
    for place in MODULE_FOLDERS:
        releases = reading.entries(root / place)
        if releases is None and reading.exists(root / place) is not False:
            return None
        names += [folder.name for folder in releases or () if _has_nvidia(folder)]
    return tuple(sorted(set(names)))


def _has_nvidia(release: Path) -> bool:
    """Whether a usual folder or modules.dep, which modprobe reads, has the module."""
    for place in MODULE_PLACES:
        folders = release.glob(place) if "*" in place else (release / place,)
        for folder in folders:
            files = reading.entries(folder) or ()
            if any(MODULE_FILE.fullmatch(file.name) for file in files):
                return True
    dependencies = reading.text(release / "modules.dep", 2**23) or ""
    names = re.findall(r"^[^:\n]*?([^/:\n]+):", dependencies, re.MULTILINE)
    return any(MODULE_FILE.fullmatch(name) for name in names)


def headers(root: Path, release: str) -> bool | None:
    """Whether the headers for building modules are installed."""
    if not release:
        return None
    places = (
        f"lib/modules/{release}/build/Makefile",
        f"usr/src/kernels/{release}/Makefile",
        f"usr/src/linux-headers-{release}/Makefile",
    )
    present = [reading.exists(root / place) for place in places]
    return True if any(present) else None if None in present else False


def iommu(root: Path) -> bool | None:
    """Whether an IOMMU translates the GPUs' memory accesses, or any device's without a GPU.

    Passthrough shows as the group's type "identity", on old kernels only in the command line.
    """
    units = reading.entries(root / "sys/class/iommu")
    if units is None:
        return None
    if not units:
        return False
    groups = reading.entries(root / "sys/kernel/iommu_groups")
    if groups == []:
        return False
    kinds: set[str | None] = set()
    for device in reading.entries(root / "sys/bus/pci/devices") or ():
        is_gpu = (reading.text(device / "class") or "").startswith(GPU_CLASSES)
        if is_gpu and (domain := reading.text(device / "iommu_group/type")):
            kinds.add(domain)
    kinds = kinds or {reading.text(group / "type") for group in groups or ()}
    if any((kind or "").startswith("DMA") for kind in kinds):
        return True
    line = (reading.text(root / "proc/cmdline") or "").split()
    if kinds == {"identity"} or "iommu=pt" in line or "iommu.passthrough=1" in line:
        return False
    return None


def numa_nodes(root: Path) -> int | None:
    """The number of nodes with processors; some GPUs' memory is a node too."""
    folder = root / "sys/devices/system/node"
    text = reading.text(folder / "has_cpu") or reading.text(folder / "online")
    return count_of_ranges(text or "")


def count_of_ranges(text: str) -> int | None:
    """How many numbers a text like "0-3,8" stands for: 5."""
    count = 0
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            return None
        count += int(match[2] or match[1]) - int(match[1]) + 1
    return count


def fabric_manager(root: Path) -> bool | None:
    """Whether Fabric Manager runs, or None if no NVSwitch is there or processes are hidden."""
    processes = reading.entries(root / "proc") or []
    names = {reading.text(entry / "comm") for entry in processes if entry.name.isdecimal()}
    if FABRIC_MANAGER in names:
        return True
    sees_all_processes = surroundings.isolated(root) is False and reading.text(root / "proc/1/comm")
    if not sees_all_processes:
        return None
    has_switch = any(  # an NVSwitch is a bridge by NVIDIA
        (reading.text(device / "class") or "").startswith("0x0680")
        and reading.text(device / "vendor") == "0x10de"
        for device in reading.entries(root / "sys/bus/pci/devices") or ()
    )
    return False if has_switch else None


def device_files(
    root: Path, loaded: Iterable[str], wsl: bool = False
) -> tuple[DeviceFile, ...] | None:
    """The device files of GPUs, including those that the loaded drivers should have created."""
    entries = reading.entries(root / "dev")
    if entries is None:
        return None
    present = [f"/dev/{file.name}" for file in entries if DEVICES.fullmatch(file.name)]
    renders = reading.entries(root / "dev/dri") or ()
    present += [f"/dev/dri/{file.name}" for file in renders if file.name.startswith("renderD")]
    drivers = set(loaded)
    expected = []
    if "nvidia" in drivers:
        for card in reading.entries(root / "proc/driver/nvidia/gpus") or ():
            information = reading.text(card / "information") or ""
            minor = re.search(r"^Device Minor:\s*([0-9]{1,3})\s*$", information, re.MULTILINE)
            expected += [f"/dev/nvidia{minor[1]}"] if minor else []
        expected.append("/dev/nvidiactl")
    if "nvidia_uvm" in drivers:
        expected.append("/dev/nvidia-uvm")
    if "amdgpu" in drivers:
        expected.append("/dev/kfd")
    if wsl:
        expected.append("/dev/dxg")
    missing = [path for path in expected if path not in present]
    files = (_device_file(root, path) for path in present)
    return (
        *(file for file in files if file is not None),
        *(DeviceFile(path, exists=False) for path in missing),
    )


def _device_file(root: Path, path: str) -> DeviceFile | None:
    """Its permissions and what this process may do with it, or None if it is a folder."""
    file = root / path.lstrip("/")
    try:
        status = file.stat()
    except OSError:
        return DeviceFile(path, exists=True)
    if stat.S_ISDIR(status.st_mode):
        return None
    return DeviceFile(
        path,
        exists=True,
        readable=os.access(file, os.R_OK),
        writable=os.access(file, os.W_OK),
        group=_group_name(status.st_gid),
        mode=f"{stat.S_IMODE(status.st_mode):04o}",
    )
