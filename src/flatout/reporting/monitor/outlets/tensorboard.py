"""The figures for TensorBoard: event files, a run for each job and for each GPU.

A job's run has its loss, step time and waiting of each step that a frame brings (those of its least
rank), and the samples per second of all ranks at the last of these. A GPU's run has its figures by
time; their step is Unix time in whole seconds.

Of TensorBoard only the messages and the framing of records are used: its own file writer would
import TensorFlow where that is installed, and lets a full disk be felt where an event is added.
"""

from __future__ import annotations

import importlib
import os
import queue
import re
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample, PulseStep
from flatout.reporting.monitor.outlets import figures
from flatout.reporting.monitor.outlets.figures import Figure, Labels
from flatout.reporting.monitor.outlets.meter import of_gpu

INSTALL = "pip install 'flatout[tensorboard]'"
STEP = {figure.parts[0].field: figure for figure in figures.JOBS}
MOST_WAITING = 600
"""Frames; where a disk is slower than that, the oldest go."""
CLOSE_S = 10.0
LENGTH = struct.Struct("<Q")
CHECKSUM_BYTES = 4
HEAD_BYTES = LENGTH.size + CHECKSUM_BYTES
Value = tuple[Figure, Labels, float]
Point = tuple[int, float, list[Value]]
"""Step, Unix time, values."""


class TensorboardRun:
    """One folder of event files. A step that is in it already is not written again."""

    def __init__(self, folder: Path, owner: str) -> None:
        """owner: a word for whom it belongs to, kept in the names of its files."""
        self.folder, self._owner = folder, owner
        self._last: int | None = None
        self._file: Path | None = None
        self._described: set[str] = set()

    def write(self, points: Iterable[Point]) -> None:
        """Append those that are newer than what is there. Raises OSError."""
        if self._last is None:
            self._last = _last_step(self.folder)
        fresh = []
        for step, time_s, values in points:
            if step > self._last and values:
                self._last = step
                fresh.append((step, time_s, values))
        if not fresh:
            return
        try:
            self._append(fresh)
        except OSError:
            self._file = None  # it may end within a record, and nothing behind that is read
            raise

    def _append(self, points: list[Point]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]
            RecordWriter,
        )

        events = []
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file, self._described = self._new_file(), set()
            events.append(Event(wall_time=points[0][1], file_version="brain.Event:2"))
        for step, time_s, values in points:
            event = Event(wall_time=time_s, step=step)
            for value in values:
                self._add(event, value)
            events.append(event)
        with self._file.open("ab") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())

    def _new_file(self) -> Path:
        """In the order of their names, as TensorBoard reads them."""
        began = f"events.out.tfevents.{time.time():010.0f}"
        for number in count():
            path = self.folder / f"{began}.{self._owner}.{os.getpid()}-{number}"
            if not path.exists():
                break
        return path

    def _add(self, event: Any, value: Value) -> None:
        from tensorboard.plugins.scalar.metadata import (  # type: ignore[import-untyped]
            create_summary_metadata,
        )

        figure, labels, number = value
        tag = "/".join((figure.name, *(word for _, word in labels)))
        added = event.summary.value.add(tag=tag, simple_value=number)
        if tag not in self._described:
            self._described.add(tag)
            unit = "" if figure.unit.startswith("{") or figure.unit == "1" else figure.unit
            text = f"{figure.help} In {unit}." if unit else figure.help
            added.metadata.CopyFrom(create_summary_metadata(display_name="", description=text))


class TensorboardWriter:
    """Writes each frame's news, in a thread of its own: no disk holds up the monitor."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder, self._warn = folder, warn
        self._runs: dict[tuple[str, ...], TensorboardRun] = {}
        self._failing = False
        self._frames: queue.Queue[Frame | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="flatout-tensorboard")
        self._thread.start()

    def tell(self, frame: Frame) -> None:
        """A newer frame."""
        if self._frames.qsize() >= MOST_WAITING:
            with suppress(queue.Empty):
                self._frames.get_nowait()
        self._frames.put(frame)

    def close(self) -> None:
        """Write what waits, for a while."""
        self._frames.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (frame := self._frames.get()) is not None:
            problem = None
            for run, points in self._news(frame):
                try:
                    run.write(points)
                except Exception as error:  # one run's folder may be damaged, others go on
                    reason = error.strerror if isinstance(error, OSError) else None
                    problem = reason or f"{type(error).__name__}: {error}"
            if problem is not None and not self._failing:
                self._warn(f"--tensorboard {self._folder} failed: {problem}; it is tried again")
            self._failing = problem is not None

    def _news(self, frame: Frame) -> Iterator[tuple[TensorboardRun, list[Point]]]:
        for job in frame.jobs:
            if job.recent_steps:
                yield self._of_job(job), list(_points(job))
        for machine in frame.machines:
            for gpu in machine.gpus:
                name = f"gpu{gpu.index}"
                run = self._known((machine.hostname, name), lambda base: base)
                yield run, [(int(frame.time_s), frame.time_s, list(of_gpu(gpu)))]

    def _of_job(self, job: JobSample) -> TensorboardRun:
        """The run of the process whose steps these are.

        A job may start its processes anew, or another program for a while: their steps begin at 1.
        """
        stem = Path(next(iter(job.program.split()), "job")).stem
        name = f"{stem}-{job.id.removeprefix(f'{job.hostname}:')}"
        owner = f"pid{job.ranks[0].pid if job.ranks else job.pid}"
        return self._known((job.hostname, name, owner), lambda base: _of_owner(base, owner))

    def _known(self, key: tuple[str, ...], place: Callable[[Path], Path]) -> TensorboardRun:
        if key not in self._runs:
            host, name, *owner = key
            base = self._folder / _word(host) / _word(name)
            self._runs[key] = TensorboardRun(place(base), owner[0] if owner else "flatout")
        return self._runs[key]


def _points(job: JobSample) -> Iterator[Point]:
    for step in job.recent_steps:
        last = step is job.recent_steps[-1]
        yield step.step, step.time_s, list(_values(step, job.samples_per_s if last else None))


def _values(step: PulseStep, samples_per_s: float | None) -> Iterator[Value]:
    yield STEP["step_s"], (), step.duration_s
    if step.duration_s > 0 and step.wait_s is not None:
        yield STEP["wait_share"], (), step.wait_s / step.duration_s
    if step.loss is not None:
        yield STEP[figures.LOSS], (), step.loss
    if samples_per_s is not None:
        yield STEP["samples_per_s"], (), samples_per_s


def _of_owner(base: Path, owner: str) -> Path:
    """The folder that has files of this owner, or the first that nobody has."""
    for number in count(1):
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        files = [path.name for path in folder.glob("*.tfevents.*")]
        if not files or any(f".{owner}." in name for name in files):
            break
    return folder


def _word(name: str) -> str:
    """As the name of a folder on any system."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "_"


def _last_step(folder: Path) -> int:
    """The last step that an earlier monitor has written there; -1: none."""
    from tensorboard.compat.proto.event_pb2 import Event

    steps = [-1]
    for path in folder.glob("*.tfevents.*"):
        with path.open("rb") as file:
            while len(head := file.read(HEAD_BYTES)) == HEAD_BYTES:
                (length,) = LENGTH.unpack_from(head)
                if length > path.stat().st_size - file.tell() - CHECKSUM_BYTES:
                    break  # cut off, or damaged
                try:
                    event = Event.FromString(file.read(length))
                except Exception:  # protobuf's DecodeError, from wherever it has that
                    break
                file.read(CHECKSUM_BYTES)
                if event.HasField("summary"):
                    steps.append(event.step)
    return max(steps)


@contextmanager
def writing(folder: Path, warn: Callable[[str], None]) -> Iterator[TensorboardWriter]:
    """Write under this folder until the end of the `with` statement; `tensorboard --logdir` reads.

    warn: is called with a line where nothing can be written, once for each time this begins.
    Raises UserError for a folder that cannot be made, and where the package is absent.
    """
    try:
        for name in ("compat.proto.event_pb2", "summary.writer.record_writer"):
            importlib.import_module(f"tensorboard.{name}")
    except ImportError as error:
        raise UserError("--tensorboard needs the package tensorboard", INSTALL) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made: {error.strerror or error}",
            "choose another folder for --tensorboard",
        ) from error
    writer = TensorboardWriter(folder, warn)
    try:
        yield writer
    finally:
        writer.close()
