"""The meaning of the NVIDIA driver's error numbers (Xid), and what to do about each.

From https://docs.nvidia.com/deploy/xid-errors/ and the driver's own header nverror.h.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from flatout.nouns.finding import Severity


class Remedy(enum.Enum):
    """What helps."""

    PROGRAM = "fix the program"
    RESET = "reset the GPU and test it"
    RESET_ALL = "reset all GPUs"
    RESTART = "restart the machine and check the hardware"
    DRIVER = "update the driver"
    LOOK = "read the log"


@dataclass(frozen=True)
class Meaning:
    """One number."""

    title: str
    text: str
    severity: Severity
    remedy: Remedy


def meaning(number: int) -> Meaning:
    """The number's meaning, which says so if the number is unknown."""
    entry = MEANINGS.get(number)
    if entry is not None:
        return entry
    return Meaning(
        "not in flatout's list",
        f"Look up Xid {number} at https://docs.nvidia.com/deploy/xid-errors/.",
        Severity.WARNING,
        Remedy.LOOK,
    )


def _program(title: str, text: str) -> Meaning:
    return Meaning(title, text, Severity.NOTE, Remedy.PROGRAM)


KERNEL = (
    "A kernel of the program accessed memory out of bounds or met an illegal instruction; find it "
    "with compute-sanitizer. Only if correct programs fail on this one GPU too, suspect hardware."
)
ROWS = "Save what runs, reset the GPU so that the row is replaced, and test it."
MEMORY = f"The GPU's memory is damaged. {ROWS} If it happens again, have the card replaced."
LINK = "Reset all GPUs of this machine; if it happens again, have NVLink (bridge, board) checked."
GSP = (
    "The GPU's own processor (GSP) no longer answers. Update the driver, restart; if it happens "
    "again on one GPU only, have that GPU replaced."
)
MEANINGS = {
    8: Meaning(
        "the GPU stopped processing",
        "A kernel ran too long or the GPU hung. Start the program again; if it happens again, test "
        "the GPU.",
        Severity.WARNING,
        Remedy.RESET,
    ),
    13: _program("exception in a kernel (most often the program's fault)", KERNEL),
    31: _program("illegal memory access (most often the program's fault)", KERNEL),
    32: _program("a broken command stream", f"Often follows from another fault. {KERNEL}"),
    43: _program("the GPU stopped a program that had failed", f"It follows a fault. {KERNEL}"),
    45: _program(
        "a program was ended and cleaned up",
        "It follows another error or a program that was killed; look at the errors before it.",
    ),
    48: Meaning("double-bit memory error", MEMORY, Severity.ERROR, Remedy.RESET),
    61: Meaning(
        "a microcontroller of the GPU stopped for debugging",
        "Update the driver and restart; if it happens again, have the GPU tested.",
        Severity.WARNING,
        Remedy.DRIVER,
    ),
    62: Meaning(
        "a microcontroller of the GPU halted",
        "Heat, power or hardware: check both, update the driver, restart.",
        Severity.ERROR,
        Remedy.DRIVER,
    ),
    63: Meaning("a memory row or page is being replaced", ROWS, Severity.WARNING, Remedy.RESET),
    64: Meaning("a memory row could not be replaced", MEMORY, Severity.ERROR, Remedy.RESET),
    69: _program("an unknown command from the program", KERNEL),
    74: Meaning("NVLink error", LINK, Severity.ERROR, Remedy.RESET_ALL),
    79: Meaning(
        "the GPU has fallen off the bus",
        "The machine lost the GPU: power cables, heat, seating, riser. Shut down, check them, "
        "start again; if it happens again, have the card replaced.",
        Severity.ERROR,
        Remedy.RESTART,
    ),
    92: Meaning(
        "very many corrected memory errors",
        "The memory ages. Test the GPU and watch it.",
        Severity.WARNING,
        Remedy.RESET,
    ),
    94: Meaning(
        "memory error, contained to one program",
        f"The program that used the broken memory was ended; others go on. {ROWS}",
        Severity.WARNING,
        Remedy.RESET,
    ),
    95: Meaning("memory error, not contained", MEMORY, Severity.ERROR, Remedy.RESET),
    119: Meaning("the GPU's own processor (GSP) timed out", GSP, Severity.ERROR, Remedy.DRIVER),
    120: Meaning("the GPU's own processor (GSP) failed", GSP, Severity.ERROR, Remedy.DRIVER),
    137: Meaning(
        "NVLink: access to another GPU's memory failed",
        "Most often the program on the other GPU ended or failed; look at the errors before it.",
        Severity.WARNING,
        Remedy.LOOK,
    ),
    140: Meaning("memory error that was not recovered", MEMORY, Severity.ERROR, Remedy.RESET),
    143: Meaning(
        "the GPU could not be initialised",
        "Update the driver, restart; if it happens again, have the GPU checked.",
        Severity.ERROR,
        Remedy.DRIVER,
    ),
    145: Meaning("NVLink error on a link", LINK, Severity.WARNING, Remedy.RESET_ALL),
}
