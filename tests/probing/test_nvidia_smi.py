"""nvidia-smi's answers: whole, refused, broken and none at all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Driver, Gpu
from flatout.probing import nvidia_smi
from flatout.probing.program_answer import ProgramAnswer, ask
from probing.smi_answers import A100S, CANNOT_TALK, LOST, MISMATCH, RTX_4090

MIB = 2**20


def facts(out: str, code: int = 0, err: str = "") -> tuple[tuple[Gpu, ...] | None, Driver]:
    return nvidia_smi.facts(
        "nvidia-smi", lambda command, limit_s: ProgramAnswer(out, code, errors=err)
    )


def test_a_workstation() -> None:
    gpus, driver = facts(RTX_4090)
    assert driver == Driver(vendor="nvidia", version="570.124.06")
    assert gpus == (
        Gpu(
            vendor="nvidia",
            name="NVIDIA GeForce RTX 4090",
            index=0,
            uuid="GPU-8c5e2d1a-0000-1111-2222-333344445555",
            pci_address="0000:01:00.0",
            driver_sees=True,
            memory_bytes=24564 * MIB,
        ),
    )


def test_a_node_is_asked_once() -> None:
    asked: list[Sequence[str]] = []

    def once(command: Sequence[str], limit_s: float) -> ProgramAnswer:
        asked.append(command)
        return ProgramAnswer(A100S, 0)

    gpus, driver = nvidia_smi.facts("/usr/bin/nvidia-smi", once)
    assert [command[0] for command in asked] == ["/usr/bin/nvidia-smi"]
    assert driver.version == "525.147.05"
    assert [(gpu.index, gpu.pci_address) for gpu in gpus or ()] == [
        (0, "0000:07:00.0"),
        (1, "0000:0f:00.0"),
    ]


@pytest.mark.parametrize("refusal", ["N/A", "[N/A]", "[Not Supported]", "Unknown Error", "ERR!"])
def test_refusals_are_none(refusal: str) -> None:
    gpus, driver = facts(", ".join([refusal] * 5))
    assert driver.version is None
    assert gpus == (Gpu("nvidia", index=0, driver_sees=True),)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ProgramAnswer(CANNOT_TALK, 9), " ".join(CANNOT_TALK.split())),
        (
            ProgramAnswer(MISMATCH, 18),
            "Failed to initialize NVML: Driver/library version mismatch "
            "NVML library version: 550.107",
        ),
        (ProgramAnswer(LOST, 15), " ".join(LOST.split())),
        (
            ProgramAnswer("", 127, errors="error while loading shared libraries"),
            "error while loading",
        ),
        (ProgramAnswer("", 1), "ended with exit code 1"),
        (ProgramAnswer("", 0), "answered nothing"),
        (ProgramAnswer("hello", 0), "its answer could not be understood: hello"),
        (ProgramAnswer("", None, "did not answer within 5 s"), "did not answer within 5 s"),
    ],
)
def test_why_it_does_not_tell(answer: ProgramAnswer, reason: str) -> None:
    gpus, driver = nvidia_smi.facts("nvidia-smi", lambda command, limit_s: answer)
    assert gpus is None
    assert driver.smi_error.startswith(reason)
    assert "\n" not in driver.smi_error
    assert driver == Driver(vendor="nvidia", smi_error=driver.smi_error)


def test_a_machine_without_a_gpu_is_none_and_no_unknown() -> None:
    assert facts("No devices were found\n", 6)[0] == ()


def test_a_warning_by_its_exit_code_is_told_beside_the_facts() -> None:
    gpus, driver = facts(RTX_4090, code=14)
    assert (len(gpus or ()), driver.smi_error) == (1, "ended with exit code 14")


@given(st.text() | st.binary().map(lambda raw: raw.decode(errors="replace")), st.integers(0, 20))
def test_garbage_tells_nothing(text: str, code: int) -> None:
    gpus, driver = facts(text, code)
    assert not gpus or all(gpu.memory_bytes is None for gpu in gpus)
    assert driver.version is None


def test_where_the_program_is(tmp_path: Path) -> None:
    name = "nvidia-smi.exe" if sys.platform == "win32" else "nvidia-smi"
    aside = tmp_path / "aside"
    aside.mkdir()
    assert nvidia_smi.find(str(tmp_path), ()) is None
    (aside / name).write_text("#!/bin/sh\nexit 3\n")
    (aside / name).chmod(0o755)
    assert nvidia_smi.find(str(tmp_path), [str(aside)]) == str(aside / name)
    assert nvidia_smi.find("", ()) is None


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_a_real_program(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(RTX_4090)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    program.chmod(0o755)
    gpus, driver = nvidia_smi.facts(str(program), ask)
    assert [gpu.name for gpu in gpus or ()] == ["NVIDIA GeForce RTX 4090"]
    assert driver.smi_error is None
