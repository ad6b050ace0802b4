"""Frames on a terminal until the user ends it; elsewhere, one frame as text."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flatout.nouns.frame import Frame
from flatout.reporting.monitor import screen
from flatout.reporting.monitor.columns import SORTS
from flatout.reporting.monitor.curves import Curves

KEYS = "q quit  s sort: {}  p {}"
TICK_S = 0.1


def show_once(frame: Frame, console: Console | None = None) -> None:
    """Print one frame, as wide as the terminal and as long as needed."""
    console = console or Console()
    curves = Curves()
    curves.add(frame)
    for line in screen.lines(frame, console.width, 10_000, curves):
        console.print(line, no_wrap=True, crop=True)


def show(frames: Iterator[Frame], console: Console | None = None) -> None:
    """Draw the frames over the whole terminal until q or Ctrl-C, or the last frame.

    An error of the source is raised once the terminal is restored.
    """
    console = console or Console()
    view = _View(FrameFeed(frames))
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while view.goes_on:
            for key in pressed():
                view.press(key)
            view.take()
            lines = view.lines(console.width, console.height)
            live.update(Text("\n", no_wrap=True).join(lines), refresh=True)
            time.sleep(TICK_S)
    view.feed.check()


class _View:
    """What is on the screen now."""

    def __init__(self, feed: FrameFeed) -> None:
        self.feed = feed
        self.goes_on = True
        self._curves = Curves()
        self._frame: Frame | None = None
        self._sort = next(iter(SORTS))
        self._paused = False

    def press(self, key: str) -> None:
        if key in ("q", "Q", "\x03"):
            self.goes_on = False
        elif key == "s":
            sorts = list(SORTS)
            self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
        elif key in ("p", " "):
            self._paused = not self._paused

    def take(self) -> None:
        """Take the newest frame; curves continue during a pause."""
        for frame in self.feed.taken():
            self._curves.add(frame)
            if not self._paused:
                self._frame = frame
        if self.feed.failed:
            self.feed.check()

    def lines(self, width: int, height: int) -> list[Text]:
        footer = KEYS.format(self._sort, "go on" if self._paused else "pause")
        if self.feed.over:
            footer = f"{footer}  (the last frame)"
        return [*screen.lines(self._frame, width, height, self._curves, self._sort, footer)]


class FrameFeed:
    """Frames taken in a thread, so that the drawing thread can answer keys meanwhile."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames: queue.Queue[Frame] = queue.Queue()
        self.over = False
        """Whether no more frames will come."""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(frames,), daemon=True)
        self._thread.start()

    def _run(self, frames: Iterator[Frame]) -> None:
        try:
            for frame in frames:
                self._frames.put(frame)
        except BaseException as error:  # raised again in the thread that draws
            self._error = error
        self.over = True

    def taken(self) -> list[Frame]:
        """The frames since the last call, oldest first."""
        frames: list[Frame] = []
        with suppress(queue.Empty):
            while True:
                frames.append(self._frames.get_nowait())
        return frames

    @property
    def failed(self) -> bool:
        """Whether the source has raised something."""
        return self._error is not None

    def check(self) -> None:
        """Raise what the source raised."""
        if self._error is not None:
            raise self._error


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """A function that gives the keys pressed since its last call; the terminal is restored."""
    if sys.platform == "win32":
        import msvcrt

        def windows() -> str:
            pressed = ""
            while msvcrt.kbhit():
                pressed += msvcrt.getwch()
            return pressed

        yield windows
        return
    import select
    import termios
    import tty

    if not sys.stdin.isatty():
        yield lambda: ""
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def unix() -> str:
        pressed = ""
        while select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, 64)
            if not data:
                break
            pressed += data.decode(errors="replace")
        return pressed

    try:
        tty.setcbreak(descriptor)  # Ctrl-C still interrupts
        yield unix
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
