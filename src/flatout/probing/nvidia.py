"""NVIDIA's GPUs and driver: from its library, else from its program, and from the kernel.

The program takes up to a second to start, so if the library answers, it is only searched for, not
run. If only one of the two works, that is also reported.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.nouns.gpu import Driver, Gpu, GpuPair
from flatout.probing import nvidia_smi, nvml, program_answer, reading

LIMIT_S = 12.0
SHARE_OF_LIBRARY = 0.75
"""The library's part of the limit: if it hangs, that must still be reported in time."""
HANGS_AFTER_S = 8.0
"""Silence that counts as hanging; without persistence mode each GPU takes seconds to wake."""
MODINFO_LIMIT_S = 0.5
MODINFO = ("modinfo", "/usr/sbin/modinfo", "/sbin/modinfo")
"""Debian leaves the administrators' folders out of users' PATH."""

LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)

Asked = tuple[tuple[Gpu, ...] | None, tuple[GpuPair, ...] | None, Driver]


@dataclass(frozen=True)
class Nvidia:
    """NVIDIA's GPUs and driver."""

    gpus: tuple[Gpu, ...] | None
    """NVIDIA's GPUs, or None if there is a trace of the driver that could not be queried."""
    pairs: tuple[GpuPair, ...] | None
    driver: Driver | None
    """The driver, or None if there is no trace of it."""
    late: str | None = None
    """The message if the library is late, but too little time has passed to call it an error."""


@dataclass(frozen=True)
class NvidiaPaths:
    """Where to look; tests point them elsewhere."""

    kernel: Path = Path("/proc/driver/nvidia/version")
    module: Path = Path("/sys/module/nvidia/version")
    libraries: tuple[Path, ...] = tuple(map(Path, LIBRARY_FOLDERS))
    path: str | None = None
    """PATH, or None for the environment's."""
    programs: tuple[str, ...] = nvidia_smi.OTHER_PLACES
    linux: bool = sys.platform == "linux"


def nvidia(
    library: Any = None,
    ask: program_answer.Ask = program_answer.ask,
    places: NvidiaPaths | None = None,
    limit_s: float = LIMIT_S,
) -> Nvidia:
    """The GPUs, how they are connected, and the driver.

    library: pynvml, or a fake of it. limit_s: for all of it.
    """
    places = places or NvidiaPaths()
    deadline = time.monotonic() + limit_s

    def left_s(limit: float) -> float:
        return min(limit, max(deadline - time.monotonic(), 0.05))

    for_library_s = limit_s * SHARE_OF_LIBRARY
    answer = _library_in_time(library, for_library_s)
    silence = f"did not answer within {for_library_s:.2g} s"
    if answer is not None:
        gpus, pairs, driver = answer
    elif for_library_s < HANGS_AFTER_S:
        gpus, pairs, driver = None, None, Driver(vendor="nvidia")
    else:
        hanging = Driver(vendor="nvidia", nvml_error=silence, smi_error="not run: NVML hangs")
        gpus, pairs, driver = None, None, hanging
    driver = _with_kernel(driver, places)
    program = nvidia_smi.find(places.path, places.programs)
    has_version = (driver.kernel_version or driver.library_version) is not None
    if program is None and driver.nvml_error == nvml.NOT_FOUND and not has_version:
        return Nvidia((), (), None)
    if program is None:
        driver = dataclasses.replace(driver, smi_error=nvidia_smi.NOT_ON_PATH)
    elif gpus is None and answer is not None:  # if one hangs, so does the other
        gpus, reported = nvidia_smi.facts(program, ask, left_s(nvidia_smi.LIMIT_S))
        driver = dataclasses.replace(
            driver,
            version=driver.version or reported.version,
            smi_error=reported.smi_error,
        )
    if places.linux:
        driver = dataclasses.replace(
            driver, installed_version=_installed(ask, left_s(MODINFO_LIMIT_S))
        )
    if pairs is None and gpus is not None and len(gpus) < 2:
        pairs = ()
    late = f"NVML {silence}" if answer is None else None
    return Nvidia(gpus, pairs, driver, late)


def trace(places: NvidiaPaths | None = None) -> bool:
    """Whether there is a trace of NVIDIA's driver; quick, as it only reads files."""
    places = places or NvidiaPaths()
    files = (
        places.kernel,
        places.module,
        *(folder / file for folder in places.libraries for file in LIBRARIES),
    )
    has_file = any(reading.exists(file) for file in files)
    return has_file or nvidia_smi.find(places.path, places.programs) is not None


def _library_in_time(library: Any, limit_s: float) -> Asked | None:
    """The library's answer, or None if late. A broken GPU's driver may never answer."""
    answers: list[Asked] = []

    def ask() -> None:
        try:
            answers.append(nvml.facts(library))
        except Exception as error:  # reported as the reason, as the other facts are still useful
            reason = f"{type(error).__name__}: {error}"
            answers.append((None, None, Driver(vendor="nvidia", nvml_error=reason)))

    thread = threading.Thread(target=ask, daemon=True, name="flatout-nvml")
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else None


def _with_kernel(driver: Driver, places: NvidiaPaths) -> Driver:
    """The driver with the versions found in files."""
    text = reading.text(places.kernel)
    version = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text or "")
    loaded = _version(reading.text(places.module))
    return dataclasses.replace(
        driver,
        kernel_version=version[1] if version else loaded,
        open_kernel_module="Open Kernel Module" in text if text and version else None,
        library_version=_library_version(places.libraries),
    )


def _library_version(folders: tuple[Path, ...]) -> str | None:
    """The version in the name that libcuda.so.1 links to, as in libcuda.so.550.107.02."""
    for folder in folders:
        for name in LIBRARIES:
            try:
                file = (folder / name).resolve(strict=True)
            except (OSError, RuntimeError):  # RuntimeError: a link to itself
                continue
            # WSL's libcuda.so.1.1 leads to Windows' driver and has no version.
            version = re.fullmatch(rf"{re.escape(name[:-2])}\.(\d{{3,4}}(?:\.\d+)+)", file.name)
            if version:
                return version[1]
    return None


def _installed(ask: program_answer.Ask, limit_s: float) -> str | None:
    """The version of the module on disk for the running kernel."""
    for program in MODINFO:
        answer = ask([program, "-F", "version", "nvidia"], limit_s)
        if answer.code is not None:
            return _version(answer.text) if answer.code == 0 else None
    return None


def _version(text: str | None) -> str | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)+)\s*", text or "")
    return match[1] if match else None
