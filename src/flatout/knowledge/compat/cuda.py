"""CUDA toolkit <-> driver, and the architectures that a toolkit supports.

Versions are text as NVIDIA writes them: CUDA "12.8"; drivers "570.86.15" (Linux), "572.16"
(Windows).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from flatout.knowledge.compat import tables


@dataclass(frozen=True)
class CudaRelease:
    """One CUDA toolkit release (major.minor; updates are not distinguished)."""

    version: str
    released: str
    """YYYY-MM."""
    linux_driver: str | None
    """Oldest Linux driver that fully supports it (the branch alone: 615), or None if unknown."""
    windows_driver: str | None
    """Oldest Windows driver, or None if not named (since 13.0, Windows drivers are separate)."""
    oldest_capability: tuple[int, int]
    """Oldest compute capability for which its nvcc builds."""
    newest_capability: tuple[int, int]
    source: str
    capabilities: tuple[tuple[int, int], ...] = ()
    """All compute capabilities for which its nvcc builds, the lowest first."""


@dataclass(frozen=True)
class DriverRange:
    """Oldest drivers on which programs of one CUDA major run (minor-version compatibility)."""

    major: str
    linux_driver: str
    windows_driver: str | None
    source: str


@dataclass(frozen=True)
class DriverEnd:
    """The last driver branch for GPUs up to one compute capability."""

    newest_capability: tuple[int, int]
    branch: str
    source: str


@cache
def releases() -> tuple[CudaRelease, ...]:
    """All releases, the oldest first."""
    return tables.releases("cuda.toml", _release)


@cache
def driver_ranges() -> tuple[DriverRange, ...]:
    """The drivers of each CUDA major, the oldest first."""
    return tuple(
        DriverRange(
            major=row.text("major"),
            linux_driver=row.text("linux_driver"),
            windows_driver=row.text_or_none("windows_driver"),
            source=row.source(),
        )
        for row in tables.read("cuda.toml").rows("minor_version_compatibility")
    )


@cache
def driver_ends() -> tuple[DriverEnd, ...]:
    """The driver branches in which support of old GPUs ended, the oldest first."""
    return tuple(
        DriverEnd(
            newest_capability=row.capability("newest_capability"),
            branch=row.text("branch"),
            source=row.source(),
        )
        for row in tables.read("cuda.toml").rows("last_driver")
    )


@cache
def never_released() -> tuple[str, ...]:
    """Versions that NVIDIA skipped: drivers may report them, but no toolkit has them."""
    return tables.read("cuda.toml").texts("never_released")


def release(version: str) -> CudaRelease | None:
    """The release of "12.8" (or "12.8.1"), or None if not in the table."""
    return tables.release(releases(), version)


def first_for(capability: tuple[int, int]) -> CudaRelease | None:
    """The first toolkit in the table that builds for a compute capability, or None.

    Drivers older than its own do not support such a GPU.
    """
    return next((entry for entry in releases() if capability in entry.capabilities), None)


def minimum_driver(cuda: str, system: str) -> str | None:
    """Oldest driver on which programs built with this CUDA run, by minor-version compatibility.

    12.x programs run on drivers from the first 12.0 branch on (Linux >= 525.60.13), as long as they
    need no newer feature and compile no PTX at run time. The same holds for 11.x (>= 450.80.02;
    11.0 itself on its own, older driver) and 13.x (>= 580). system: Linux or Windows.
    """
    entry = release(cuda)
    if entry is None:
        return None
    major = entry.version.split(".")[0]
    family = next((row for row in driver_ranges() if row.major == major), None)
    versions = [_driver(row, system) for row in (family, entry) if row is not None]
    return min((driver for driver in versions if driver), key=Version, default=None)


def full_driver(cuda: str, system: str) -> str | None:
    """Oldest driver that supports all of this CUDA, PTX included."""
    entry = release(cuda)
    return _driver(entry, system) if entry else None


def driver_runs(driver: str, cuda: str, system: str) -> bool | None:
    """Whether programs built with this CUDA run on this driver, by minor-version compatibility.

    None if the driver's version cannot be read, or the tables lack this CUDA or system.
    """
    minimum = minimum_driver(cuda, system)
    version = tables.number(driver)
    if minimum is None or version is None:
        return None
    return version >= Version(minimum)


def newest_for_driver(driver: str, system: str) -> str | None:
    """The newest CUDA whose programs run on this driver, by minor-version compatibility."""
    runs = [entry.version for entry in releases() if driver_runs(driver, entry.version, system)]
    return max(runs, key=Version, default=None)


def last_driver_branch(capability: tuple[int, int]) -> str | None:
    """Newest driver branch that still supports GPUs of this compute capability.

    "470" for Kepler (3.5, 3.7), "580" for Maxwell, Pascal and Volta, None if still supported.
    """
    ends = (end.branch for end in driver_ends() if capability <= end.newest_capability)
    return next(ends, None)


def _release(row: tables.Row) -> CudaRelease:
    capabilities = row.capabilities("capabilities")
    return CudaRelease(
        version=row.text("version"),
        released=row.month("released"),
        linux_driver=row.text_or_none("linux_driver"),
        windows_driver=row.text_or_none("windows_driver"),
        oldest_capability=capabilities[0],
        newest_capability=capabilities[-1],
        source=row.source(),
        capabilities=capabilities,
    )


def _driver(row: CudaRelease | DriverRange, system: str) -> str | None:
    versions = {"linux": row.linux_driver, "windows": row.windows_driver}
    return versions.get(system.lower())
