"""A record of every allocation: from torch's profiler on the CPU, from its allocator on a GPU."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from flatout_agent.attach.replacing import Replacement
from flatout_train.errors import UsageError
from flatout_train.memory import drawing as memory_drawing
from flatout_train.memory import reporting as memory_report
from flatout_train.memory.timeline import Allocation, Timeline

_ENTRIES = 1_000_000
"""Events kept on a GPU, the newest; each takes a few hundred bytes of host memory."""
_TORCHS = ("torch/", "flatout_agent/", "flatout_train/", "flatout/")


@dataclass
class History:
    """Where the record is written; once the block has ended, also its peak."""

    snapshot: Path
    drawing: Path
    peak: int = 0
    """Most bytes in use at once, including those allocated before and freed within the block."""
    largest: list[tuple[int, str, int]] = field(default_factory=list)
    """Bytes, place (file:line) and number of allocations in use at the peak, most bytes first."""


@contextmanager
def record(path: Path, device: torch.device) -> Iterator[History]:
    """Record within the block, then write both files; UsageError if they cannot be written."""
    suffix = ".json" if device.type == "cpu" else ".pickle"
    history = History(_beside(path, suffix), _beside(path, ".html"))
    for file in (history.snapshot, history.drawing):
        if file.exists():
            raise UsageError(f"{file} already exists: pass another path, or delete it")
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist: create it first")
    begin = _on_cpu if device.type == "cpu" else _on_device
    end = begin(history, device)
    try:
        yield history
    finally:
        timeline = end()
        history.peak = timeline.peak
        history.largest = timeline.largest()
        page = memory_drawing.page(timeline, str(device))
        history.drawing.write_text(page, encoding="utf-8")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


End = Callable[[], Timeline]
"""Stops recording, writes the snapshot, and returns the memory in use over time."""


def _on_cpu(history: History, device: torch.device) -> End:
    """By torch.profiler, whose event tree has operator and Python frames of each allocation."""
    activity = torch.profiler.ProfilerActivity.CPU
    profiler = torch.profiler.profile(activities=[activity], profile_memory=True, with_stack=True)
    held = memory_report.held_by_tensors(device)
    profiler.start()

    def end() -> Timeline:
        profiler.stop()
        results = profiler.profiler.kineto_results if profiler.profiler is not None else None
        events = results.experimental_event_tree() if results is not None else []
        moments = sorted(_memory_events(events), key=lambda event: event.start_time_ns)
        allocations, freed = _paired(map(_cpu_moment, moments))
        before = max(freed, held)
        _write_json(history.snapshot, allocations, before)
        return Timeline(allocations, before)

    return end


def _write_json(path: Path, allocations: list[Allocation], before: int) -> None:
    document = {
        "schema": "flatout.memory-history/1",
        "before": before,
        "allocations": [asdict(allocation) for allocation in allocations],
    }
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")


def _memory_events(events: Iterable[Any]) -> Iterator[Any]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if "Allocation" in str(event.tag) and event.extra_fields.device.type == "cpu":
            yield event


@dataclass
class _Moment:
    seconds: float
    address: int
    size: int
    """Bytes; negative if freed."""
    place: str = ""
    part: str = ""


def _cpu_moment(event: Any) -> _Moment:
    fields = event.extra_fields
    moment = _Moment(event.start_time_ns / 1e9, fields.ptr, fields.alloc_size)
    if moment.size > 0:
        names: list[str] = []
        frames: list[tuple[str, int]] = []
        parent = event.parent
        while parent is not None:
            names.append(_name(parent))
            caller = getattr(parent.extra_fields, "caller", None)
            if caller is not None:
                frames.append((caller.file_name, caller.line_number))
            parent = parent.parent
        moment.part = _part([*names, *(file for file, _ in frames)])
        moment.place = _place(frames)
    return moment


def _name(event: Any) -> str:
    try:
        return str(event.name)
    except UnicodeDecodeError:  # torch truncates some names of C functions within a character
        return ""


def _on_device(history: History, device: torch.device) -> End:
    """By the caching allocator's own history, as PyTorch's viewer reads it."""
    recorder: Any = getattr(getattr(torch, device.type), "memory", None)
    if not hasattr(recorder, "_record_memory_history"):
        raise UsageError(
            f"torch {torch.__version__} records no memory history for {device.type}: use a CUDA, "
            "XPU or CPU device"
        )
    held = recorder.memory_allocated(device)
    watching = contextlib.ExitStack()
    calls = watching.enter_context(backward_calls())
    recorder._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=_ENTRIES
    )

    def end() -> Timeline:
        snapshot = recorder._snapshot()
        recorder._dump_snapshot(str(history.snapshot))
        recorder._record_memory_history(enabled=None)
        watching.close()
        return from_snapshot(snapshot, device.index or 0, held, calls)

    return end


@dataclass
class BackwardCall:
    """A line of the program that ran a backward pass, and when, in seconds since the epoch."""

    place: str
    began: float
    ended: float = float("inf")


@contextmanager
def backward_calls() -> Iterator[list[BackwardCall]]:
    """Records the backward passes within the block.

    On a GPU they run in a thread without Python frames, so torch records no line for them.
    """
    calls: list[BackwardCall] = []

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            call = BackwardCall(_place(_frames()), time.time())
            calls.append(call)
            try:
                return original(*args, **kwargs)
            finally:
                call.ended = time.time()

        return run

    functions = ("backward", "grad")
    ours = {name: noting(getattr(torch.autograd, name)) for name in functions}
    replacement = Replacement(torch.autograd, ours)
    replacement.put()
    try:
        yield calls
    finally:
        replacement.back()


def _frames() -> list[tuple[str, int]]:
    """File and line of the callers, innermost first."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return frames


def from_snapshot(
    snapshot: dict[str, Any], index: int, held: int, calls: Sequence[BackwardCall] = ()
) -> Timeline:
    """The timeline of one device in a snapshot of torch's allocator.

    held: bytes in use before it. calls: the backward passes within it.
    """
    traces = snapshot["device_traces"]
    entries = traces[index] if index < len(traces) else []
    moments = [_device_moment(entry, calls) for entry in entries if entry["action"] in _ACTIONS]
    allocations, freed = _paired(moments)
    return Timeline(allocations, max(freed, held))


_ACTIONS = {"alloc": 1, "free_requested": -1}
"""Memory counts as in use until the program frees it, even if the allocator waits."""


_SLACK_S = 1e-3
"""The allocator's clock is an estimate of the system's."""


def _device_moment(entry: dict[str, Any], calls: Sequence[BackwardCall]) -> _Moment:
    size = entry["size"] * _ACTIONS[entry["action"]]
    moment = _Moment(entry.get("time_us", 0) / 1e6, entry["addr"], size)
    if size > 0:
        frames = [(frame["filename"], frame["line"]) for frame in entry.get("frames", ())]
        # the thread that runs the backward pass on a GPU has no Python frames
        moment.part = _part([file for file, _ in frames]) if frames else "backward"
        moment.place = _place(frames) if frames else _caller(moment.seconds, calls)
    return moment


def _caller(seconds: float, calls: Sequence[BackwardCall]) -> str:
    """The line that ran the backward pass of this moment, as the CPU's history has it."""
    for call in calls:
        if call.began - _SLACK_S <= seconds <= call.ended + _SLACK_S:
            return call.place
    return "(backward pass)"


def _paired(moments: Iterable[_Moment]) -> tuple[list[Allocation], int]:
    """Allocations with their ends, and the bytes allocated before and freed within the record."""
    allocations: list[Allocation] = []
    live: dict[int, Allocation] = {}
    before = 0
    for moment in moments:
        if moment.size > 0:
            allocation = Allocation(moment.seconds, None, moment.size, moment.part, moment.place)
            live[moment.address] = allocation
            allocations.append(allocation)
        elif moment.address in live:
            live.pop(moment.address).end = moment.seconds
        else:
            before -= moment.size
            allocations.append(Allocation(None, moment.seconds, -moment.size, "before", "(before)"))
    return allocations, before


def _part(names: Iterable[str]) -> str:
    """The part of the step, from the names on the stack, innermost first."""
    part = "other"
    for name in names:
        file = name.replace("\\", "/")
        if "torch/optim/" in file or name.startswith("Optimizer."):
            return "optimizer"
        if name.startswith("autograd::engine") or "torch/autograd/" in file:
            return "backward"
        if "torch/nn/" in file or name.startswith("nn.Module"):
            part = "forward"
    return part


def _place(frames: list[tuple[str, int]]) -> str:
    """`file:line` of the program's innermost frame; of the innermost frame if it has none."""
    for file, line in frames:
        plain = file.replace("\\", "/")
        if not plain.startswith(("<", *_TORCHS)) and not any(f"/{t}" in plain for t in _TORCHS):
            return f"{file}:{line}"
    return f"{frames[0][0]}:{frames[0][1]}" if frames else "(unknown)"
