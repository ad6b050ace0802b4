"""The PyTorch wheels that a Target can use: those for its system, Python, glibc and GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from flatout.installing.target import Target
from flatout.knowledge.compat import cuda, pytorch
from flatout.knowledge.compat.pytorch import TorchBuild, TorchRelease
from flatout.nouns.errors import UserError

JETSON_PAGE = "https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/"
FIRST_SERVER_LIKE_JETSON = (11, 0)
"""Thor: from this one on, Jetsons run the wheels for ARM servers."""
ANOTHER_PYTHON = "make an environment with another Python: uv venv --python {} .venv"


@dataclass(frozen=True)
class Wheel:
    """One build of one release."""

    release: TorchRelease
    build: TorchBuild

    def arch_list(self, platform: str) -> tuple[str, ...]:
        """The GPU architectures that it has kernels for on this platform, or empty if not known.

        If the list of the platform's own wheel is not recorded, that of the same build's Linux
        x86-64 wheel is used (`inferred`); on ARM only from Hopper on, because those wheels leave
        out older GPUs.
        """
        recorded = self.build.arch_list_on(platform)
        if recorded or not self.inferred(platform):
            return recorded
        if platform != "linux-aarch64":
            return self.build.arch_list
        numbers = {name: re.sub(r"\D", "", name) for name in self.build.arch_list}
        return tuple(name for name, digits in numbers.items() if digits and int(digits) >= 90)

    def inferred(self, platform: str) -> bool:
        """Whether `arch_list` is taken from the Linux x86-64 wheel."""
        return not self.build.arch_list_on(platform) and platform in self.build.systems

    @property
    def name(self) -> str:
        """2.9.1+cu128"""
        return f"{self.release.newest_patch}+{self.build.name}"


def all_wheels() -> Iterator[Wheel]:
    """Every wheel in the table, the newest release first."""
    for release in reversed(pytorch.releases()):
        yield from (Wheel(release, build) for build in release.builds)


def suitable(target: Target) -> list[Wheel]:
    """Wheels for the Target's system, Python and glibc. Raises UserError if there are none."""
    if (target.libc or "").startswith("musl"):
        raise UserError(
            f"PyTorch has no wheels for {target.libc} (Alpine): they are built against glibc",
            "use a system with glibc, in a container for example: flatout env docker",
            1,
        )
    if target.jetson and (target.compute_capability or (0, 0)) < FIRST_SERVER_LIKE_JETSON:
        raise UserError(
            f"PyTorch's own wheels do not run on {target.gpu}: Jetson's come from NVIDIA, for "
            "each JetPack release",
            f"install the wheel for your JetPack: {JETSON_PAGE}",
            1,
        )
    kind, _, version = (target.libc or "").partition(" ")
    glibc = _version(version) if kind == "glibc" and version else None
    is_mac = target.system == "Darwin" and target.distribution_version
    macos = _version(target.distribution_version or "") if is_mac else None
    rules: dict[str, Callable[[Wheel], bool]] = {
        "system": lambda wheel: target.platform in wheel.build.systems,
        "python": lambda wheel: (
            target.python_minor is None or target.python_minor in wheel.release.pythons
        ),
        "glibc": lambda wheel: (
            glibc is None or glibc >= Version(wheel.build.glibc or wheel.release.glibc)
        ),
        "macos": lambda wheel: (
            macos is None or not wheel.release.macos or macos >= Version(wheel.release.macos)
        ),
    }
    candidates = list(all_wheels())
    for name, fits in rules.items():
        fitting = [wheel for wheel in candidates if fits(wheel)]
        if not fitting:
            raise _no_wheel(target, name, candidates)
        candidates = fitting
    return candidates


def with_kernels(target: Target, wheels: list[Wheel]) -> list[Wheel]:
    """The CUDA wheels that are known to have kernels for the Target's GPU."""
    capability, platform = target.compute_capability, target.platform
    documented = [wheel for wheel in wheels if wheel.build.cuda and wheel.arch_list(platform)]
    if capability is None:
        return documented
    return [
        wheel for wheel in documented if pytorch.supports(wheel.arch_list(platform), capability)
    ]


def driver_system(target: Target) -> str:
    """The system whose driver versions apply: WSL uses the driver of Windows."""
    return "Windows" if target.wsl or target.system == "Windows" else "Linux"


def number(driver: str) -> Version | None:
    """A driver's version; a bare branch (535) means its newest release."""
    try:
        return Version(driver if "." in driver else f"{driver}.999")
    except InvalidVersion:
        return None


def minimum_driver(target: Target, wheel: Wheel) -> str | None:
    """The oldest driver on which the wheel runs on this GPU."""
    system = driver_system(target)
    of_cuda = cuda.minimum_driver(wheel.build.cuda or "", system)
    # Drivers older than that of the first CUDA for this GPU do not support it.
    capability = target.compute_capability
    first = cuda.first_for(capability) if capability else None
    of_gpu = cuda.full_driver(first.version, system) if first else None
    versions = [driver for driver in (of_cuda, of_gpu) if driver]
    return max(versions, key=Version, default=None) if of_cuda else None


def full_driver(target: Target, wheel: Wheel) -> str | None:
    """The oldest driver that supports all of the wheel's CUDA, or None if not known."""
    version = wheel.build.cuda or ""
    full = cuda.full_driver(version, driver_system(target))
    if full is None and version.endswith(
        ".0"
    ):  # the first of its major version: minimum and full are equal
        return minimum_driver(target, wheel)
    return full


def at_least(driver: str | None, needed: str | None) -> bool:
    """Whether a driver is known to be at least `needed`."""
    version = number(driver) if driver else None
    return version is not None and needed is not None and version >= Version(needed)


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("9999")  # an unreadable version excludes nothing


def _no_wheel(target: Target, rule: str, candidates: list[Wheel]) -> UserError:
    """Why no wheel is left after one rule."""
    newest = candidates[0].release
    if rule == "system":
        systems = sorted({name for wheel in candidates for name in wheel.build.systems})
        hint = f"PyTorch builds for {', '.join(systems)}"
        if target.platform == "windows-arm64":
            hint = "use an x86-64 Python: Windows runs it by emulation; then --for arch=x86_64"
        return UserError(f"PyTorch has no wheels for {target.platform}", hint, 1)
    if rule == "python":
        newest_python = max(
            (name for name in newest.pythons if not name.endswith("t")), key=Version
        )
        message = f"no PyTorch release has wheels for Python {target.python_minor} on "
        hint = ANOTHER_PYTHON.format(newest_python)
        return UserError(f"{message}{target.platform} (newest: {newest_python})", hint, 1)
    if rule == "glibc":
        oldest = min(
            (wheel.build.glibc or wheel.release.glibc for wheel in candidates), key=Version
        )
        message = f"{target.libc} is too old: PyTorch for this Python needs glibc {oldest}"
        return UserError(message, "use a newer system, or a container: flatout env docker", 1)
    oldest = min((wheel.release.macos or "11.0" for wheel in candidates), key=Version)
    message = f"macOS {target.distribution_version} is too old: PyTorch needs macOS {oldest}"
    return UserError(message, "update macOS", 1)
