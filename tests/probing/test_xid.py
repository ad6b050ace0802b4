"""Xid errors in the kernel's log: every form of the line, and every way to the log."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.machine import Xid
from flatout.probing import xid
from flatout.probing.program_answer import ProgramAnswer

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux' kernel log")
BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SLICE = "NVRM: Xid (PCI:0000:B1:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9)."
NOTHING = ProgramAnswer("", None, "not found")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            f"[12.5] {BUS}",
            Xid(
                79,
                "0000:3b:00.0",
                1,
                "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ),
        ),
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            Xid(14, "0000:03:00.0", 1, "Channel 00000001"),
        ),
        (
            f"4,9921,9370042162,-;{SLICE}",
            Xid(94, "0000:b1:00.0", 1, "pid=7194, Contained: CE User Channel (0x9)."),
        ),
        ("NVRM: Xid (PCI:00000001:00:00): 48, x", Xid(48, "0001:00:00.0", 1, "x")),
        (
            "kernel: NVRM: Xid (PCI:0000:3b:00.0 GPU-I:01 GPU-CI:02): 13",
            Xid(13, "0000:3b:00.0", 1, None),
        ),
        ("NVRM: Xid (somewhere): 31, MMU Fault", Xid(31, None, 1, "MMU Fault")),
    ],
)
def test_each_form(line: str, found: Xid) -> None:
    assert xid.parse([line]) == (found,)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:3b:00: GPU-5c89852c-d268",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.107.02",
        "NVRM: Xid (PCI:0000:3b:00): unknown",
        "a program says Xid (PCI:0000:3b:00): 79, and is not the driver",
        "",
    ],
)
def test_other_lines(line: str) -> None:
    assert xid.parse([line]) == ()


def test_they_are_counted_by_number_and_gpu() -> None:
    lines = [
        "NVRM: Xid (PCI:0000:3b:00): 31, first",
        "NVRM: Xid (PCI:0000:5e:00): 31, other card",
        BUS,
        "NVRM: Xid (PCI:0000:3b:00): 31, last",
    ]
    assert [(each.number, each.pci_address, each.count) for each in xid.parse(lines)] == [
        (31, "0000:3b:00.0", 2),
        (31, "0000:5e:00.0", 1),
        (79, "0000:3b:00.0", 1),
    ]
    assert xid.parse(lines)[0].text == "last"


ANY_LINE = st.text() | st.builds("NVRM: Xid ({}): {}, {}".format, st.text(), st.text(), st.text())


@given(st.lists(ANY_LINE | st.integers(0, 200).map("NVRM: Xid (PCI:0000:3b:00): {}".format)))
def test_any_text(lines: list[str]) -> None:
    found = xid.parse(lines)
    assert all(any(str(each.number) in line for line in lines) for each in found)
    assert sum(each.count for each in found) == len([line for line in lines if xid.parse([line])])


LONG_S = 100.0
"""So long that nothing is late, however busy the machine is."""
xids = functools.partial(xid.xids, limit_s=LONG_S)


class Log:
    """dmesg and journalctl, and who was asked."""

    def __init__(self, **answers: ProgramAnswer) -> None:
        self.answers, self.asked = answers, list[str]()

    def __call__(self, command: Sequence[str], limit_s: float) -> ProgramAnswer:
        assert limit_s <= LONG_S
        name = "any_line" if "-n" in command else command[0]
        self.asked.append(name)
        return self.answers.get(name, NOTHING)


@LINUX
def test_the_kernel_s_own_records(tmp_path: Path) -> None:
    """A named pipe reads as the log does: one record, then `nothing yet`."""
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        os.write(writer, f"3,4471,3023054882,-;{BUS}\n SUBSYSTEM=pci\n".encode())
        log = Log()
        assert [each.number for each in xids(True, log, pipe) or ()] == [79]
        assert xids(True, log, pipe) == ()
        assert log.asked == []
    finally:
        os.close(writer)


@LINUX
def test_dmesg_where_the_records_may_not_be_read(tmp_path: Path) -> None:
    log = Log(dmesg=ProgramAnswer(f"[0.0] Linux version 6.8\n[12.5] {BUS}\n", 0))
    assert [each.number for each in xids(True, log, tmp_path / "none") or ()] == [79]
    assert log.asked == ["dmesg"]


DENIED = ProgramAnswer("", 1, errors="dmesg: read kernel buffer failed: Operation not permitted")


@LINUX
@pytest.mark.parametrize(
    ("journal", "any_line", "found"),
    [
        (ProgramAnswer(f"{BUS}\n{BUS}\n", 0), NOTHING, [2]),
        (ProgramAnswer("", 1), ProgramAnswer("Linux version 6.8\n", 0), []),
        (ProgramAnswer("", 1), ProgramAnswer("", 1), None),
        (ProgramAnswer("", 1, errors="Hint: You are currently not seeing messages"), NOTHING, None),
        (ProgramAnswer("", 1, errors="No journal files were found."), ProgramAnswer("", 1), None),
        (NOTHING, NOTHING, None),
        (ProgramAnswer("", None, "did not answer within 0.2 s"), NOTHING, None),
    ],
)
def test_the_journal_comes_last(
    tmp_path: Path, journal: ProgramAnswer, any_line: ProgramAnswer, found: list[int] | None
) -> None:
    log = Log(dmesg=DENIED, journalctl=journal, any_line=any_line)
    errors = xids(True, log, tmp_path / "none")
    assert (None if errors is None else [each.count for each in errors]) == found


@LINUX
def test_a_log_without_end_is_given_up(tmp_path: Path) -> None:
    assert xid.xids(True, Log(), Path("/dev/zero"), limit_s=0.1) is None


@LINUX
def test_slow_programs_leave_no_time_for_others(tmp_path: Path) -> None:
    asked: list[str] = []

    def slow(command: Sequence[str], limit_s: float) -> ProgramAnswer:
        asked.append(command[0])
        threading.Event().wait(limit_s)
        return ProgramAnswer("", None, "did not answer")

    assert xid.xids(True, slow, tmp_path / "none", limit_s=0.1) is None
    assert asked == ["dmesg"]
