"""Compile in a copy of this process, so that the program trains on meanwhile.

The copy (a fork) repeats one call of the model under the boost, which leaves the compiled code in
torch's cache on disk, and ends. When the program then makes the same call, torch finds the code
there. Only on Linux and for models on the CPU: an accelerator cannot be used in a forked process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Generator

import torch

from flatout_agent.limits import spare_memory, usable_cores
from flatout_agent.live.state import Tick
from flatout_agent.speedups.memory_counters import resident_bytes

MOST_S = 300.0
"""A copy that takes longer is ended; code compiled by then stays in the cache."""
LINUX_ALONE = "copies are made only on Linux"
COMPILER_MODULES = ("torch._inductor.codecache", "torch._inductor.codegen.cpp")
"""These variables hold the number of threads that code is compiled for."""
DIES_WITH_PARENT = 1
"""prctl's PR_SET_PDEATHSIG."""


class BackgroundCompile:
    """Copies of this process at work beside it."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._began = 0.0

    def possible(self, device: str) -> bool:
        """Whether a copy can be made and leaves the program enough cores and memory."""
        if sys.platform != "linux" or device != "cpu" or usable_cores() < 2:
            return False
        for name in ("cuda", "xpu"):
            module = getattr(torch, name, None)
            if module is not None and module.is_initialized():
                return False
        spare, resident = spare_memory(), resident_bytes()
        return spare is not None and resident is not None and 2 * resident < spare

    def begin(self, work: Callable[[], None]) -> None:
        """Do `work` in a copy; nothing that it changes comes back except files."""
        if sys.platform != "linux":
            raise RuntimeError(LINUX_ALONE)
        threads, own_pid = torch.get_num_threads(), os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of threads: see `_only_this`
            pid = os.fork()
        if pid == 0:
            try:
                ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
                if os.getppid() != own_pid:
                    os._exit(0)
                _only_this(threads)
                work()
            finally:
                os._exit(0)  # nothing is flushed, closed or cleaned up twice
        self._pids.append(pid)
        self._began = time.perf_counter()

    @property
    def running(self) -> bool:
        """Whether any copy is still at work."""
        if self._pids and time.perf_counter() - self._began > MOST_S:
            self.end()
        self._pids = [pid for pid in self._pids if not _ended(pid)]
        return bool(self._pids)

    def end(self) -> None:
        """End the copies that still run."""
        if sys.platform == "linux":
            for pid in self._pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        self._pids = []

    def wait(self) -> Generator[None, Tick, tuple[int, float]]:
        """Let the program train on until the copy has ended; (units, seconds) that took.

        Meanwhile it leaves one core to the copy: threads that share a core hold up all others.
        """
        threads, units, seconds = torch.get_num_threads(), 0, 0.0
        fewer = max(1, threads - 1) if threads >= usable_cores() else threads
        torch.set_num_threads(fewer)
        try:
            while self.running:
                tick = yield
                units, seconds = units + 1, seconds + tick.seconds
        finally:
            if torch.get_num_threads() == fewer:  # else the program has chosen meanwhile
                torch.set_num_threads(threads)
        return units, seconds


def _ended(pid: int) -> bool:
    if sys.platform != "linux":
        raise RuntimeError(LINUX_ALONE)
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # the program has waited for all of its children
        return True


def _only_this(threads: int) -> None:
    """In the copy: one thread, no output, none of the program's handlers.

    OpenMP's threads are not copied, and waiting for them would never end; so torch must not start
    any, and the compiler must know how many the program has.
    """
    if sys.platform != "linux":
        raise RuntimeError(LINUX_ALONE)
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    gc.disable()  # what the program no longer holds is not to be finalized here as well
    torch.set_num_threads(1)
    for name in COMPILER_MODULES:
        importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._inductor") and hasattr(module, "parallel_num_threads"):
            vars(module)["parallel_num_threads"] = lambda: threads
