"""What the doctor prints: each finding with evidence and commands, in 80 columns; a verdict."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flatout.nouns.diagnosed import Diagnosed, Health
from flatout.nouns.finding import Cure, Finding, Severity
from flatout.nouns.machine import Machine
from flatout.nouns.selftest import SelfTest
from flatout.reporting import document, terminal
from machines.healthy import HEALTHY, changed, workstation

COMMAND = "sudo apt-get install --yes a-package-with-a-very-long-name another-package-of-that-kind"
DRIVER = Finding(
    code="ENV005",
    id="driver-too-old-for-torch",
    severity=Severity.ERROR,
    title="driver 450.80.02 is too old for torch 2.9.1, which was built with CUDA 12.8",
    evidence="driver 450.80.02 runs programs of CUDA 11.x; CUDA 12.8 needs 525.60.13 or newer",
    cure=Cure(
        "Install driver 580, or the newest torch that runs on this one.", (COMMAND, "reboot")
    ),
)
SHM = Finding(
    code="ENV060",
    id="shm-too-small",
    severity=Severity.WARNING,
    title="/dev/shm has 64 MiB",
    evidence="64 MiB, all of it free",
    cure=Cure("Start the container with more."),
)
NOTE = Finding(
    "HW012", "gpu-memory-small", Severity.NOTE, "4 GiB", "4 GiB of 4 GiB", Cure("Know it.")
)


def drawn(diagnosed: Diagnosed, width: int = 80, terminal_like: bool = False) -> str:
    file = io.StringIO()
    terminal.doctor(diagnosed, Console(file=file, width=width, force_terminal=terminal_like))
    return file.getvalue()


def diagnosed(*findings: Finding, machine: Machine | None = None) -> Diagnosed:
    return Diagnosed(machine or workstation(), findings, checks=83)


@pytest.mark.parametrize(
    ("findings", "health"),
    [
        ((), Health.HEALTHY),
        ((NOTE,), Health.HEALTHY),
        ((NOTE, SHM), Health.IMPAIRED),
        ((SHM, DRIVER), Health.BROKEN),
    ],
)
def test_verdict(findings: tuple[Finding, ...], health: Health) -> None:
    assert diagnosed(*findings).health is health
    assert f"verdict   {health.value}: " in drawn(diagnosed(*findings))


def test_a_failed_selftest_is_broken() -> None:
    failed = SelfTest("copy", passed=False, figure=None, message="no answer", seconds=1.0)
    skipped = SelfTest("two GPUs", passed=None, figure=None, message="one GPU", seconds=0.0)
    passed = SelfTest("matmul", passed=True, figure="1.2 TFLOP/s", message=None, seconds=0.1)
    whole = Diagnosed(workstation(), (), (failed, skipped, passed), checks=83)
    assert whole.health is Health.BROKEN
    text = drawn(whole)
    assert "FAIL      copy: no answer\n" in text
    assert "skipped   two GPUs: one GPU\n" in text
    assert "PASS      matmul: 1.2 TFLOP/s\n" in text
    assert "1 failed test" in text


def test_the_whole_page() -> None:
    assert drawn(diagnosed(DRIVER, SHM)).splitlines() == [
        "system    Ubuntu 24.04.1 LTS, kernel 6.8.0-45-generic",
        "cpu       AMD Ryzen 9 7950X 16-Core Processor, 32 cores, 64 GiB memory",
        "gpu       NVIDIA GeForce RTX 4090, 24 GiB, driver 580.95.05 (CUDA 13.0)",
        "python    3.12.3 at /home/user/venv/bin/python",
        "torch     2.9.1+cu128, sees 1 GPU",
        "",
        "error     ENV005: driver 450.80.02 is too old for torch 2.9.1, which was built",
        "          with CUDA 12.8",
        "  found   driver 450.80.02 runs programs of CUDA 11.x; CUDA 12.8 needs 525.60.13",
        "          or newer",
        "  cure    Install driver 580, or the newest torch that runs on this one.",
        f"          {COMMAND}",
        "          reboot",
        "",
        "warning   ENV060: /dev/shm has 64 MiB",
        "  found   64 MiB, all of it free",
        "  cure    Start the container with more.",
        "",
        "verdict   broken: 1 error, 1 warning (83 checks)",
        "next      flatout explain ENV005",
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", HEALTHY)
def test_lines_fit(name: str, width: int) -> None:
    text = drawn(diagnosed(DRIVER, machine=HEALTHY[name]()), width)
    for line in text.splitlines():
        one_word = len(line.split()) <= 2  # a path or a name is not broken
        assert len(line) <= width or line.strip() == COMMAND or one_word, line


def test_of_an_unknown_machine() -> None:
    text = drawn(diagnosed(machine=Machine(unread=("disks: OSError: stale file handle",))))
    assert "gpu       could not be read\n" in text
    assert "python    none found\n" in text
    assert "unread    disks: OSError: stale file handle\n" in text
    assert "None" not in text


@given(st.text(max_size=60))
def test_foreign_text_cannot_reach_the_terminal(text: str) -> None:
    machine = changed(workstation(), gpus__0__name=f"\x1b[31m{text}\x1b]0;owned\x07")
    shown = drawn(diagnosed(machine=machine))
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_colours_on_a_terminal_alone() -> None:
    assert "\x1b[" in drawn(diagnosed(DRIVER), terminal_like=True)
    assert "\x1b[" not in drawn(diagnosed(DRIVER))


def test_document() -> None:
    found = document.doctor_document(diagnosed(DRIVER))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["schema"] == "flatout.doctor/1"
    assert found["verdict"] == "broken"
    (finding,) = found["findings"]
    assert finding["code"] == "ENV005"
    assert finding["severity"] == "error"
    assert finding["title"] == DRIVER.title
    assert finding["evidence"] == DRIVER.evidence
    assert finding["cure"] == {"text": DRIVER.cure.text, "commands": [COMMAND, "reboot"]}
    assert found["machine"]["gpus"][0]["name"] == "NVIDIA GeForce RTX 4090"
