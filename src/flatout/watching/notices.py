"""Pass alerts on when they begin to fire and when they are resolved: a command, a web hook.

Each receiver has a thread and a short queue of its own, so a slow or dead one delays nobody.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self
from urllib.parse import urlsplit

from flatout.nouns.alert import Alert
from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame

COMMAND_S = 60.0
WEBHOOK_S = 10.0
TRIES = 3
MOST_WAITING = 50
MOST_TOLD = 5000
CLOSE_S = 5.0
FIELDS = ("code", "state", "severity", "title", "evidence", "hostname", "job", "subject")
Say = Callable[[str], None]


class Notices:
    """Use it in a `with` statement. `tell` takes each frame and finds what is new in it."""

    def __init__(self, commands: Sequence[str], urls: Sequence[str], say: Say) -> None:
        """say: called with a line for the user if a receiver fails, once for each.

        Raises UserError for a command or an address that can never work.
        """
        receivers = [*map(_command, commands), *map(_webhook, urls)]
        self._queues = [_Receiver(send, name, say) for name, send in receivers]
        self._told: dict[tuple[object, ...], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for receiver in self._queues:
            receiver.close()

    def tell(self, frame: Frame) -> None:
        """Pass on each alert that has begun to fire, or that is resolved after it fired."""
        for alert in frame.alerts:
            key = (*alert.key, alert.since_s)
            before = self._told.get(key)
            begins = alert.state == "firing" and before is None
            ends = alert.state == "resolved" and before == "firing"
            if begins or ends:
                self._told[key] = alert.state
                for receiver in self._queues:
                    receiver.put(alert)
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]


class _Receiver:
    """One command or address. Notices wait in a queue; if it is full, the oldest is dropped."""

    def __init__(self, send: Callable[[Alert], None], name: str, say: Say) -> None:
        self._send, self._name, self._say = send, name, say
        self._queue: queue.Queue[Alert | None] = queue.Queue()
        self._failed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        if self._queue.qsize() >= MOST_WAITING:
            with suppress(queue.Empty):
                self._queue.get_nowait()
        self._queue.put(alert)

    def close(self) -> None:
        """Send what is waiting, for a limited time."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            try:
                self._send(alert)
            except Exception as error:
                if not self._failed:
                    self._failed = True
                    self._say(f"{self._name} failed: {_reason(error)}; it is tried again")


def _command(line: str) -> tuple[str, Callable[[Alert], None]]:
    command, name = _taken_apart(line)
    if not command:
        raise UserError("--exec names no command", '--exec "notify-send flatout"')

    def send(alert: Alert) -> None:
        values = {f"FLATOUT_ALERT_{name.upper()}": _text(alert, name) for name in FIELDS}
        subprocess.run(
            command,
            input=json.dumps(_document(alert)).encode(),
            env={**os.environ, **values},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_S,
            check=True,
        )

    return f"--exec {name}", send


def _taken_apart(line: str) -> tuple[str | list[str], str]:
    """What is started, and how it is called. Programs on Windows take their line apart."""
    if sys.platform == "win32":
        return line.strip(), line.strip()
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UserError(f"--exec {line!r} cannot be read: {error}", "check its quotes") from error
    return words, "".join(words[:1])


def _webhook(url: str) -> tuple[str, Callable[[Alert], None]]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            "--webhook needs an address that begins with https:// or http://",
            "--webhook https://hooks.example.org/...",
        )
    name = f"--webhook {parts.hostname}"  # what follows the host may be a secret

    def send(alert: Alert) -> None:
        text = f"{alert.state}: {alert.code} {alert.title} ({alert.hostname})"
        document = {"text": text, "content": text, "alert": _document(alert)}
        request = urllib.request.Request(  # the scheme was checked
            url,
            json.dumps(document).encode(),
            {"Content-Type": "application/json", "User-Agent": "flatout"},
        )
        for attempt in range(TRIES):
            try:
                with urllib.request.urlopen(request, timeout=WEBHOOK_S):
                    return
            except OSError:
                if attempt == TRIES - 1:
                    raise

    return name, send


def _document(alert: Alert) -> dict[str, Any]:
    return asdict(alert)


def _text(alert: Alert, name: str) -> str:
    value = getattr(alert, name)
    return "" if value is None else str(value).replace("\0", "")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {error.timeout:.0f} s"
    return f"{type(error).__name__}: {error}"
