"""flatout monitor."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from flatout.commands import _options
from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame

PLACE = ("Understand", 5)
LEAST_EVERY_S = 0.5


Once = Annotated[bool, typer.Option("--once", help="Print one frame and exit.")]
Follow = Annotated[bool, typer.Option("--follow", help="With --json: print a line for each frame.")]
Every = Annotated[
    float,
    typer.Option("--every", metavar="SECONDS", min=LEAST_EVERY_S, help="Time between frames."),
]
RecordedRun = Annotated[
    Path | None,
    typer.Option("--replay", metavar="RUN", help="Show a recorded run: its folder."),
]
Speed = Annotated[
    float, typer.Option("--speed", metavar="X", min=0.1, help="Replay X times as fast.")
]


def command(
    once: Once = False,
    as_json: _options.Json = False,
    follow: Follow = False,
    every: Every = 1.0,
    replay: RecordedRun = None,
    speed: Speed = 1.0,
) -> int:
    """Show this machine, its GPUs and the running jobs, live.

    Lists the jobs that flatout run has started, with step time, samples per second, waiting, loss
    and alerts, and other training jobs with what can be seen from outside. It only reads: no job
    waits for it.

    Examples:
      flatout monitor
      flatout monitor --once
      flatout monitor --json --follow
      flatout monitor --replay .flatout/runs/20261124T091500Z-run
    """
    if follow and not as_json:
        raise UserError("--follow goes with --json", "flatout monitor --json --follow")
    frames = _recorded(replay, speed, once) if replay is not None else _live(every, once)
    if as_json:
        return _documents(frames, follow)
    from flatout.reporting.monitor import live_screen

    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        live_screen.show_once(_last(frames) if replay is not None else next(frames))
    else:
        live_screen.show(frames)
    return 0


def _live(every_s: float, once: bool) -> Iterator[Frame]:
    from flatout.watching.observing import JobsObserver

    with JobsObserver() as observer:
        if once:
            yield observer.once()
        else:
            yield from observer.frames(every_s)


def _recorded(path: Path, speed: float, once: bool) -> Iterator[Frame]:
    """The frames of a run, as far apart as they were."""
    from flatout.watching.replay import Replay

    last_s: float | None = None
    for frame in Replay(path).frames():
        if last_s is not None and not once and sys.stdout.isatty():
            time.sleep(min(10.0, max(0.0, frame.time_s - last_s) / speed))
        last_s = frame.time_s
        yield frame


def _last(frames: Iterator[Frame]) -> Frame:
    frame = next(frames)
    for later in frames:
        frame = later
    return frame


def _documents(frames: Iterator[Frame], follow: bool) -> int:
    """One document, or one a line until whoever reads them is gone."""
    from flatout.nouns import frame_json

    for frame in frames:
        if not follow:
            typer.echo(json.dumps(frame_json.dump(frame), indent=2))
            return 0
        try:
            sys.stdout.write(json.dumps(frame_json.dump(frame)) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    return 0
