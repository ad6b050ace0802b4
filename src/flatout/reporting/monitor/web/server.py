"""The page's server: four answers, no files, a limited number of connections, each with a limit.

GET / is the page, which holds nothing about this machine; POST /session swaps the token for the
cookie; GET /events is the stream of frames.
"""

from __future__ import annotations

import functools
import json
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flatout.nouns.errors import UserError
from flatout.reporting.html import TEMPLATES
from flatout.reporting.monitor.web import security
from flatout.reporting.monitor.web.publisher import Publisher
from flatout.reporting.monitor.web.security import Access

MOST_CONNECTIONS = 64
MOST_READERS = 16
LIMIT_S = 10.0
"""Seconds for a request to arrive, and for a reader to take what it is sent."""
ALIVE_S = 15.0
MOST_BODY = 4096
RETRY_MS = 2000


@dataclass(frozen=True)
class WebMonitor:
    """A running server."""

    port: int
    url: str
    """The address, with the token."""
    ssh_line: str
    """What to type on another machine to reach the server."""


@contextmanager
def serving(publisher: Publisher, port: int = 0) -> Iterator[WebMonitor]:
    """Serve the page until the end of the `with` statement. Raises UserError for a taken port."""
    try:
        server = _Server(("127.0.0.1", port), _Handler)
    except OSError as error:
        raise UserError(
            f"the page cannot be served on port {port}: {error.strerror}",
            "choose another port with --port, or leave it out",
        ) from error
    number = server.server_port
    server.rules, server.publisher = Access(number), publisher
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
    thread.start()
    try:
        yield WebMonitor(
            number,
            f"http://127.0.0.1:{number}/#{server.rules.token}",
            f"ssh -L {number}:127.0.0.1:{number} {socket.gethostname()}",
        )
    finally:
        publisher.close()
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = sys.platform != "win32"  # there two servers would share the port
    request_queue_size = 128
    rules: Access
    publisher: Publisher

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.readers = threading.BoundedSemaphore(MOST_READERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(LIMIT_S)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not an error of ours, and its address is private."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "flatout"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = LIMIT_S

    def log_message(self, *arguments: Any) -> None:
        """Log nothing: an address could hold the token."""

    def do_GET(self) -> None:
        if not self._allowed():
            return
        if self.path == "/":
            self._answer(200, page_text().encode(), "text/html; charset=utf-8")
        elif self.path == "/events":
            self._events()
        else:
            self._refuse(404)

    def do_HEAD(self) -> None:
        if self._allowed():
            self._answer(200 if self.path == "/" else 404, b"", "text/html; charset=utf-8")

    def do_POST(self) -> None:
        if not self._allowed(origin_required=True):
            return
        if self.path != "/session":
            self._refuse(404)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BODY:
            self._refuse(413)
            return
        try:
            token = json.loads(self.rfile.read(int(length))).get("token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not self.server.rules.accepts_token(token):
            self._refuse(403)
            return
        self._answer(204, b"", None, {"Set-Cookie": self.server.rules.cookie})

    def _allowed(self, origin_required: bool = False) -> bool:
        """Whether host and origin are ours; if not, the request is refused."""
        rules, headers = self.server.rules, self.headers
        hosts = headers.get_all("Host") or []
        if len(hosts) != 1 or not rules.knows_host(hosts[0]):
            self._refuse(421)
            return False
        if not rules.knows_origin(headers.get("Origin"), origin_required):
            self._refuse(403)
            return False
        return True

    def _events(self) -> None:
        if not self.server.rules.accepts_cookies(self.headers.get("Cookie")):
            self._refuse(401)
            return
        if not self.server.readers.acquire(blocking=False):
            self._refuse(503)
            return
        last = self.headers.get("Last-Event-ID", "")
        after = int(last) if last.isdecimal() and len(last) < 16 else 0
        kept, reader = self.server.publisher.join(after)
        try:
            self.close_connection = True
            self._head(200, "text/event-stream", {"Connection": "close"})
            self.wfile.write(f"retry: {RETRY_MS}\n\n".encode())
            for number, text in kept:
                self._send(number, text)
            while not self.server.publisher.closed:
                with suppress(queue.Empty):
                    event = reader.get(timeout=ALIVE_S)
                    if event is None:
                        return
                    self._send(*event)
                    continue
                self.wfile.write(b": here\n\n")  # finds out whether the reader is still there
        finally:
            self.server.publisher.leave(reader)
            self.server.readers.release()

    def _send(self, number: int, text: bytes) -> None:
        self.wfile.write(b"id: %d\ndata: %s\n\n" % (number, text))

    def _refuse(self, code: int) -> None:
        self.close_connection = True
        self._answer(code, b"", None, {"Connection": "close"})

    def _answer(
        self, code: int, body: bytes, kind: str | None, headers: dict[str, str] | None = None
    ) -> None:
        self._head(code, kind, {**(headers or {}), "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _head(self, code: int, kind: str | None, headers: dict[str, str]) -> None:
        self.send_response(code)
        policy = {"Content-Security-Policy": page_policy()}
        for name, value in {**security.HEADERS, **policy, **headers}.items():
            self.send_header(name, value)
        if kind is not None:
            self.send_header("Content-Type", kind)
        self.end_headers()


@functools.cache
def page_text() -> str:
    """The whole page. It holds nothing about the machine."""
    scripts, styles = _page_parts()
    page = _template("monitor.html")
    for name, part in zip(("@uplot.js@", "@monitor.js@"), scripts, strict=True):
        page = page.replace(name, part)
    for name, part in zip(("@uplot.css@", "@monitor.css@"), styles, strict=True):
        page = page.replace(name, part)
    return page


@functools.cache
def page_policy() -> str:
    """Its content security policy."""
    return security.policy(*_page_parts())


def _page_parts() -> tuple[list[str], list[str]]:
    """Scripts and styles, in the order of the page."""
    return (
        [_template("vendored/uPlot.js"), _template("monitor.js")],
        [_template("vendored/uPlot.css"), _template("monitor.css")],
    )


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
