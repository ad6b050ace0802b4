"""TensorBoard's folder layout: raw traces where torch-tb-profiler looks for them.

A run is a folder below the log folder, a trace in it `<worker>.<time>.pt.trace.json[.gz]`, as
`torch.profiler.tensorboard_trace_handler` names it; the worker reads `<host>_<number>`.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

from flatout.nouns.errors import UserError
from flatout.nouns.profile import Profiled

NAMED = re.compile(r".+\.\d+\.pt\.trace\.json(\.gz)?$")
"""A trace that already has such a name keeps it: the name holds its worker."""
GZIP = b"\x1f\x8b"


def profile(profiled: Profiled, folder: Path, further: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Copy the job's traces below `folder` and return where they lie; see them with
    `tensorboard --logdir <folder>`.

    further: those of other ranks. The trace with stacks becomes a run of its own, since its times
    are not those of the others. Raises UserError where there is no trace or no room.
    """
    loop = profiled.profile.seen
    traces = [profiled.profile.trace, *further]
    times = list(dict.fromkeys(Path(trace) for trace in traces if trace))
    stack_traces = [Path(loop.detail_trace)] if loop is not None and loop.detail_trace else []
    runs = {
        "flatout": times,
        "flatout-stacks": [path for path in stack_traces if path not in times],
    }
    if not times and not stack_traces:
        raise UserError("there is no raw trace to copy: the recording left none")
    try:
        return tuple(
            _copied(path, folder / run, number)
            for run, paths in runs.items()
            for number, path in enumerate(paths)
        )
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror or error}") from error


def _copied(trace: Path, run: Path, number: int) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    place = run / _name(trace, number)
    if not (place.exists() and place.samefile(trace)):
        shutil.copyfile(trace, place)
    return place


def _name(trace: Path, number: int) -> str:
    if NAMED.match(trace.name):
        return trace.name
    # The ending decides how it is read, so it follows what the file holds.
    with trace.open("rb") as file:
        ending = ".gz" if file.read(2) == GZIP else ""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname()) or "host"
    return f"{host}_{number}.{trace.stat().st_mtime_ns}.pt.trace.json{ending}"
