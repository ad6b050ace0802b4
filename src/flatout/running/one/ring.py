"""Reads the pulse of a training process, while it runs or later, without disturbing it."""

from __future__ import annotations

import math
import struct
import sys
import time
from pathlib import Path

import psutil

from flatout.nouns.job_sample import PulseStep
from flatout_agent.wire import pulse as layout
from flatout_agent.wire.pulse import PulseHeader, PulseSlot

SEQUENCES = struct.Struct(f"<{layout.SLOTS * layout.SLOT_BYTES // 8}Q")
"""All slots as words of 8 bytes. Each slot begins with its sequence number."""
CLOCK_CHANGE_S = 10.0
"""How far the machine's clock may have been set meanwhile."""


class Ring:
    """The ring of one process. Gives each step once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be read, ValueError if it is no ring of ours."""
        self.path = path
        self.lost = 0
        """Steps that were overwritten before they were read."""
        data = _read(path)
        self.header = _header(data)
        self._next = min((slot.sequence for slot in _slots(data, 1)), default=1)

    def new(self) -> list[PulseStep]:
        """The steps since the last call, the oldest first, without damaged ones."""
        try:
            data = _read(self.path)
            self.header = _header(data)
        except (OSError, ValueError):
            return []
        unix_s = time.time() - time.perf_counter()  # both are clocks of the machine
        slots = _following(data, self._next)
        if not slots:  # none is new, or those that were next are overwritten
            slots = sorted(_slots(data, self._next), key=lambda slot: slot.sequence)
        fresh: list[PulseStep] = []
        for slot in slots:
            self.lost += slot.sequence - self._next
            self._next = slot.sequence + 1
            fresh.append(_step(slot, unix_s))
        return fresh

    @property
    def began_s(self) -> float:
        """The Unix time at which it was made."""
        return self.header.began_s + time.time() - time.perf_counter()

    @property
    def ended(self) -> bool:
        """Whether the interpreter has said that it ends."""
        return bool(self.header.flags & layout.ENDED)

    def writer_alive(self) -> bool | None:
        """Whether its process still runs, or None if it belongs to another pid namespace."""
        if self.header.pid_namespace not in (0, pid_namespace()):
            return None
        return same_process(self.header.pid, self.header.start_ticks, self.began_s)


def rings(folder: Path) -> list[Path]:
    """The rings in a folder, by name."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == layout.SUFFIX)
    except OSError:
        return []


def same_process(pid: int, start_ticks: int, ran_s: float) -> bool:
    """Whether the process with this number that began then (0 if unknown) still runs.

    ran_s: a Unix time at which it ran; a later process of its number began after that.
    """
    if pid <= 0:
        return False
    if not sys.platform.startswith("linux"):
        try:
            return psutil.Process(pid).create_time() < ran_s + CLOCK_CHANGE_S
        except psutil.Error as error:
            return not isinstance(error, psutil.NoSuchProcess)
    ticks = ticks_of(pid)
    return ticks is not None and (not start_ticks or ticks == start_ticks)


def ticks_of(pid: int) -> int | None:
    """When a process began, in the kernel's ticks, which no clock change moves; None if it is gone.

    A zombie is gone. On systems other than Linux, 0 if the process exists.
    """
    if not sys.platform.startswith("linux"):
        return 0 if psutil.pid_exists(pid) else None
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> int:
    """The inode of this process's pid namespace, or 0 if unknown."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return Path("/proc/self/ns/pid").stat().st_ino & 0xFFFFFFFF
    except OSError:
        return 0


def _read(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(layout.PULSE_BYTES)


def _header(data: bytes) -> PulseHeader:
    if len(data) != layout.PULSE_BYTES:
        raise ValueError(f"a pulse has {layout.PULSE_BYTES} bytes, not {len(data)}")
    header = PulseHeader(*layout.HEADER.unpack_from(data))
    if header.magic != layout.MAGIC:
        raise ValueError("this is no pulse")
    shape = header.version, header.slot_bytes, header.slots
    if shape != (layout.PULSE_VERSION, layout.SLOT_BYTES, layout.SLOTS):
        raise ValueError(f"a pulse of version {header.version}, this flatout knows another")
    return header


def _following(data: bytes, first: int) -> list[PulseSlot]:
    """The slots from sequence number `first` on, in order, up to a gap."""
    found = []
    for sequence in range(first, first + layout.SLOTS):
        slot = _slot(data, (sequence - 1) % layout.SLOTS)
        if slot is None or slot.sequence != sequence:
            break
        found.append(slot)
    return found


def _slots(data: bytes, least: int) -> list[PulseSlot]:
    """All whole slots from sequence number `least` on."""
    sequences = SEQUENCES.unpack_from(data, layout.HEADER_BYTES)[:: layout.SLOT_BYTES // 8]
    newer = [index for index, sequence in enumerate(sequences) if sequence >= least]
    return [slot for index in newer if (slot := _slot(data, index)) is not None]


def _slot(data: bytes, index: int) -> PulseSlot | None:
    """One slot, or None if it is being written or is damaged."""
    offset = layout.HEADER_BYTES + index * layout.SLOT_BYTES
    slot = PulseSlot(*layout.SLOT.unpack_from(data, offset))
    torn = slot.sequence != slot.sequence_again or (slot.sequence - 1) % layout.SLOTS != index
    if torn or not (math.isfinite(slot.time_s) and math.isfinite(slot.duration_s)):
        return None
    return slot


def _step(slot: PulseSlot, unix_s: float) -> PulseStep:
    return PulseStep(
        step=slot.step,
        time_s=slot.time_s + unix_s,
        duration_s=max(0.0, slot.duration_s),
        wait_s=max(0.0, slot.wait_s) if math.isfinite(slot.wait_s) else None,
        loss=slot.loss if slot.flags & layout.LOSS_READ else None,
        samples=slot.samples or None,
        flags=slot.flags,
        shapes=slot.shapes or None,
        loss_scale=None if math.isnan(slot.loss_scale) else slot.loss_scale,
        own_s=max(0.0, slot.own_s) if math.isfinite(slot.own_s) else None,
    )
