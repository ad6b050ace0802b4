"""What serve.py adds to a call of the model, and what it does under 200 clients.

Added: calls and requests in turn, in blocks, one connection. Load: 200 clients that each check that
the answer is their own, with and without batches. A part that has been measured is not measured
again unless `--again` is given.

The model is a small convolutional network in ONNX Runtime where it can be imported (`--packages`
names a folder that has it), else an exported program in eager PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import record

from flatout.exporting import artefact, serving

GOAL_ADDED_MS = 1.0
CLIENTS = 200
BEST = 8
LOADS = {
    "one_at_a_time": ["--max-batch", "1"],
    "batches": ["--max-batch", str(BEST)],
    "batches_window_2ms": ["--max-batch", str(BEST), "--window-ms", "2"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", default="", help="a folder with onnxruntime")
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--again", action="store_true")
    settings = parser.parse_args()
    if settings.packages:
        sys.path.append(settings.packages)
    kept = record.RESULTS / "export_serving.json"
    done = json.loads(kept.read_text())["figures"] if kept.exists() and not settings.again else {}
    with tempfile.TemporaryDirectory() as name:
        for part in (*(f"added_{side}" for side in (32, 224)), *LOADS):
            if part in done:
                continue
            side = int(part.partition("_")[2]) if part.startswith("added") else 32
            folder = built(Path(name, str(side)), side)
            if part in LOADS:
                done[part] = load(folder, settings, LOADS[part])
            else:
                done[part] = added(folder, settings, side)
            record.write("export_serving", {**done, "goal_added_ms": GOAL_ADDED_MS})


def built(folder: Path, side: int) -> Path:
    """An artefact of the network for images of side x side."""
    if folder.exists():
        return folder
    import torch
    from torch import nn

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    layers: list[Any] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()
    sample, batch = (torch.randn(4, 3, side, side),), torch.export.Dim("batch")
    program = torch.export.export(net, sample, dynamic_shapes=({0: batch},))
    options: dict[str, Any] = {}
    backend = "onnxruntime" if importlib.util.find_spec("onnxruntime") else "eager"
    if backend == "onnxruntime":
        names = {"input_names": ["images"], "output_names": ["logits"]}
        exported = torch.onnx.export(program, dynamo=True, verbose=False, **names)
        assert exported is not None
        exported.save(str(folder / "model.onnx"))
        options = {"inputs": ["images"], "outputs": ["logits"]}
    else:
        torch.export.save(program, folder / "model.pt2")
    (folder / "load.py").write_text(artefact.program(backend))
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    manifest = {
        "schema": artefact.SCHEMA,
        "model": "Net",
        "backend": backend,
        "precision": "exact",
        "inputs": [{"name": "images", "dtype": "float32", "shape": [None, 3, side, side]}],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": [None, 10]}],
        "input_axes": [0],
        "output_axes": [0],
        "batch_dynamic": True,
        "batch_sizes": [BEST],
        "options": options,
        "packages": {},
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    serving.write(folder)
    return folder


@contextlib.contextmanager
def server(folder: Path, settings: argparse.Namespace, *options: str) -> Iterator[int]:
    """A server in a process of its own: its port."""
    packages = ["--packages", settings.packages] if settings.packages else []
    command = [sys.executable, str(folder / "serve.py"), "--port", "0", *packages, *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = [process.stderr.readline()]
        while "serve.py: ready" not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        yield int(said[0].split(":")[-1].split(",")[0])
    finally:
        process.terminate()
        process.wait()


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def binary(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        row = {
            "name": "images",
            "shape": list(images.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": images.nbytes},
        }
        head = json.dumps({"inputs": [row], "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = self.ask(head + images.tobytes(), headers)
        return np.frombuffer(answer, "<f4", 10, len(answer) - 40)

    def json(self, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        row = {"name": "images", "shape": list(images.shape), "datatype": "FP32"}
        body = json.dumps({"inputs": [{**row, "data": images.ravel().tolist()}]})
        return np.array(json.loads(self.ask(body.encode()))["outputs"][0]["data"], "f4")

    def ask(self, body: bytes, headers: dict[str, str] | None = None) -> bytes:
        self.connection.request("POST", "/v2/models/Net/infer", body, headers or {})
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text


def added(folder: Path, settings: argparse.Namespace, side: int) -> dict[str, Any]:
    """Milliseconds of a call in this process, and what a request takes longer; medians."""
    model = loaded(folder)
    images = np.random.default_rng(0).normal(size=(1, 3, side, side)).astype("float32")
    wanted = model(images)["logits"][0]
    with server(folder, settings) as port:
        client = Client(port)
        ways = {"direct": model, "binary": client.binary, "json": client.json}
        np.testing.assert_allclose(client.binary(images), wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(client.json(images), wanted, rtol=1e-4, atol=1e-5)
        blocks: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(settings.blocks):
            for name, way in ways.items():
                calls = max(1, 300 // side) if name == "json" else 50
                blocks[name].append(statistics.median(ms(way, images) for _ in range(calls)))
    direct = blocks.pop("direct")
    return {
        "backend": json.loads((folder / "manifest.json").read_text())["backend"],
        "direct_ms": round(statistics.median(direct), 3),
        **{
            f"added_{name}_ms": round(
                statistics.median(b - a for a, b in zip(direct, times, strict=True)), 3
            )
            for name, times in blocks.items()
        },
    }


def loaded(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("load", folder / "load.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(folder)


def ms(way: Any, images: np.ndarray[Any, Any]) -> float:
    began = time.perf_counter()
    way(images)
    return (time.perf_counter() - began) * 1e3


def load(folder: Path, settings: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """200 clients at once, for some seconds: each checks that the answers are its own."""
    images = np.random.default_rng(1).normal(size=(CLIENTS, 1, 3, 32, 32)).astype("float32")
    model = loaded(folder)
    wanted = [model(image)["logits"][0] for image in images]
    gate, stop = threading.Barrier(CLIENTS + 1), threading.Event()

    def client(number: int) -> list[float]:
        own, times = Client(port), []
        own.binary(images[number])
        gate.wait()
        while not stop.is_set():
            began = time.perf_counter()
            found = own.binary(images[number])
            times.append((time.perf_counter() - began) * 1e3)
            np.testing.assert_allclose(found, wanted[number], rtol=1e-3, atol=1e-4)
        return times

    with server(folder, settings, *options) as port, ThreadPoolExecutor(CLIENTS) as pool:
        asked = [pool.submit(client, number) for number in range(CLIENTS)]
        gate.wait(120)
        began = time.perf_counter()
        time.sleep(settings.seconds)
        stop.set()
        times = [value for item in asked for value in item.result()]
        seconds = time.perf_counter() - began
    cuts = statistics.quantiles(times, n=100)
    return {
        "clients": CLIENTS,
        "requests": len(times),
        "wrong_answers": 0,  # one would have ended the run
        "requests_per_s": round(len(times) / seconds, 1),
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
    }


if __name__ == "__main__":
    main()
