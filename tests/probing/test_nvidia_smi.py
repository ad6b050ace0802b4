"""nvidia-smi's answers: whole, refused, broken and none at all."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.gpu import Driver, Gpu, GpuProcess
from flatout.probing import nvidia_smi
from flatout.probing.program_answer import ProgramAnswer, ask
from probing.smi_logs import A100_LIST, A100_MIG, CANNOT_TALK, LOST, MISMATCH, RTX_4090

MIB = 2**20


def facts(out: str, code: int = 0, err: str = "") -> tuple[tuple[Gpu, ...] | None, Driver]:
    return nvidia_smi.facts(
        "nvidia-smi", lambda command, limit_s: ProgramAnswer(out, code, errors=err)
    )


def first(out: str) -> Gpu:
    gpus, _ = facts(out)
    assert gpus
    return gpus[0]


def test_a_workstation() -> None:
    gpus, driver = facts(RTX_4090)
    assert driver == Driver(vendor="nvidia", version="570.124.06", cuda="12.8")
    assert gpus == (
        Gpu(
            vendor="nvidia",
            name="NVIDIA GeForce RTX 4090",
            index=0,
            uuid="GPU-8c5e2d1a-0000-1111-2222-333344445555",
            pci_address="0000:01:00.0",
            pci_id="10de:2684",
            driver_sees=True,
            memory_bytes=24564 * MIB,
            memory_used_bytes=1243 * MIB,
            pcie_generation=1,
            pcie_generation_max=4,
            pcie_generation_card=4,
            pcie_width=8,
            pcie_width_max=16,
            utilization=0.07,
            temperature_c=41,
            power_w=21.4,
            power_limit_w=320.0,
            power_limit_default_w=450.0,
            power_limit_max_w=600.0,
            clock_sm_mhz=210,
            clock_sm_max_mhz=3105,
            clock_memory_mhz=405,
            clock_memory_max_mhz=10501,
            throttles=("gpu_idle",),
            ecc=False,
            persistence_mode=False,
            compute_mode="default",
            display=True,
            processes=(
                GpuProcess(1802, "/usr/lib/xorg/Xorg", 312 * MIB, computes=False),
                GpuProcess(20991, None, None),
            ),
        ),
    )


def test_a_node_with_slices_and_an_older_driver() -> None:
    asked: list[Sequence[str]] = []

    def ask(command: Sequence[str], limit_s: float) -> ProgramAnswer:
        asked.append(command)
        return ProgramAnswer(A100_LIST if "-L" in command else A100_MIG, 0)

    gpus, driver = nvidia_smi.facts("/usr/bin/nvidia-smi", ask)
    assert asked == [["/usr/bin/nvidia-smi", "-q", "-x"], ["/usr/bin/nvidia-smi", "-L"]]
    assert driver.version == "525.147.05"
    assert gpus is not None
    assert [(gpu.index, gpu.mig, gpu.mig_slices) for gpu in gpus] == [
        (0, False, ()),
        (1, True, ("3g.20gb", "1g.5gb+me")),
    ]
    sliced = gpus[1]
    assert (sliced.pci_address, sliced.pci_id) == ("0000:0f:00.0", "10de:20b0")
    assert (sliced.ecc, sliced.ecc_uncorrected, sliced.ecc_uncorrected_lifetime) == (True, 1, 7)
    assert (sliced.retirement_pending, sliced.row_remap_failed) == (True, False)
    assert (sliced.compute_mode, sliced.throttles) == ("exclusive_process", ("sw_power_cap",))
    assert (sliced.power_w, sliced.power_limit_w) == (54.28, 400.0)
    assert (sliced.temperature_slowdown_c, sliced.utilization) == (89, None)
    assert (sliced.pcie_generation_max, sliced.pcie_generation_card) == (4, None)
    assert sliced.processes == ()


@pytest.mark.parametrize(
    "refusal",
    ["N/A", "[N/A]", "[Not Supported]", "Unknown Error", "ERR!", "", "[GPU requires reset]"],
)
def test_refusals_are_none(refusal: str) -> None:
    refused = re.sub(r">[^<>\s][^<>]*<", f">{refusal}<", RTX_4090)
    gpus, driver = facts(refused)
    assert (driver.version, driver.cuda) == (None, None)
    assert gpus is not None
    assert dataclasses.replace(gpus[0], processes=None) == Gpu("nvidia", index=0, driver_sees=True)
    assert not gpus[0].processes


def test_no_list_of_processes() -> None:
    before, _, rest = RTX_4090.partition("<processes>")
    without = f"{before}<processes>N/A</processes>{rest.partition('</processes>')[2]}"
    assert first(without).processes is None


def test_errors_counted_in_one_total() -> None:
    old = """<volatile><double_bit><device_memory>4</device_memory><total>4</total></double_bit>
        </volatile><aggregate><double_bit><total>N/A</total></double_bit></aggregate>"""
    log = re.sub(r"(<ecc_errors>).*?(</ecc_errors>)", rf"\1{old}\2", RTX_4090, flags=re.DOTALL)
    assert (first(log).ecc_uncorrected, first(log).ecc_uncorrected_lifetime) == (4, None)


def test_a_program_with_unprintable_letters_in_its_name() -> None:
    log = RTX_4090.replace("/usr/lib/xorg/Xorg", "/opt/\x01\x1b[0m game")
    assert [process.name for process in first(log).processes or ()] == ["/opt/[0m game", None]


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
        (ProgramAnswer(RTX_4090[:2000], 0), "its answer could not be understood"),
        (ProgramAnswer("<html></html>", 0), "its answer could not be understood"),
        (ProgramAnswer("", None, "did not answer within 5 s"), "did not answer within 5 s"),
    ],
)
def test_why_it_does_not_tell(answer: ProgramAnswer, reason: str) -> None:
    gpus, driver = nvidia_smi.facts("nvidia-smi", lambda command, limit_s: answer)
    assert gpus is None
    assert driver.smi_error is not None
    assert driver.smi_error.startswith(reason)
    assert "\n" not in driver.smi_error
    assert driver == Driver(vendor="nvidia", smi_error=driver.smi_error)


def test_a_warning_by_its_exit_code_is_told_beside_the_facts() -> None:
    gpus, driver = facts(RTX_4090, code=14)
    assert (len(gpus or ()), driver.smi_error) == (1, "ended with exit code 14")


NO_ANSWER = ("", "None", "N/A")


def words(gpu: Gpu) -> set[str]:
    """Every fact as it must stand in the log, save those that are the same for all GPUs."""
    found = {gpu.name, gpu.uuid, *(process.name for process in gpu.processes or ())}
    for process in gpu.processes or ():
        found.add(str(process.pid))
        found.add(None if process.memory_bytes is None else str(process.memory_bytes // MIB))
    for size in (gpu.memory_bytes, gpu.memory_used_bytes):
        found.add(None if size is None else str(size // MIB))
    for number in (gpu.temperature_c, gpu.clock_sm_mhz, gpu.pcie_width, gpu.pcie_generation):
        found.add(None if number is None else str(number))
    return {text for text in found if text is not None}


@given(
    st.lists(st.tuples(st.integers(0, len(RTX_4090)), st.text(max_size=4)), max_size=5),
    st.integers(0, len(RTX_4090)),
)
def test_a_damaged_log_invents_nothing(changes: list[tuple[int, str]], end: int) -> None:
    log = RTX_4090
    for place, text in changes:
        log = log[:place] + text + log[place + len(text) :]
    for part in (log, log[:end]):
        gpus, driver = facts(part)
        for gpu in gpus or ():
            assert all(word.lstrip("0") in part for word in words(gpu) if word.isascii())
        assert driver.version is None or driver.version in part


@given(st.text() | st.binary().map(lambda raw: raw.decode(errors="replace")), st.integers(0, 20))
def test_garbage_tells_nothing(text: str, code: int) -> None:
    gpus, driver = facts(text, code)
    assert gpus is None
    assert driver == Driver(vendor="nvidia", smi_error=driver.smi_error)
    assert driver.smi_error


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
    (tmp_path / "log.xml").write_text(RTX_4090)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/log.xml\n")
    program.chmod(0o755)
    gpus, driver = nvidia_smi.facts(str(program), ask)
    assert [gpu.name for gpu in gpus or ()] == ["NVIDIA GeForce RTX 4090"]
    assert driver.smi_error is None
