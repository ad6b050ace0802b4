"""PyTorch releases: their builds, Python versions, and the GPUs that builds have kernels for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from flatout.knowledge.compat import tables

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_FAMILIES = (((10, 0), (10, 3), (10, 7)), ((10, 1),), ((11, 0),), ((12, 0), (12, 1)))
"""Compute capabilities that share family code such as sm_100f (10.1 stands alone)."""


@dataclass(frozen=True)
class TorchBuild:
    """One kind of wheel of one release."""

    name: str
    """cpu, cu128, rocm6.4, xpu: the last part of its index address. macOS: "cpu" (holds MPS)."""
    systems: tuple[str, ...]
    """linux-x86_64, linux-aarch64, windows-x86_64, macos-arm64, macos-x86_64."""
    cuda: str | None = None
    """12.8, or None if it is not a CUDA build."""
    rocm: str | None = None
    arch_list: tuple[str, ...] = ()
    """torch.cuda.get_arch_list() of the linux-x86_64 wheel: sm_75, ..., compute_120; for ROCm:
    gfx90a, gfx942. Empty if unknown, or if the build is for no GPU."""
    cudnn: str | None = None
    default_on: tuple[str, ...] = ()
    """Systems on which a plain `pip install torch` installs this build."""
    source: str | None = None
    windows_arch_list: tuple[str, ...] = ()
    """The same for the windows-x86_64 wheel; empty if unknown."""
    aarch64_arch_list: tuple[str, ...] = ()
    """The same for the linux-aarch64 wheel; empty if unknown."""
    glibc: str | None = None
    """Oldest glibc of its Linux x86_64 wheels, or None for that of the release."""

    def arch_list_on(self, system: str) -> tuple[str, ...]:
        """The arch list of the wheel for one system; empty if unknown."""
        lists = {"windows-x86_64": self.windows_arch_list, "linux-aarch64": self.aarch64_arch_list}
        return lists.get(system, self.arch_list if system == "linux-x86_64" else ())


@dataclass(frozen=True)
class TorchRelease:
    """One release, major.minor.patch of its first patch: 2.7.0; later patches share the entry."""

    version: str
    """2.7"""
    newest_patch: str
    """2.7.1"""
    released: str
    """YYYY-MM."""
    pythons: tuple[str, ...]
    """3.9, ..., 3.13; free-threaded ones as 3.13t."""
    builds: tuple[TorchBuild, ...]
    glibc: str
    """Oldest glibc of its Linux x86_64 wheels: 2.28."""
    triton: str | None
    source: str
    torchvision: str | None = None
    """The matching version of torchvision: 0.22."""
    torchaudio: str | None = None
    macos: str | None = None
    """Oldest macOS of its arm64 wheels: 11.0."""


@cache
def releases() -> tuple[TorchRelease, ...]:
    """All releases from 1.12 on, the oldest first."""
    return tables.releases("pytorch.toml", _release)


def release(version: str) -> TorchRelease | None:
    """The release of "2.7.1", "2.7" or "2.7.1+cu128", or None if not in the table."""
    return tables.release(releases(), version)


def newest() -> TorchRelease:
    """The newest release in the table."""
    return releases()[-1]


def build(version: str, name: str) -> TorchBuild | None:
    """The build of that name ("cu128") in that version's release, or None if not in the table."""
    entry = release(version)
    builds = entry.builds if entry else ()
    return next((wheel for wheel in builds if wheel.name == name), None)


def index_url(name: str, mirror: str | None = None) -> str:
    """The address of the wheels of one build.

    mirror: the address of a mirror of the whole index. The build's name replaces {build}, or is
    appended if there is no {build}.
    """
    pattern = mirror or tables.read("pytorch.toml").text("index")
    if "{build}" not in pattern:
        pattern = pattern.rstrip("/") + "/{build}"
    return pattern.replace("{build}", name)


def supports(arch_list: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether a build with this arch list runs on a GPU of this compute capability.

    NVIDIA's rules: sm_XY runs on the same major with an equal or higher minor. compute_XY (PTX)
    runs on anything newer. sm_90a and the like run only on that one, sm_120f and the like on their
    family.
    """
    return any(_runs(architecture, capability) for architecture in arch_list)


def oldest_capability(arch_list: tuple[str, ...]) -> tuple[int, int] | None:
    """The lowest compute capability with a kernel in the list."""
    matches = (_ARCHITECTURE.fullmatch(architecture) for architecture in arch_list)
    return min(((int(match[2]), int(match[3])) for match in matches if match), default=None)


def _runs(architecture: str, capability: tuple[int, int]) -> bool:
    match = _ARCHITECTURE.fullmatch(architecture)
    if not match:
        return False
    kind, major, lowest, suffix = match[1], int(match[2]), int(match[3]), match[4]
    if suffix == "a":
        return capability == (major, lowest)
    if suffix == "f":
        family = next((members for members in _FAMILIES if (major, lowest) in members), ())
        return capability in family and capability >= (major, lowest)
    if kind == "compute":
        return capability >= (major, lowest)
    return capability[0] == major and capability[1] >= lowest


def _release(row: tables.Row) -> TorchRelease:
    return TorchRelease(
        version=row.text("version"),
        newest_patch=row.text("newest_patch"),
        released=row.month("released"),
        pythons=row.texts("pythons"),
        builds=tuple(_build(wheel) for wheel in row.rows("build")),
        glibc=row.text("glibc"),
        triton=row.text_or_none("triton"),
        source=row.source(),
        torchvision=row.text_or_none("torchvision"),
        torchaudio=row.text_or_none("torchaudio"),
        macos=row.text_or_none("macos"),
    )


def _build(row: tables.Row) -> TorchBuild:
    name = row.text("name")
    systems, default_on = row.texts("systems"), row.texts("default_on")
    if (
        not systems
        or not set(systems) <= set(tables.SYSTEMS)
        or not set(default_on) <= set(systems)
    ):
        raise ValueError(f"{row.where}: systems or default_on name an unknown system")
    cuda = re.fullmatch(r"cu(\d+)(\d)", name)
    return TorchBuild(
        name=name,
        systems=systems,
        cuda=f"{cuda[1]}.{cuda[2]}" if cuda else None,
        rocm=name.removeprefix("rocm") if name.startswith("rocm") else None,
        arch_list=_arch_list(row, "arch_list"),
        cudnn=row.text_or_none("cudnn"),
        default_on=default_on,
        source=row.source() if "source" in row.fields else None,
        windows_arch_list=_arch_list(row, "windows_arch_list"),
        aarch64_arch_list=_arch_list(row, "aarch64_arch_list"),
        glibc=row.text_or_none("glibc"),
    )


def _arch_list(row: tables.Row, name: str) -> tuple[str, ...]:
    """The build scripts' list ("8.0;9.0+PTX", "gfx90a;gfx942") in torch's notation."""
    entries = (row.text_or_none(name) or "").split(";")
    binaries = [_binary(row, name, entry.removesuffix("+PTX")) for entry in entries if entry]
    portable = [
        _binary(row, name, entry.removesuffix("+PTX")).replace("sm_", "compute_")
        for entry in entries
        if entry.endswith("+PTX")
    ]
    return (*binaries, *portable)


def _binary(row: tables.Row, name: str, entry: str) -> str:
    if re.fullmatch(r"gfx[0-9a-f]{3,4}", entry):
        return entry
    match = re.fullmatch(r"(\d+)\.(\d[af]?)", entry)
    if not match:
        raise ValueError(f"{row.where}: {name} holds {entry!r}, which is not an architecture")
    return f"sm_{match[1]}{match[2]}"
