"""flatout monitor."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from flatout.commands import _options, print_document
from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame

if TYPE_CHECKING:
    from flatout.reporting.monitor.outlets.prometheus import Exposition
    from flatout.watching.observing import JobsObserver

PLACE = ("Understand", 5)
USAGE = "[OPTIONS] [HOST]..."
LEAST_EVERY_S = 0.5

Hosts = Annotated[list[str] | None, typer.Argument(metavar="HOST", hidden=True)]
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
Slurm = Annotated[
    str | None, typer.Option("--slurm", metavar="JOB", help="Watch the nodes of a Slurm job.")
]
Remote = Annotated[
    str, typer.Option("--remote", metavar="COMMAND", help="How flatout is called on HOST.")
]
Web = Annotated[bool, typer.Option("--web", help="Serve a live page in place of the screen.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="N", min=0, max=65535, help="Port of the page.  [default: a free one]"
    ),
]
Prometheus = Annotated[
    str | None,
    typer.Option("--prometheus", metavar="[HOST:]PORT", help="Serve the figures for Prometheus."),
]


class _Source(NamedTuple):
    """The origin of frames."""

    hosts: tuple[str, ...]
    remote: str
    every_s: float
    replay: Path | None
    speed: float


def command(
    hosts: Hosts = None,
    once: Once = False,
    as_json: _options.Json = False,
    follow: Follow = False,
    every: Every = 1.0,
    replay: RecordedRun = None,
    speed: Speed = 1.0,
    slurm: Slurm = None,
    remote: Remote = "flatout",
    web: Web = False,
    port: Port = None,
    prometheus: Prometheus = None,
) -> int:
    """Show this machine, its GPUs and the running jobs, live.

    Lists the jobs that flatout run has started, with step time, samples per second, waiting, loss
    and alerts, and other training jobs with the facts visible from outside. With HOST, lists the
    jobs of other machines through ssh. It only reads: no job waits for it.

    Examples:
      flatout monitor
      flatout monitor --web
      flatout monitor node1 node2
      flatout monitor --replay .flatout/runs/20261124T091500Z-run
    """
    names = tuple(hosts or ())
    if slurm is not None:
        from flatout.watching.nodes import slurm_hosts

        names += tuple(slurm_hosts(slurm))
    source = _Source(names, remote, every, replay, speed)
    if follow and not as_json:
        raise UserError("--follow goes with --json", "flatout monitor --json --follow")
    if port is not None and not web:
        raise UserError("--port goes with --web", "flatout monitor --web")
    if once or (as_json and not follow):
        return _one(source, as_json)
    page = (port or 0) if web else None
    if prometheus is None:
        return _shown(source, None, as_json, page)
    from flatout.reporting.monitor.outlets.prometheus import serving

    with serving(prometheus) as exposition:
        return _shown(source, exposition, as_json, page)


def _shown(source: _Source, exposition: Exposition | None, as_json: bool, port: int | None) -> int:
    """Show frame after frame in the requested way. exposition: takes each frame first."""
    observer = None
    if not source.hosts and source.replay is None:
        from flatout.watching.observing import JobsObserver

        observer = JobsObserver(gpm=True)
    frames = _frames(source, observer)
    if exposition is not None:
        frames = _told(frames, exposition)
    if as_json:
        from flatout.nouns import frame_json

        for frame in frames:
            try:
                sys.stdout.write(json.dumps(frame_json.dump(frame)) + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                break
        return 0
    if port is not None:
        return _page(frames, port)
    return _screen(frames, source, told=exposition is not None)


def _frames(
    source: _Source, observer: JobsObserver | None = None, once: bool = False
) -> Iterator[Frame]:
    if source.replay is not None:
        from flatout.watching import recording

        last_s: float | None = None
        for frame in recording.frames(source.replay):
            if last_s is not None and not once and sys.stdout.isatty():
                time.sleep(min(10.0, max(0.0, frame.time_s - last_s) / source.speed))
            last_s = frame.time_s
            yield frame
    elif source.hosts:
        from flatout.watching.nodes import Nodes

        nodes = Nodes(source.hosts, source.remote)
        if once:
            yield nodes.once()
        else:
            yield from nodes.frames(source.every_s)
    else:
        from flatout.watching.observing import JobsObserver

        with observer or JobsObserver() as observed:
            if once:
                yield observed.once()
            else:
                yield from observed.frames(source.every_s)


def _one(source: _Source, as_json: bool) -> int:
    """Only the newest frame."""
    (frame,) = deque(_frames(source, once=True), maxlen=1)  # for a recorded run, the last one
    if as_json:
        from flatout.nouns import frame_json

        print_document(frame_json.dump(frame))
    else:
        from flatout.reporting.monitor import live_screen

        live_screen.show_once(frame)
    return 0


def _told(frames: Iterator[Frame], exposition: Exposition) -> Iterator[Frame]:
    """The frames, each told to Prometheus first."""
    for frame in frames:
        exposition.tell(frame)
        yield frame


def _page(frames: Iterator[Frame], port: int) -> int:
    """Serve the page until Ctrl-C, or until the parent process ends it."""
    from flatout.reporting.monitor.web.publisher import Publisher
    from flatout.reporting.monitor.web.server import serving

    publisher = Publisher()
    with serving(publisher, port) as server:
        typer.echo(f"{server.url}\n")
        typer.echo(f"From another machine: {server.ssh_line}, then open the same address there.")
        typer.echo("Ctrl-C ends it.")
        sys.stdout.flush()
        for frame in frames:
            publisher.put(frame)
        while True:  # the replayed run has ended; its page can still be read
            time.sleep(1.0)


def _screen(frames: Iterator[Frame], source: _Source, told: bool) -> int:
    """Frames on a terminal; elsewhere one frame, or none if there are receivers."""
    drawn = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    if drawn:
        from flatout.reporting.monitor import live_screen

        live_screen.show(frames)
        return 0
    if told:  # nobody looks, but there are receivers
        deque(frames, maxlen=0)
        return 0
    return _one(source, as_json=False)
