"""Sampled stacks: the lines that take the host's time, while nothing else is recorded.

A thread of this process samples the others about a thousand times a second; each sample counts for
the time since the last one. It needs the interpreter for that. Python hands it over only every 5 ms
while another thread runs without a pause, but at once when that thread calls an operator, so most
samples would fall there. Meanwhile it is therefore handed over more often, and the wait for it ends
on time: by default Linux prolongs waits by 50 us. A thread's CPU clock shows whether it ran or
waited.
"""

from __future__ import annotations

import contextlib
import opcode
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType

from flatout_agent import wire
from flatout_agent.watch import places
from flatout_agent.watch.profile.frames import instructions
from flatout_agent.watch.profile.process import Collections

INTERVAL_S = 0.001
SWITCH_S = 0.00002
"""The argument of sys.setswitchinterval meanwhile.

Measured with 0.13 ms of Python, 86 % of the time, alternating with an operator: the samples showed
0.4 % Python at 0.2 ms, 24 % at 0.05 and 47 % at 0.01; with waits that end on time 61 % at 0.05, 77
% at 0.02, 80 % at 0.01. These cost such a program 7 %, 7 % and 13 % of its CPU time; beside another
busy Python thread 7 %, 11 % (showing 62 %) and 23 %.
"""
DEEPEST = 80
"""The most frames of a stack that are followed, from the innermost outwards."""
STACKS = 400
"""The most distinct stacks reported."""
FRAMES = 40
"""The most frames of a stack reported, the innermost ones."""
LONGEST_LINE = 1000
"""Columns that mean a whole line."""
TIMED_OUT_S = 0.25
"""A longer pause of the sampler (a suspended machine, a debugger) counts as this."""

HELD = 20_000
"""The most samples after the last call of an evaluation that are kept until it is known to be
over."""

Evaluation = tuple[bool, float]
"""Whether the program may still be evaluating, and when its last call for that ended
(time.perf_counter)."""
NONE: Evaluation = False, 0.0
Key = tuple[int, ...]
"""Alternating ids of code objects and instructions, innermost first."""
CLOCKS = hasattr(time, "pthread_getcpuclockid")
"""Whether this system has a CPU clock for each thread."""


@dataclass
class _Tally:
    samples: int = 0
    s: float = 0.0
    idle_s: float = 0.0
    steps: set[int] = field(default_factory=set)


@dataclass
class _Watched:
    """One thread between two samples."""

    name: str
    cpu_s: float | None
    stacks: dict[Key, _Tally] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sample:
    """One thread at one sample."""

    watched: _Watched
    key: Key
    s: float
    idle_s: float
    queued_s: float = 0.0
    step: int = 0


class StackSampler:
    """Samples one thread, and the others beside it, from `start` until `stop`."""

    def __init__(
        self, evaluation: Callable[[], Evaluation], thread: threading.Thread | None = None
    ) -> None:
        """thread: the one that trains, or None for the one that creates this object.

        evaluation: tells the program's; until the end of its last call, time is left out.
        """
        self._evaluation = evaluation
        self._held: list[tuple[float, _Sample]] = []
        """Samples with their times since the evaluation began, which may be part of it."""
        self._main = threading.get_ident() if thread is None else thread.ident
        self._threads: dict[int, _Watched] = {}
        self._codes: dict[int, CodeType] = {}
        self._started = False
        self._step = 0
        self._ended = threading.Event()
        self._before_s = self._switch_s = sys.getswitchinterval()
        self._thread = threading.Thread(target=self._run, name="flatout samples", daemon=True)
        self._collections = Collections()
        self._collected_s = 0.0
        self._queued_s = 0.0
        native_id = threading.get_native_id() if thread is None else thread.native_id
        self._queue = _RunQueue(native_id)
        self._queue_known = self._queue.known

    def start(self) -> None:
        """Begin."""
        self._before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._switch_s = sys.getswitchinterval()  # rounded
        self._thread.start()
        self._started = True

    def step_ends(self) -> None:
        """Samples from now on belong to the next step."""
        self._step += 1

    def stop(self) -> None:
        """End; the samples stay."""
        if self._ended.is_set():
            return
        self._ended.set()
        if sys.getswitchinterval() == self._switch_s:  # otherwise the program has set one
            sys.setswitchinterval(self._before_s)
        if self._thread.is_alive():
            self._thread.join(1.0)
        self._collections.remove()
        self._queue.close()

    def _run(self) -> None:
        # Let waits of this thread end on time, if the system allows it.
        with contextlib.suppress(OSError):  # another system, or a /proc without it
            file = os.open(f"/proc/{threading.get_native_id()}/timerslack_ns", os.O_WRONLY)
            try:
                os.write(file, b"1")
            finally:
                os.close(file)
        last = time.perf_counter()
        while not self._ended.is_set():
            time.sleep(INTERVAL_S)
            if self._ended.is_set():
                return  # else the thread that trains would be seen ending this
            now = time.perf_counter()
            spent_s, last = min(now - last, TIMED_OUT_S), now
            if not self._started:
                continue  # else the thread that trains would be seen starting this
            try:
                self._look(spent_s)
            except Exception:  # fewer samples are better than an error in the program
                return

    def _look(self, spent_s: float) -> None:
        collected_s = self._collections.so_far_s()
        spent_s = max(0.0, spent_s - (collected_s - self._collected_s))
        self._collected_s = collected_s
        queued_s = min(self._queue.delay_s(), spent_s)
        samples: list[_Sample] = []
        idents = sys._current_frames().keys() - {threading.get_ident()}
        for ident in idents:
            watched = self._threads.get(ident)
            if watched is None:
                names = (thread.name for thread in threading.enumerate() if thread.ident == ident)
                watched = self._threads[ident] = _Watched(next(names, "a thread"), _cpu_s(ident))
                continue
            cpu_s, before_s = _cpu_s(ident), watched.cpu_s
            watched.cpu_s = cpu_s
            ran_s = None if cpu_s is None or before_s is None else min(cpu_s - before_s, spent_s)
            if ident == self._main:
                left_s = spent_s - queued_s
                idle_s = 0.0 if ran_s is None else max(0.0, left_s - ran_s)
                key = self._key(ident)
                samples.append(_Sample(watched, key, left_s, idle_s, queued_s, self._step))
            elif ran_s and (key := self._key(ident)):
                samples.append(_Sample(watched, key, ran_s, 0.0, step=self._step))
        # Count the samples once they are known not to be part of an evaluation.
        evaluating, ended = self._evaluation()
        if evaluating:
            if self._held and self._held[-1][0] <= ended:
                self._held.clear()
            if len(self._held) < HELD:
                now = time.perf_counter()
                self._held += [(now, sample) for sample in samples]
            return
        samples = [*(sample for at, sample in self._held if at > ended), *samples]
        self._held.clear()
        for sample in samples:
            tally = sample.watched.stacks.setdefault(sample.key, _Tally())
            tally.samples += 1
            tally.s += sample.s
            tally.idle_s += sample.idle_s
            tally.steps.add(sample.step)
            self._queued_s += sample.queued_s

    def _key(self, ident: int) -> Key:
        key: list[int] = []
        for code, instruction in instructions(ident, DEEPEST):
            self._codes.setdefault(id(code), code)
            key += (id(code), instruction)
        return tuple(key)

    def summary(self, steps: int, step_s: float) -> wire.HostSeen | None:
        """The samples per step, or None if there are none. steps: those sampled. step_s: their mean
        seconds.
        """
        if not steps or not self._threads:
            return None
        resolved = _Resolved(self._codes)
        tallies: dict[tuple[str, tuple[int, ...]], _Tally] = {}
        for ident, watched in self._threads.items():
            name = "" if ident == self._main else watched.name
            for key, tally in watched.stacks.items():
                stack = resolved.stack(key)
                total = tallies.setdefault((name, stack), _Tally())
                total.samples += tally.samples
                total.s += tally.s
                total.idle_s += tally.idle_s
                total.steps |= tally.steps
        longest = sorted(tallies.items(), key=lambda item: -item[1].s)[:STACKS]
        return wire.HostSeen(
            steps=steps,
            step_s=step_s,
            frames=tuple(resolved.frames),
            stacks=tuple(
                wire.StackSeen(
                    stack,
                    tally.samples,
                    tally.s / steps,
                    tally.idle_s / steps,
                    thread,
                    # Samples after the last step's end, before this was stopped, belong to that
                    # step.
                    tuple(sorted({min(step, steps - 1) for step in tally.steps})),
                )
                for (thread, stack), tally in longest
            ),
            gc_s=self._collections.s / steps,
            queued_s=self._queued_s / steps if self._queue_known else None,
            idle_known=CLOCKS,
        )


class _Resolved:
    """Frames by their code and instruction."""

    def __init__(self, codes: dict[int, CodeType]) -> None:
        self._codes = codes
        self._numbers: dict[tuple[int, int], int | None] = {}
        self._index: dict[wire.FrameSeen, int] = {}
        self.frames: list[wire.FrameSeen] = []

    def stack(self, key: Key) -> tuple[int, ...]:
        """Numbers of its frames, outermost first, without flatout's own."""
        frames = (self._number(key[at], key[at + 1]) for at in range(0, len(key), 2))
        kept = [number for number in frames if number is not None][:FRAMES]
        return tuple(reversed(kept))

    def _number(self, code_id: int, instruction: int) -> int | None:
        pair = code_id, instruction
        if pair not in self._numbers:
            frame = _frame(self._codes[code_id], instruction)
            if frame is not None and frame not in self._index:
                self._index[frame] = len(self.frames)
                self.frames.append(frame)
            self._numbers[pair] = None if frame is None else self._index[frame]
        return self._numbers[pair]


def _frame(code: CodeType, instruction: int) -> wire.FrameSeen | None:
    """The frame, or None if it is flatout's own."""
    package = places.package(code.co_filename)
    if package in places.OWN_PACKAGES:
        return None
    line, end_line, column, end_column = _position(code, instruction)
    if column is not None and "JUMP" in opcode.opname[code.co_code[instruction]]:
        # A loop starts over; its position is that of its last expression's last part.
        end_line, column, end_column = line, 0, LONGEST_LINE
    file = places.display(code.co_filename)
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    line = line or code.co_firstlineno
    if package:  # their exact expressions are of no interest, and would make many stacks of one
        return wire.FrameSeen(file, line, name, package)
    return wire.FrameSeen(file, line, name, "", column, end_line, end_column)


def _position(
    code: CodeType, instruction: int
) -> tuple[int | None, int | None, int | None, int | None]:
    """Line, end line, column and end column of an instruction."""
    if hasattr(code, "co_positions"):
        for at, position in enumerate(code.co_positions()):
            if at == instruction // 2:
                line, end_line, column, end_column = position
                return line, end_line, column, end_column
    for first, last, line in code.co_lines():
        if first <= instruction < last:
            return line, None, None, None
    return None, None, None, None


def _cpu_s(ident: int) -> float | None:
    """CPU seconds of a thread so far, or None if it has ended or the system has no such clock."""
    if sys.platform == "win32" or sys.platform == "darwin" or not CLOCKS:
        return None
    with contextlib.suppress(OSError, OverflowError):
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    return None


class _RunQueue:
    """How long a thread was ready to run while no core was free; only Linux shows this."""

    def __init__(self, native_id: int | None) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):  # another system, or a kernel built without it
            self._file = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY)
        self._before_ns = self._total_ns()

    @property
    def known(self) -> bool:
        return self._before_ns is not None

    def delay_s(self) -> float:
        """Seconds since the last call, or 0 if unknown."""
        total_ns, before_ns = self._total_ns(), self._before_ns
        if total_ns is None or before_ns is None:
            return 0.0
        self._before_ns = total_ns
        return (total_ns - before_ns) / 1e9

    def close(self) -> None:
        """Stop counting."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _total_ns(self) -> int | None:
        if self._file is None or sys.platform == "win32":
            return None
        fields = os.pread(self._file, 128, 0).split()
        return int(fields[1]) if len(fields) > 1 else None
