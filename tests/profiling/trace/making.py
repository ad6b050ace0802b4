"""Small traces as Kineto writes them, event by event."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flatout.profiling.trace.reading import read
from flatout.profiling.trace.recording import TraceRecording

MAIN, BACKWARD = 100, 101
TRACES = Path(__file__).parents[2] / "traces"
REAL = (
    "a100_alexnet",
    "a100_nccl",
    "a100_train",
    "mi250_toy",
    "sampled_rank0",
    "v100_train",
)


def real(name: str) -> Path:
    """One of the recorded traces."""
    return TRACES / f"{name}.json.gz"


@dataclass
class Trace:
    """Times in us."""

    events: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    correlation: int = 0

    def add(self, cat: str, name: str, begin: float, end: float, tid: Any = MAIN, **args: Any):
        event = {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": tid}
        self.events.append({**event, "ts": begin, "dur": end - begin, "args": args})
        return self

    def op(self, name: str, begin: float, end: float, tid: Any = MAIN, **args: Any):
        return self.add("cpu_op", name, begin, end, tid, **args)

    def mark(self, name: str, begin: float, end: float, tid: Any = MAIN):
        return self.add("user_annotation", name, begin, end, tid)

    def call(self, name: str, begin: float, end: float, tid: Any = MAIN):
        self.correlation += 1
        return self.add("cuda_runtime", name, begin, end, tid, correlation=self.correlation)

    def kernel(self, name: str, begin: float, end: float, launch: float, stream: int = 7):
        """With the call that launched it, which takes 2 us."""
        self.call("cudaLaunchKernel", launch, launch + 2)
        return self.work("kernel", name, begin, end, stream)

    def work(self, cat: str, name: str, begin: float, end: float, stream: int = 7, **args: Any):
        """Of the last call of the runtime."""
        args = {"device": 0, "stream": stream, "correlation": self.correlation, **args}
        self.add(cat, name, begin, end, stream, **args)
        self.events[-1]["pid"] = 0
        return self

    def steps(self, *borders: float):
        for number, (begin, end) in enumerate(itertools.pairwise(borders)):
            self.mark(f"ProfilerStep#{number}", begin, end)
        return self

    def text(self) -> str:
        return json.dumps({"schemaVersion": 1, **self.facts, "traceEvents": self.events})

    def recording(self, folder: Path, name: str = "trace.json") -> TraceRecording:
        path = folder / name
        path.write_text(self.text(), encoding="utf-8")
        (found,) = read([path])
        return found
