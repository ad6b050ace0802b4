"""The pulse of a program that trains with the library, however it was started.

Under `flatout run` the agent writes the pulse, and this module tells it what it cannot see.
Elsewhere the program lists itself as a job at its first step, in memory that only its user can
read, and removes itself from the list at its end; with `FLATOUT_PULSE=0` in its environment it does
not. This costs no thread, no socket and no system call per step. An error here ends only the pulse.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import torch

from flatout_agent.tell import pulse as rings
from flatout_agent.tell.pulse import UNKNOWN, Pulse
from flatout_agent.watch import beat
from flatout_agent.watch.beat import DeviceLoss
from flatout_agent.watch.tensors import samples_in
from flatout_agent.wire import job_list
from flatout_agent.wire import pulse as layout
from flatout_agent.wire.job_list import JobEntry

SWITCH = "FLATOUT_PULSE"
LAUNCHER = "TORCHELASTIC_RUN_ID"
"""torchrun started this process: its ranks are one job."""
MOST_LETTERS = 300
KEPT_S = 600.0
"""Leftovers of a killed program are removed after this time."""


class ProcessPulse:
    """The pulse of this process, and its place in the list. Raises OSError if none can be made."""

    def __init__(self, device: str) -> None:
        self.entry = _entry()
        Path(self.entry.rings).mkdir(mode=0o700, exist_ok=True)
        # The ring first: another rank that ends just now must not take the folder away.
        self.pulse = Pulse(self.entry.rings)
        job_list.write(self.entry)
        self.pulse.trains_on(device)
        self._device_loss = DeviceLoss()
        self.steps = 0
        self.lead: weakref.ref[StepPulse] | None = None
        """The train_step whose steps count; a program may have several, as GANs do."""
        atexit.register(self._end)

    def step(self, loss: torch.Tensor, taken: bool, of: StepPulse) -> None:
        """A step has ended. taken: the optimizer has stepped."""
        pulse = self.pulse
        value: float | None = None
        if loss.is_cpu:
            value = loss.item()
        elif loss.is_cuda:
            self._device_loss.see(loss)
            value = self._device_loss.take()
        if value is None:
            value = UNKNOWN
        else:
            pulse.flags |= layout.LOSS_READ
        if taken:
            self.steps += 1
        else:
            pulse.flags |= layout.SKIPPED
        pulse.step(self.steps, time.perf_counter(), of.wait_s, of.samples, value, of.batches)

    def _end(self) -> None:
        """Take this process off the list, and the job with the last of its processes."""
        if self.pulse.forked or self.pulse.closed:
            return
        self.pulse.end()
        self.pulse.close()
        rings = Path(self.entry.rings)
        with contextlib.suppress(OSError):
            for path in (self.pulse.path, f"{self.pulse.path}.stacks"):
                Path(path).unlink(missing_ok=True)
            rings.rmdir()  # not while other ranks have theirs in it
            job_list.path_of(self.entry).unlink()


class StepPulse:
    """Reports the batches and steps of one train_step."""

    def __init__(self, tells: bool = True) -> None:
        """tells: False for steps that are tried and undone."""
        self.tells = tells
        self.samples = self.batches = 0
        """Samples and batches of the current step."""
        self.wait_s = 0.0
        """The wait of the current step in seconds, or NaN if unknown because the batches came from
        another loader."""

    def batch(self, batch: Any) -> None:
        """The current step gets this batch."""
        global _waited_s
        if self.tells and not _over:
            self.samples += samples_in(batch)
            self.batches += 1
            self.wait_s += _waited_s
            _waited_s = UNKNOWN

    def step(self, loss: torch.Tensor, taken: bool) -> None:
        """A step has ended with this loss."""
        if not self.tells or _over:
            return
        try:
            self._write(loss, taken)
        except Exception:
            stop()
        self.samples, self.batches, self.wait_s = 0, 0, 0.0

    def _write(self, loss: torch.Tensor, taken: bool) -> None:
        process = _process if _process is not None else _begun(loss.device.type)
        if process is None:
            return
        if process.pulse.forked:  # and it goes on training
            process = _begun(loss.device.type)
            assert process is not None
        if process.lead is None or process.lead() is None:
            process.lead = weakref.ref(self)
        if process.lead() is self:
            process.step(loss, taken, self)


_process: ProcessPulse | None = None
_over = False
"""Whether no pulse is wanted or none can be made."""
_waited_s = UNKNOWN
"""The wait in seconds for the last batch from the library's loader."""


def replayed(loss: torch.Tensor) -> None:
    """The step about to be counted was a replay, without a call of `backward`."""
    if beat.of_process is not None:
        beat.of_process.loss_seen(loss)


def waited(seconds: float) -> None:
    """The library's loader has given a batch after this time."""
    global _waited_s
    _waited_s = seconds


def saving() -> None:
    """The library begins to save."""
    pulse = _pulse()
    if pulse is not None:
        pulse.flags |= layout.SAVED


def saved(size_bytes: int) -> None:
    """The library has written a checkpoint of this size."""
    pulse = _pulse()
    if pulse is not None:
        with contextlib.suppress(Exception):
            pulse.has_saved(size_bytes)


def stop() -> None:
    """Stop writing the pulse."""
    global _over, _process
    _over, process, _process = True, _process, None
    if process is not None:
        atexit.unregister(process._end)
        process._end()


def _pulse() -> Pulse | None:
    """The pulse of this process, whoever writes it."""
    if beat.of_process is not None:
        return beat.of_process.pulse
    if _process is None or _process.pulse.forked:
        return None
    return _process.pulse


def _begun(device: str) -> ProcessPulse | None:
    """A pulse from now on, or None if the agent writes it or it is not wanted."""
    global _over, _process
    if "flatout_agent.process.session" in sys.modules or os.environ.get(SWITCH) == "0":
        _over = True
        return None
    _process = ProcessPulse(device)
    return _process


def _entry() -> JobEntry:
    folder = job_list.writable()
    namespace = rings.pid_namespace()
    _sweep(folder, namespace)
    owner = os.getppid() if LAUNCHER in os.environ else os.getpid()
    ticks = rings.start_ticks(owner)
    name = job_list.entry_id(owner, ticks, namespace)
    return JobEntry(
        id=name,
        pid=owner,
        start_ticks=ticks,
        pid_namespace=namespace,
        program=shlex.join(sys.orig_argv[1:])[:MOST_LETTERS],
        folder=str(Path.cwd()),
        run_folder="",
        rings=str(folder / f"{name}.rings"),
        began_s=time.time(),
        program_pid=owner,
    )


def _sweep(folder: Path, namespace: int) -> None:
    """Remove what killed programs have left, if that is certain."""
    here = [str(namespace)] if namespace else []
    for path in folder.glob("*.json"):
        numbers = path.stem.split("-")
        if len(numbers) < 2 or not all(map(str.isdecimal, numbers)) or numbers[2:] != here:
            continue
        with contextlib.suppress(OSError):
            old = time.time() - path.stat().st_mtime > KEPT_S
            if old and _gone(int(numbers[0]), int(numbers[1])):
                path.unlink()
                shutil.rmtree(path.with_suffix(".rings"), ignore_errors=True)


def _gone(pid: int, ticks: int) -> bool:
    """Whether it is certain that the process that began then has ended."""
    if sys.platform.startswith("linux"):
        return rings.start_ticks(pid) != ticks
    if sys.platform == "win32":
        return False  # nothing in `os` tells; the next `flatout run` removes it
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False
