"""Connections, their requests and the answers."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from flatout_programs.serving.batching import Queue
from flatout_programs.serving.figures import Figures
from flatout_programs.serving.heads import Head, head
from flatout_programs.serving.protocol import answer, parse
from flatout_programs.serving.saying import Answer, HttpRefusal, refused, say

MIB = 2**20
SMALL = 64 * 1024
"""Bytes of a body that is read even where large ones have to wait."""
IDLE_S = 75.0
LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
PLATFORMS = {"onnxruntime": "onnx_onnxv1", "tensorrt": "tensorrt_plan"}
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpServer:
    """Connections, their requests and the answers."""

    def __init__(self, settings: argparse.Namespace, manifest: dict[str, Any]) -> None:
        self.settings, self.manifest = settings, manifest
        self.name = settings.name or manifest["model"]
        self.figures = Figures()
        self.queue = Queue(settings, manifest, self.figures)
        self.open: set[asyncio.StreamWriter] = set()
        self.busy: set[asyncio.StreamWriter] = set()
        self.held = 0
        """Bytes of bodies and answers in memory."""
        self.stopping = self.closing = False

    @property
    def ready(self) -> bool:
        return self.queue.model is not None and not self.stopping

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            if len(self.open) > self.settings.connections:
                full = HttpRefusal(503, "too many connections")
                await self.send(reader, writer, refused(full), keep=False)
                return
            while not self.closing and await self.serve(reader, writer):
                self.busy.discard(writer)
        except (OSError, EOFError):
            pass  # the client is gone, or took too long and was cut off
        finally:
            self.open.discard(writer)
            self.busy.discard(writer)
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. False: the connection ends."""
        try:
            with Limit(writer, IDLE_S):
                raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raw = b""
        self.busy.add(writer)
        began, size, request = time.perf_counter(), 0, Head("-", "-", {}, keep=False)
        try:
            request = head(raw)
            size = self.admit(request)
            self.held += size
            result = await self.route(request, await self.body(request, size, reader, writer))
        except HttpRefusal as error:
            result = refused(error)
        except (OSError, EOFError):
            raise
        except Exception as error:  # a mistake of ours: this client is told, the others go on
            say(f"{request.path!r} failed: {error!r}")
            result = refused(HttpRefusal(500, "the server failed"))
        finally:
            self.held -= size
        self.note(request, result[0], time.perf_counter() - began)
        keep = request.keep and request.complete and not self.closing
        await self.send(reader, writer, result, keep, with_body=request.method != "HEAD")
        return keep

    def note(self, request: Head, status: int, seconds: float) -> None:
        self.figures.answers[status] += 1
        self.figures.request.add(seconds)
        if self.settings.access_log:
            say(f"{request.method!r} {request.path!r} {status} {1000 * seconds:.2f} ms")

    def admit(self, request: Head) -> int:
        """The length of the body. Raises HttpRefusal for one that is not read."""
        host = request.headers.get("host", "localhost").lower()
        if self.settings.loopback and re.sub(r":\d*$", "", host) not in LOOPBACK:
            # A web page whose name has been pointed at this machine.
            raise HttpRefusal(421, "this server answers to localhost alone; start it with --host")
        if "transfer-encoding" in request.headers:
            raise HttpRefusal(411, "send the body with Content-Length, not in chunks")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HttpRefusal(415, "send the body uncompressed")
        size = request.number("content-length") or 0
        if size > self.settings.max_body_mib * MIB:
            raise HttpRefusal(413, f"{size} bytes; at most {self.settings.max_body_mib} MiB")
        if size > SMALL and self.held + size > self.settings.memory_mib * MIB:
            raise HttpRefusal(503, "too many bytes of other requests are in memory")
        return size

    async def body(
        self, request: Head, size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        if size and request.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        with Limit(writer, self.settings.timeout_s):
            found = await reader.readexactly(size)
        request.complete = True
        return found

    async def route(self, request: Head, body: bytes) -> Answer:
        path = self.path(request.path)
        infer = path == "v2/models/*/infer"
        if request.method not in (("POST",) if infer else ("GET", "HEAD")):
            raise HttpRefusal(405, f"{'POST' if infer else 'GET'} is needed here")
        if infer:
            size = request.number("inference-header-content-length")
            asked = parse(body, size, self.queue.inputs, self.queue.outputs)
            return 200, *answer(self.name, asked, await self.queue.ask(asked.arrays))
        if path == "metrics":
            return 200, self.metrics().encode(), {"Content-Type": "text/plain; version=0.0.4"}
        status = 503 if path.endswith("ready") and not self.ready else 200
        return status, json.dumps(PATHS[path](self)).encode(), {"Content-Type": "application/json"}

    def path(self, text: str) -> str:
        """A path of PATHS, with * for this model."""
        steps = [unquote(step) for step in text.rstrip("/").split("/")][1:]
        if steps[:2] == ["v2", "models"] and len(steps) > 2:
            if steps[2] != self.name:
                raise HttpRefusal(404, f"no such model; this server has {self.name!r}")
            if steps[3:5] == ["versions", "1"]:
                del steps[3:5]
            steps[2] = "*"
        path = "/".join(steps)
        if path not in PATHS and path not in ("metrics", "v2/models/*/infer"):
            raise HttpRefusal(404, "no such path")
        return path

    def metrics(self) -> str:
        gauges = {
            "ready": self.ready,
            "queue_length": len(self.queue.waiting),
            "connections": len(self.open),
            "bytes_held": self.held,
        }
        return self.figures.text({name: int(value) for name, value in gauges.items()})

    async def send(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        result: Answer,
        keep: bool,
        with_body: bool = True,
    ) -> None:
        """A client that takes its answer too slowly is cut off."""
        status, body, headers = result
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["X-Content-Type-Options: nosniff", *([] if keep else ["Connection: close"])]
        self.held += len(body)
        try:
            with Limit(writer, self.settings.timeout_s):
                start = "\r\n".join([*lines, "", ""]).encode("latin-1")
                writer.write(start + body if with_body else start)
                await writer.drain()
        finally:
            self.held -= len(body)
        if not keep:  # to close on bytes that were not read would take the answer away
            writer.write_eof()
            with Limit(writer, 1.0):
                while await reader.read(MIB):
                    pass


PATHS: dict[str, Callable[[HttpServer], dict[str, Any]]] = {
    "v2": lambda server: {
        "name": "flatout",
        "version": "1",
        "extensions": ["binary_tensor_data"],
    },
    "v2/health/live": lambda server: {"live": True},
    "v2/health/ready": lambda server: {"live": True, "ready": server.ready},
    "v2/models/*/ready": lambda server: {"name": server.name, "ready": server.ready},
    "v2/models/*": lambda server: {
        "name": server.name,
        "versions": ["1"],
        "platform": PLATFORMS.get(server.manifest["backend"], server.manifest["backend"]),
        "inputs": [spec.described for spec in server.queue.inputs],
        "outputs": [spec.described for spec in server.queue.outputs],
    },
}


class Limit:
    """Cuts the connection off when what stands within takes longer."""

    def __init__(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        self.timer = asyncio.get_running_loop().call_later(seconds, writer.transport.abort)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()
