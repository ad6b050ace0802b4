"""NVIDIA from all sides: what is asked when, and how the answers come together."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pynvml
import pytest

from flatout.nouns.gpu import Driver
from flatout.probing import nvidia
from flatout.probing.nvidia import NvidiaPaths
from flatout.probing.program_answer import ProgramAnswer
from probing.nvml.fake import Nvml, consumer, h100_node, workstation
from probing.smi_answers import CANNOT_TALK, MISMATCH, RTX_4090

CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.107.02  Wed Jul 24 23:53:00 UTC 2024
GCC version:  gcc version 13.2.0 (Ubuntu 13.2.0-23ubuntu4)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (builder@host)
GCC version:  gcc version 13.3.0
"""


class Programs:
    """nvidia-smi and modinfo, and who was asked."""

    def __init__(self, smi: ProgramAnswer | None = None, modinfo: str = "570.124.06\n") -> None:
        self.smi, self.modinfo = smi or ProgramAnswer("", 9), modinfo
        self.asked: list[str] = []

    def __call__(self, command: Sequence[str], limit_s: float) -> ProgramAnswer:
        self.asked.append(Path(command[0]).stem)
        if command[0] == "modinfo":
            return ProgramAnswer("", None, "not found")  # Debian: not on an ordinary user's PATH
        if command[0].endswith("modinfo"):
            assert list(command[1:]) == ["-F", "version", "nvidia"]
            return (
                ProgramAnswer(self.modinfo, 0)
                if self.modinfo
                else ProgramAnswer("", 1, errors="not found")
            )
        return self.smi


@pytest.fixture
def places(tmp_path: Path) -> NvidiaPaths:
    """A machine without any trace; the tests add to it."""
    (tmp_path / "bin").mkdir()
    return NvidiaPaths(
        kernel=tmp_path / "version",
        module=tmp_path / "module",
        libraries=(tmp_path / "nowhere", tmp_path / "lib"),
        path=str(tmp_path / "bin"),
        programs=(),
        linux=True,
    )


def with_smi(places: NvidiaPaths) -> NvidiaPaths:
    name = "nvidia-smi.exe" if sys.platform == "win32" else "nvidia-smi"
    program = Path(places.path or "") / name
    program.touch()
    program.chmod(0o755)
    return places


def with_library(places: NvidiaPaths, version: str) -> NvidiaPaths:
    folder = places.libraries[1]
    folder.mkdir()
    (folder / f"libcuda.so.{version}").touch()
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    return places


def not_starting(number: int) -> Nvml:
    return Nvml([consumer()], {"nvmlInit": pynvml.NVMLError(number)})


def test_where_all_is_well_the_program_is_not_started(places: NvidiaPaths) -> None:
    places.kernel.write_text(OPEN)
    programs = Programs()
    found = nvidia.nvidia(h100_node(), programs, with_library(with_smi(places), "570.124.06"))
    assert found.driver == Driver(
        vendor="nvidia",
        version="570.124.06",
        kernel_version="570.124.06",
        installed_version="570.124.06",
        library_version="570.124.06",
        cuda="12.8",
        open_kernel_module=True,
    )
    assert (len(found.gpus or ()), len(found.pairs or ())) == (8, 28)
    assert "nvidia-smi" not in programs.asked
    assert nvidia.trace(places)


def test_the_program_helps_where_the_library_is_not_found(places: NvidiaPaths) -> None:
    programs = Programs(ProgramAnswer(RTX_4090, 0))
    found = nvidia.nvidia(not_starting(12), programs, with_smi(places))
    assert [gpu.name for gpu in found.gpus or ()] == ["NVIDIA GeForce RTX 4090"]
    assert found.pairs == ()
    assert found.driver == Driver(
        vendor="nvidia",
        version="570.124.06",
        installed_version="570.124.06",
        nvml_error="NVML Shared Library Not Found",
    )


def test_the_driver_was_updated_and_not_restarted(places: NvidiaPaths) -> None:
    places.kernel.write_text(CLOSED)
    programs = Programs(ProgramAnswer(MISMATCH, 18))
    found = nvidia.nvidia(not_starting(18), programs, with_library(with_smi(places), "550.120"))
    assert (found.gpus, found.pairs) == (None, None)
    assert found.driver.nvml_error == "Driver/library version mismatch"
    assert (found.driver.smi_error or "").startswith("Failed to initialize NVML")
    assert (found.driver.kernel_version, found.driver.library_version) == ("550.107.02", "550.120")
    assert found.driver.open_kernel_module is False


def test_the_module_is_not_loaded(places: NvidiaPaths) -> None:
    programs = Programs(ProgramAnswer(CANNOT_TALK, 9), modinfo="")
    found = nvidia.nvidia(not_starting(9), programs, with_library(with_smi(places), "550.120"))
    assert found.gpus is None
    assert found.driver.nvml_error == "Driver Not Loaded"
    assert (found.driver.kernel_version, found.driver.installed_version) == (None, None)


@pytest.mark.parametrize(
    ("kernel", "module", "version"),
    [
        (None, "550.107.02\n", "550.107.02"),
        (b"\xff\xfe Kernel Module  unknown", "what?", None),
    ],
)
def test_the_module_tells_its_version_where_proc_does_not(
    kernel: bytes | None, module: str, version: str | None, places: NvidiaPaths
) -> None:
    places.module.write_text(module)
    if kernel is not None:
        places.kernel.write_bytes(kernel)
    found = nvidia.nvidia(workstation(), Programs(modinfo="modinfo: ERROR"), places)
    assert (found.driver.kernel_version, found.driver.open_kernel_module) == (version, None)
    assert found.driver.installed_version is None


def test_a_link_to_itself_is_no_library(places: NvidiaPaths) -> None:
    folder = places.libraries[1]
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.1")
    assert nvidia.nvidia(not_starting(12), Programs(), places).driver is None


@pytest.fixture
def asleep() -> Iterator[Callable[[str], Nvml]]:
    """A driver in which this function does not return before the test is over."""
    over = threading.Event()
    yield lambda function: Nvml([consumer()], {function: lambda *_: over.wait(300)})
    over.set()


def test_a_driver_that_is_slow_is_not_called_broken(
    places: NvidiaPaths, asleep: Callable[[str], Nvml]
) -> None:
    places.kernel.write_text(CLOSED)
    programs = Programs(ProgramAnswer(RTX_4090, 0))
    found = nvidia.nvidia(asleep("nvmlInit"), programs, with_smi(places), limit_s=0.04)
    assert (found.gpus, found.pairs) == (None, None)
    assert found.late == "NVML did not answer within 0.03 s"
    assert found.driver.kernel_version == "550.107.02"
    assert (found.driver.nvml_error, found.driver.smi_error) == (None, None)
    assert "nvidia-smi" not in programs.asked


def test_a_driver_that_hangs_is_told(
    places: NvidiaPaths, asleep: Callable[[str], Nvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "HANGS_AFTER_S", 0.02)
    library = asleep("nvmlDeviceGetHandleByIndex")
    found = nvidia.nvidia(library, Programs(), with_smi(places), limit_s=0.04)
    assert found.driver.nvml_error == "did not answer within 0.03 s"
    assert found.driver.smi_error == "not run: NVML hangs"


def test_modinfo_is_asked_on_linux_alone(places: NvidiaPaths) -> None:
    programs = Programs()
    nvidia.nvidia(workstation(), programs, dataclasses.replace(places, linux=False))
    assert programs.asked == []


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    found = nvidia.nvidia()
    assert found.gpus
    assert found.driver.version == (found.driver.kernel_version or found.driver.version)
