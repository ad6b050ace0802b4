"""Serve the model of this folder over HTTP: `python serve.py --port 8000`.

It speaks the Open Inference Protocol v2, with tensors as JSON or binary, so clients of KServe and
Triton can talk to it. It needs the standard library, numpy and what load.py needs, with Python 3.10
or newer. `flatout export` wrote it; it is yours to change.

One thread reads and answers requests, another runs the model. Requests that arrive while it runs go
through it together, where the batch dimension allows that; `--window-ms` also waits for more.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout_programs.serving.saying import say
from flatout_programs.serving.server import SMALL, HttpServer

FOLDER = Path(__file__).resolve().parent
MIB = 2**20


def checked_manifest(folder: Path, check: bool) -> dict[str, Any]:
    """The manifest. Raises ValueError where a file is not the one that was verified."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if manifest.get("schema") != "flatout.artefact/1":
        raise ValueError(f"manifest.json is {manifest.get('schema')!r}, not flatout.artefact/1")
    for name, wanted in manifest["files"].items() if check else ():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise ValueError(f"manifest.json names {name!r}, which is outside of this folder")
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while chunk := stream.read(8 * MIB):
                digest.update(chunk)
        if digest.hexdigest() != wanted:
            raise ValueError(f"{name} is not the file that was verified: its SHA-256 differs")
    return manifest


async def serve(settings: argparse.Namespace, manifest: dict[str, Any]) -> int:
    """Serve until a signal; the exit code."""
    server = HttpServer(settings, manifest)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for name in ("SIGTERM", "SIGINT"):
        signal.signal(getattr(signal, name), lambda *_: loop.call_soon_threadsafe(stop.set))
    listener = await asyncio.start_server(
        server.connected, settings.host, settings.port, limit=2 * SMALL, backlog=512
    )
    port = listener.sockets[0].getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    say(f"listening on http://{host}:{port}, loading {manifest['backend']}")
    until = loop.create_task(stop.wait())
    loading = loop.run_in_executor(server.queue.thread, server.queue.load)
    either: set[asyncio.Future[Any]] = {loading, until}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        return 0
    loading.result()
    say(f"ready: /v2/models/{server.name}/infer")
    batches = loop.create_task(server.queue.run())
    await asyncio.wait([batches, until], return_when=asyncio.FIRST_COMPLETED)
    if batches.done():
        batches.result()
    return await end(server, listener, stop)


async def end(server: HttpServer, listener: asyncio.AbstractServer, again: asyncio.Event) -> int:
    """Linger until another signal, then finish what runs; 0 where all of it was."""
    server.stopping = True
    again.clear()
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(again.wait(), server.settings.linger_s)
    server.closing = True
    listener.close()
    for writer in server.open - server.busy:
        writer.close()
    last = time.monotonic() + server.settings.timeout_s
    while server.busy and time.monotonic() < last:
        await asyncio.sleep(0.01)
    say("ended" if not server.busy else f"ended with {len(server.busy)} requests unanswered")
    return 1 if server.busy else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    option = parser.add_argument
    option("--host", default="127.0.0.1", help="0.0.0.0: open to the network (127.0.0.1)")
    option("--port", type=int, default=8000)
    option("--name", help="of the model in the paths (that of its class)")
    option("--threads", type=int, help="of the model (the cores that it may use)")
    option("--window-ms", type=float, default=0.0, help="wait so long for a full batch (0)")
    option("--max-batch", type=int, help="rows that go through the model together (the best)")
    option("--queue", type=int, default=512, help="requests that may wait (512)")
    option("--connections", type=int, default=1024, help="(1024)")
    option("--max-body-mib", type=int, default=64, help="of a request (64)")
    option("--memory-mib", type=int, default=512, help="of all bodies and answers (512)")
    option("--timeout-s", type=float, default=30.0, help="for each part of a request (30)")
    option("--linger-s", type=float, default=0.0, help="go on so long after SIGTERM (0)")
    option("--packages", help="a folder of packages behind those of Python")
    option("--access-log", action="store_true")
    option("--unchecked", action="store_true", help="do not compare files with the manifest")
    settings = parser.parse_args()
    settings.folder = FOLDER
    settings.loopback = settings.host in ("127.0.0.1", "localhost", "::1")
    return settings


def main() -> int:
    settings = arguments()
    if settings.packages:
        sys.path.append(settings.packages)
    try:
        manifest = checked_manifest(FOLDER, not settings.unchecked)
        from load import cores  # type: ignore[import-not-found]  # once it is the verified file

        settings.threads = settings.threads or cores()
        for name in ("OMP_NUM_THREADS", "TVM_NUM_THREADS"):  # read when a runtime is imported
            os.environ.setdefault(name, str(settings.threads))
        return asyncio.run(serve(settings, manifest))
    except Exception as error:
        say(f"cannot serve: {type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a model that hangs in its thread does not keep the process
