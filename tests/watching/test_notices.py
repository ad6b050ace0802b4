"""Alerts told to a command and to a web hook: once, in order, whatever the receiver does."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from flatout.nouns.errors import UserError
from flatout.nouns.frame import Frame
from flatout.watching import notices
from flatout.watching.notices import Notices
from reporting.monitor import frames

LIMIT_S = 120.0
ALERT = frames.alert()
RECEIVE = """
import json, os, sys
alert = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    print(os.environ["FLATOUT_ALERT_CODE"], alert["state"], alert["title"], file=file)
"""


def frame(*alerts: Any) -> Frame:
    return Frame(1.0, alerts=alerts)


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_command_is_told_begin_and_end_once(tmp_path: Path) -> None:
    receive, log = tmp_path / "receive.py", tmp_path / "log"
    receive.write_text(RECEIVE)
    said: list[str] = []
    with Notices([f"{sys.executable} {receive} {log}"], [], said.append) as notices:
        notices.tell(frame(replace(ALERT, state="pending")))
        notices.tell(frame(ALERT))
        notices.tell(frame(ALERT))
        notices.tell(frame(replace(ALERT, state="resolved", resolved_s=9.0)))
        until(lambda: log.exists() and log.read_text().count("\n") == 2)
    assert [line.split()[:2] for line in log.read_text().splitlines()] == [
        ["WAIT001", "firing"],
        ["WAIT001", "resolved"],
    ]
    assert said == []


def test_a_command_that_fails_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    with Notices(
        [f"{sys.executable} -c 'raise SystemExit(3)'", "no-such-program"], [], said.append
    ) as n:
        for number in range(3):
            n.tell(frame(replace(ALERT, since_s=float(number))))
        until(lambda: len(said) == 2)
        time.sleep(0.2)
    assert len(said) == 2
    assert any("exit code 3" in line for line in said)


def test_a_command_on_windows_is_started_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(notices.subprocess, "run", lambda words, **_: started.append(words))
    line = r'"C:\Program Files\x.exe" --to me'
    with Notices([line], [], print) as told:
        told.tell(frame(ALERT))
    assert started == [line]
    with pytest.raises(UserError, match="names no command"):
        Notices([" "], [], print)


@pytest.fixture
def hook() -> Iterator[tuple[str, list[Any], list[int]]]:
    posted: list[Any] = []
    codes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append(json.loads(body))
            self.send_response(codes.pop(0) if codes else 200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/services/SECRET", posted, codes
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_hook(hook: tuple[str, list[Any], list[int]]) -> None:
    url, posted, codes = hook
    codes += [500, 500]  # the third try succeeds
    said: list[str] = []
    with Notices([], [url], said.append) as notices:
        notices.tell(frame(ALERT))
        until(lambda: len(posted) == 3)
    assert posted[-1]["text"].startswith("firing: WAIT001 the job waits")
    assert posted[-1]["alert"]["evidence"] == ALERT.evidence
    assert said == []


def test_the_secret_of_an_address_is_not_told(hook: tuple[str, list[Any], list[int]]) -> None:
    url, _, codes = hook
    codes += [403, 403, 403]
    said: list[str] = []
    with Notices([], [url], said.append) as notices:
        notices.tell(frame(ALERT))
        until(lambda: said)
    assert "it answered 403" in said[0]
    assert "SECRET" not in said[0]


@pytest.mark.parametrize(
    ("commands", "urls"),
    [([" "], []), (["say 'x"], []), ([], ["file:///etc/passwd"]), ([], ["https://"])],
)
def test_what_can_never_work_is_refused(commands: list[str], urls: list[str]) -> None:
    with pytest.raises(UserError):
        Notices(commands, urls, print)
