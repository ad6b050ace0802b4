"""A process that loads one artefact and answers orders: load, verify, time. It does not itself
import torch.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

from flatout_programs.exporting import guard
from flatout_programs.exporting.calls import CallFiles

WARM_MOST_S = 3.0
WARM_CALLS = 10
STABLE = 1.10
"""Warm if the median of some calls is at most this much below that of the calls before."""


class Server:
    """One loaded artefact and the calls of its capture."""

    def __init__(self, artefact: Path, prepared: Path, facts: dict[str, Any], threads: int) -> None:
        self.artefact, self.facts, self.threads = artefact, facts, threads
        self.calls = CallFiles(prepared)
        self.model: Any = None
        self._cycles: dict[int, list[Any]] = {}

    def load(self, order: dict[str, Any]) -> dict[str, Any]:
        """Load through the artefact's own `load.py`; the first call has one row."""
        call = self.calls.inputs("single", 0)
        began = time.perf_counter()
        spec = importlib.util.spec_from_file_location("load", str(self.artefact / "load.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.model = module.load(threads=self.threads)
        loaded = time.perf_counter()
        self.model(*call)
        first_ms = (time.perf_counter() - loaded) * 1e3
        return {
            "load_s": loaded - began,
            "first_call_ms": first_ms,
            "torch": "torch" in sys.modules,
        }

    def verify(self, order: dict[str, Any]) -> dict[str, Any]:
        """The guard's verdict."""
        return guard.verify(
            self.calls,
            self.facts,
            lambda arrays: list(self.model(*arrays).values()),
            order["precision"],
        )

    def warm(self, order: dict[str, Any]) -> dict[str, Any]:
        """Call until the time of a call no longer falls."""
        arrays, began, before, calls = self.cycle(order["batch"]), time.perf_counter(), None, 0
        while time.perf_counter() - began < WARM_MOST_S:
            times = sorted(
                self._timed(arrays[(calls + at) % len(arrays)]) for at in range(WARM_CALLS)
            )
            calls += WARM_CALLS
            median = times[len(times) // 2]
            if before is not None and median * STABLE >= before:
                break
            before = median if before is None else min(before, median)
        return {"calls": calls}

    def time(self, order: dict[str, Any]) -> dict[str, Any]:
        """Milliseconds of single calls, with rotating inputs, for this many seconds."""
        arrays = self.cycle(order["batch"])
        times: list[float] = []
        began, before = time.perf_counter(), run_delay_s()
        while not times or (
            time.perf_counter() - began < order["seconds"] and len(times) < order["most"]
        ):
            times.append(self._timed(arrays[(order["first"] + len(times)) % len(arrays)]) * 1e3)
        took, after = time.perf_counter() - began, run_delay_s()
        waited = None
        if before is not None and after is not None and took > 0:
            waited = max(0.0, after - before) / took
        return {"ms": times, "waited": waited}

    def peak(self, order: dict[str, Any]) -> dict[str, Any]:
        """The most memory that this process ever had."""
        return {"peak_bytes": peak_bytes()}

    def _timed(self, arrays: list[Any]) -> float:
        began = time.perf_counter()
        self.model(*arrays)
        return time.perf_counter() - began

    def cycle(self, batch: int) -> list[Any]:
        """Inputs of real rows with this batch size."""
        if batch not in self._cycles:
            self._cycles = {batch: self._made(batch)}  # one size at a time: memory is measured too
        return self._cycles[batch]

    def _made(self, batch: int) -> list[Any]:
        count = self.calls.count("single")
        singles = [self.calls.inputs("single", at) for at in range(count)]
        if batch == self.facts["single_rows"]:
            return singles
        # Rows of one shape go together: sequences of other lengths do not fit into one array.
        shape = [item.shape for item in singles[0]]
        alike = [call for call in singles if [item.shape for item in call] == shape]
        number = max(1, min(16, 2048 // batch))
        return [self._joined(alike, batch, at * batch) for at in range(number)]

    def _joined(self, rows: list[Any], batch: int, first: int) -> list[Any]:
        import numpy

        chosen = [rows[(first + at) % len(rows)] for at in range(batch)]
        return [
            chosen[0][place]
            if axis is None
            else numpy.concatenate([row[place] for row in chosen], axis=axis)
            for place, axis in enumerate(self.facts["input_axes"])
        ]


def run_delay_s() -> float | None:
    """Seconds that this process's threads were ready to run while others had the cores.

    None if this system does not say.
    """
    try:
        texts = [
            path.read_text(encoding="ascii") for path in Path("/proc/self/task").glob("*/schedstat")
        ]
        return sum(int(text.split()[1]) for text in texts) / 1e9 if texts else None
    except (OSError, ValueError, IndexError):  # a thread that has just ended
        return None


def peak_bytes() -> int | None:
    """Highest resident memory of this process, or None if this system does not say."""
    try:
        # Not ru_maxrss, which after a fork starts with the parent's value.
        for line in (
            Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        ):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
