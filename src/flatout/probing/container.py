"""Whether this process is in a container, in WSL or in a virtual machine, and which.

A file such as /.dockerenv alone proves nothing: it remains when an image is started as a virtual
machine or WSL distribution. So the kernel's namespaces decide first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from flatout.nouns.machine import Container
from flatout.probing import reading

ROOT = Path("/")
GPU_FILE = re.compile(r"nvidia[0-9]+|kfd|dxg|nvhost-gpu|nvhost-ctrl-gpu")

INITIAL_NAMESPACES = {
    "pid": 4026531836,
    "uts": 4026531838,
    "ipc": 4026531839,
    "cgroup": 4026531835,
}
"""Inode numbers of the host's own namespaces: the same in every kernel since 3.8
(include/linux/proc_ns.h)."""

GROUPS = (  # container engine, by the cgroup's path
    ("kubernetes", r"/kubepods"),
    ("podman", r"/libpod-"),
    ("docker", r"/docker[/-][0-9a-f]{12}"),
    ("containerd", r"/cri-containerd-|/nerdctl-"),
    ("lxc", r"/lxc/|/lxc\.payload"),
)
ROOT_MOUNTS = (  # container engine, by the location of the root folder's layers
    ("docker", r"/docker/overlay2/"),
    ("podman", r"/containers/storage/overlay"),
    ("containerd", r"/io\.containerd\.snapshotter"),
)
MAKERS = (  # hypervisor, by DMI vendor and product
    ("vmware", r"VMware"),
    ("microsoft", r"Microsoft Corporation Virtual Machine"),
    ("virtualbox", r"innotek GmbH|VirtualBox"),
    ("xen", r"^Xen\b|HVM domU"),
    ("kvm", r"\bQEMU\b|\bKVM\b|RHEV|oVirt"),
)


def container(environment: Mapping[str, str] | None = None, root: Path = ROOT) -> Container:
    """Where this process runs. root: the folder of /proc, /sys and /dev."""
    variables = os.environ if environment is None else environment
    wsl = wsl_version(root)
    kind = _kind(variables, root, wsl is not None)
    is_inside = kind is not None or wsl is not None
    devices = reading.entries(root / "dev") if is_inside else None
    has_gpu = None if devices is None else any(GPU_FILE.fullmatch(file.name) for file in devices)
    return Container(
        kind=kind,
        wsl=wsl,
        gpu_passed_through=has_gpu,
        virtual_machine="microsoft" if wsl == 2 else _virtual_machine(root),
    )


def isolated(root: Path = ROOT) -> bool | None:
    """Whether it has its own namespaces, as containers do, or None if unknown."""
    links = {name: reading.link_name(root / "proc/self/ns" / name) for name in INITIAL_NAMESPACES}
    if all(link is None for link in links.values()):
        return None
    return any(
        link is not None and link != f"{name}:[{INITIAL_NAMESPACES[name]}]"
        for name, link in links.items()
    )


def wsl_version(root: Path = ROOT) -> int | None:
    """1 or 2, from the kernel's release, or None if not WSL."""
    # The third word is the kernel's release; the rest names whoever built the kernel.
    words = (reading.text(root / "proc/version") or "").split()
    release = words[2].lower() if words[:2] == ["Linux", "version"] and len(words) > 2 else ""
    if "microsoft" in release:
        first = "wsl2" not in release and "standard" not in release
        return 1 if first and release.startswith(("3.4", "4.4.0-")) else 2
    if "wsl2" in release or reading.exists(root / "proc/sys/fs/binfmt_misc/WSLInterop"):
        return 2  # a kernel that the user built
    return None


def _kind(environment: Mapping[str, str], root: Path, wsl: bool) -> str | None:
    if any(name in environment for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")):
        return "singularity"  # it shares all namespaces except one with the machine
    groups = [reading.text(root / "proc" / process / "cgroup") or "" for process in ("1", "self")]
    by_group = _first_match(GROUPS, "\n".join(groups))
    mounts = (reading.text(root / "proc/self/mountinfo") or "").splitlines()
    root_mount = next((line for line in mounts if line.split(" ")[4:5] == ["/"]), "")
    is_isolated = isolated(root)
    if is_isolated is False and by_group is None:
        return None
    if wsl and by_group is None and " - overlay " not in root_mount:
        return None  # the distribution itself, to which WSL gives its own namespaces
    return _engine(environment, root) or by_group or _first_match(ROOT_MOUNTS, root_mount)


def _engine(environment: Mapping[str, str], root: Path) -> str | None:
    account = root / "var/run/secrets/kubernetes.io/serviceaccount"
    if "KUBERNETES_SERVICE_HOST" in environment or reading.exists(account):
        return "kubernetes"
    if reading.exists(root / "run/.containerenv"):
        return "podman"
    if reading.exists(root / ".dockerenv"):
        return "docker"
    manager = reading.text(root / "run/systemd/container") or environment.get("container", "")
    names = {"lxc": "lxc", "lxc-libvirt": "lxc", "podman": "podman", "docker": "docker"}
    if manager in names:
        return names[manager]
    return "lxc" if reading.exists(root / "dev/.lxc") else None


def _first_match(table: Iterable[tuple[str, str]], text: str) -> str | None:
    return next((name for name, words in table if re.search(words, text)), None)


def _virtual_machine(root: Path) -> str | None:
    """The hypervisor, by firmware tables and clocks, or None if bare metal or unknown."""
    descriptions = [
        reading.text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")
    ]
    maker = " ".join(filter(None, descriptions))
    hypervisor = _first_match(MAKERS, maker)
    if hypervisor is not None:
        return hypervisor
    if maker.startswith("Amazon EC2"):
        return None if "metal" in maker else "kvm"
    cpuinfo = reading.text(root / "proc/cpuinfo", 2**15) or ""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    signs = ("proc/device-tree/hypervisor", "sys/hypervisor/type")  # ARM's device tree
    if "hypervisor" not in flags.split() and not any(reading.exists(root / p) for p in signs):
        return None
    clocks = root / "sys/devices/system/clocksource/clocksource0/available_clocksource"
    hypervisors = {"kvm-clock": "kvm", "hyperv_clocksource_tsc_page": "microsoft", "xen": "xen"}
    words = (reading.text(clocks) or "").split()
    return next((hypervisors[word] for word in words if word in hypervisors), None)
