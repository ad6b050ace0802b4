"""The page's server over real sockets: what it gives to whom, and what it refuses."""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from flatout.nouns.errors import UserError
from flatout.reporting.monitor.web import security, server
from flatout.reporting.monitor.web.publisher import COARSE, FINE, ONE_IN, WAITING, Publisher
from flatout.reporting.monitor.web.server import MOST_CONNECTIONS, WebMonitor, serving
from reporting.monitor import frames

pytestmark = pytest.mark.slow


class Site:
    """A server that runs, and what a client can do with it."""

    def __init__(self, publisher: Publisher, server: WebMonitor) -> None:
        self.publisher, self.port = publisher, server.port
        self.token = server.url.partition("#")[2]
        self.host = f"127.0.0.1:{self.port}"
        self.origin = f"http://{self.host}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    def cookie(self) -> str:
        body = json.dumps({"token": self.token}).encode()
        status, headers, _ = self.ask("POST", "/session", body, Origin=self.origin)
        assert status == 204
        return headers["Set-Cookie"].partition(";")[0]

    def raw(self, text: bytes, wait_s: float = 60.0) -> bytes:
        """The answer to these bytes, to its end."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait_s) as connection:
            connection.sendall(text)
            answer = b""
            with suppress(OSError):
                while chunk := connection.recv(65536):
                    answer += chunk
            return answer

    def stream(self, cookie: str, last: str = "") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        again = f"Last-Event-ID: {last}\r\n" if last else ""
        request = f"GET /events HTTP/1.1\r\nHost: {self.host}\r\nCookie: {cookie}\r\n{again}\r\n"
        connection.sendall(request.encode())
        return connection


def events(connection: socket.socket, count: int) -> list[tuple[int, Any]]:
    """The first so many events of a stream."""
    seen = b""
    while seen.count(b"\n\n") < count + 1:  # the first one says when to come again
        chunk = connection.recv(65536)
        assert chunk
        seen += chunk
    found = re.findall(rb"id: (\d+)\ndata: (.+)\n\n", seen)
    return [(int(number), json.loads(text)) for number, text in found]


@pytest.fixture
def site() -> Iterator[Site]:
    publisher = Publisher()
    publisher.put(frames.eight_gpus())
    with serving(publisher) as server:
        yield Site(publisher, server)


@pytest.mark.parametrize(("system", "reused"), [("linux", True), ("win32", False)])
def test_a_port_in_use_is_shared_with_no_other_server(
    system: str, reused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows the option that shortens the wait for a free port shares one that is taken."""
    monkeypatch.setattr(sys, "platform", system)
    spec = importlib.util.spec_from_file_location("server_there", server.__file__)
    assert spec is not None and spec.loader is not None
    there = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, there)  # dataclasses look for it
    spec.loader.exec_module(there)
    assert there._Server.allow_reuse_address is reused


def test_the_page_is_small_and_says_nothing(site: Site) -> None:
    status, headers, body = site.ask("GET", "/")
    assert status == 200
    assert len(body) <= 100_000
    assert b"--epochs" not in body
    assert site.token.encode() not in body
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert site.ask("HEAD", "/")[0] == 200


def test_the_token_gives_a_cookie_and_the_cookie_the_frames(site: Site) -> None:
    body = json.dumps({"token": site.token}).encode()
    _, headers, _ = site.ask("POST", "/session", body, Origin=site.origin)
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Strict" in headers["Set-Cookie"]
    assert site.token not in headers["Set-Cookie"]
    with site.stream(site.cookie()) as stream:
        ((number, document),) = events(stream, 1)
        assert number == 1
        assert document["schema"] == "flatout.monitor/1"
        assert document["jobs"][0]["program"] == "train.py --epochs 0"


def test_without_a_token_there_is_nothing(site: Site) -> None:
    for cookie in ("", "flatout=1", f"flatout-{site.port}=", f"flatout-{site.port}={site.token}"):
        assert site.ask("GET", "/events", Cookie=cookie)[0] == 401
    for body in (b"", b"{", b"[]", b'{"token": null}', b'{"token": "x"}', b"[" * 4000):
        status, headers, _ = site.ask("POST", "/session", body, Origin=site.origin)
        assert status == 403
        assert "Set-Cookie" not in headers


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""],
)
def test_another_name_is_refused(site: Site, host: str) -> None:
    """A page whose name was pointed at this machine (DNS rebinding)."""
    cookie = site.cookie()
    assert site.ask("GET", "/events", Host=host, Cookie=cookie)[0] == 421
    assert site.ask("GET", "/", Host=f"{host}:{site.port}")[0] == 421


def test_two_hosts_or_none_are_refused(site: Site) -> None:
    both = f"GET / HTTP/1.1\r\nHost: {site.host}\r\nHost: evil.example\r\n\r\n".encode()
    assert b" 421 " in site.raw(both)
    assert b" 421 " in site.raw(b"GET / HTTP/1.0\r\n\r\n")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:1", ""],
)
def test_another_page_is_refused(site: Site, origin: str) -> None:
    body = json.dumps({"token": site.token}).encode()
    assert site.ask("POST", "/session", body, Origin=origin)[0] == 403
    assert site.ask("GET", "/events", Origin=origin, Cookie=site.cookie())[0] == 403
    assert site.ask("POST", "/session", body)[0] == 403  # a browser always says it


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "path",
    ["/../etc/passwd", "/%2e%2e/etc/passwd", "/events/../", "//etc/passwd", "/?x", "/session", "*"],
)
def test_there_are_no_other_paths(site: Site, path: str) -> None:
    assert site.ask("GET", path)[0] == 404


def test_odd_requests(site: Site) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
        assert site.ask(method, "/")[0] == 501
    big = {"Content-Length": "99999999"}
    request = http.client.HTTPConnection("127.0.0.1", site.port, timeout=120)
    request.request("POST", "/session", None, {"Origin": site.origin, **big})
    assert request.getresponse().status == 413
    request.close()
    assert b" 431 " in site.raw(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n")
    assert b" 414 " in site.raw(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n")
    assert b" 400 " in site.raw(b"\x16\x03\x01 junk\r\n\r\n")
    assert site.ask("GET", "/")[0] == 200


def test_who_was_away_gets_what_was_missed(site: Site) -> None:
    for _ in range(4):
        site.publisher.put(frames.healthy())
    cookie = site.cookie()
    with site.stream(cookie, "3") as stream:
        assert [number for number, _ in events(stream, 2)] == [4, 5]
    with site.stream(cookie, "999") as stream:  # of a server before this one
        assert [number for number, _ in events(stream, 5)] == [1, 2, 3, 4, 5]


def test_a_slow_reader_delays_nobody(site: Site) -> None:
    cookie = site.cookie()
    with site.stream(cookie) as slow, site.stream(cookie) as quick:
        for _ in range(300):
            site.publisher.put(frames.eight_gpus())
        numbers = [number for number, _ in events(quick, 20)]
        assert len(numbers) >= 20
        assert slow.fileno() >= 0


def test_too_many_connections(site: Site) -> None:
    connections = []
    try:
        for _ in range(4 * MOST_CONNECTIONS):
            with suppress(OSError):
                connections.append(socket.create_connection(("127.0.0.1", site.port), timeout=120))
    finally:
        for connection in connections:
            connection.close()
    deadline = time.monotonic() + 120
    while True:
        with suppress(OSError, http.client.HTTPException):
            if site.ask("GET", "/")[0] == 200:
                break
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_ends_while_readers_hang() -> None:
    publisher = Publisher()
    with serving(publisher) as server:
        site = Site(publisher, server)
        stream = site.stream(site.cookie())
        events(stream, 0)
    with suppress(OSError):  # the stream has ended
        while stream.recv(65536):
            pass
    stream.close()


def test_a_port_that_is_taken(site: Site) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with (
        taken,
        pytest.raises(UserError, match="cannot be served"),
        serving(Publisher(), port=taken.getsockname()[1]),
    ):
        pass


# Parts --------------------------------------------------------------------------------------------


def test_what_is_kept_is_bounded_and_thinned() -> None:
    publisher = Publisher()
    _, reader = publisher.join(0)
    for number in range(2000):
        publisher.put(replace(frames.empty(), time_s=float(number)))
    kept, _ = publisher.join(0)
    assert len(kept) == FINE + COARSE
    assert [number for number, _ in kept[-FINE:]] == list(range(2001 - FINE, 2001))
    assert all(number % ONE_IN == 0 for number, _ in kept[:COARSE])
    assert reader.qsize() <= WAITING
    publisher.leave(reader)


def test_cookies_and_tokens_are_compared_whole() -> None:
    rules = security.Access(8000)
    other = security.Access(8000)
    assert rules.token != other.token
    assert len(rules.token) >= 43
    assert rules.accepts_token(rules.token)
    assert not rules.accepts_token(rules.token[:-1])
    assert not rules.accepts_token(None)
    assert not rules.accepts_token("\ud800")
    assert rules.accepts_cookies(f"a=b; flatout-8000={rules.cookie_value}; c=d")
    assert not rules.accepts_cookies(f"flatout-8001={rules.cookie_value}")
    assert not other.accepts_cookies(f"flatout-8000={rules.cookie_value}")


def test_the_policy_names_what_the_page_holds() -> None:
    text = server.page_text()
    assert "@" + "monitor.js@" not in text
    assert server.page_policy().count("sha256-") == 4
    assert text.count("<script>") == 2
