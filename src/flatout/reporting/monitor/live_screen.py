"""Frames on a terminal until the user ends it; one frame as text everywhere else."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flatout.nouns.frame import Frame
from flatout.reporting.monitor import screen
from flatout.reporting.monitor.curves import Curves

KEYS = "q quit  s sort: {}  p {}"
TICK_S = 0.1
Source = Iterator[Frame]


def show_once(frame: Frame, console: Console | None = None) -> None:
    """Print one frame: as wide as the terminal, as long as it must be."""
    console = console or Console()
    curves = Curves()
    curves.add(frame)
    for line in screen.lines(frame, console.width, 10_000, curves):
        console.print(line, markup=False, highlight=False, emoji=False, crop=True)


def show(frames: Source, console: Console | None = None) -> None:
    """Draw the frames over the whole terminal until q or Ctrl-C, or the last frame.

    What the source raises comes out when the terminal is as it was.
    """
    console = console or Console()
    view = _View(_Feed(frames))
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while view.goes_on:
            for key in pressed():
                view.press(key)
            view.take()
            lines = view.lines(console.width, console.height)
            live.update(Group(*lines), refresh=True)
            time.sleep(TICK_S)
    view.feed.check()


class _Feed:
    """Takes frames in a thread, so that keys are answered meanwhile."""

    def __init__(self, frames: Source) -> None:
        self.frames: queue.Queue[Frame] = queue.Queue()
        self.over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(frames,), daemon=True)
        self._thread.start()

    def _run(self, frames: Source) -> None:
        try:
            for frame in frames:
                self.frames.put(frame)
        except BaseException as error:  # raised again in the thread that draws
            self._error = error
        self.over = True

    def check(self) -> None:
        """Raise what the source raised."""
        if self._error is not None:
            raise self._error


class _View:
    """What is on the screen now."""

    def __init__(self, feed: _Feed) -> None:
        self.feed = feed
        self.goes_on = True
        self._curves = Curves()
        self._frame: Frame | None = None
        self._sort = next(iter(screen.SORTS))
        self._paused = False

    def press(self, key: str) -> None:
        if key in ("q", "Q", "\x03"):
            self.goes_on = False
        elif key == "s":
            sorts = list(screen.SORTS)
            self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
        elif key in ("p", " "):
            self._paused = not self._paused

    def take(self) -> None:
        """The newest frame; curves go on in a pause."""
        with suppress(queue.Empty):
            while True:
                frame = self.feed.frames.get_nowait()
                self._curves.add(frame)
                if not self._paused:
                    self._frame = frame
        if self.feed.over and self.feed.frames.empty():
            self.feed.check()

    def lines(self, width: int, height: int) -> list[Text]:
        footer = KEYS.format(self._sort, "go on" if self._paused else "pause")
        if self.feed.over:
            footer = f"{footer}  (the last frame)"
        return [*screen.lines(self._frame, width, height, self._curves, self._sort, footer)]


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """A function that gives the keys pressed since the last call; the terminal is put back."""
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
