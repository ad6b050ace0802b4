"""Artefact folders made here, and servers that run in processes of their own."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from flatout.exporting import serving

LINEAR = '''
"""y = x w: numpy alone, so that a server starts at once. A row that begins with 1e6 is an error.
LOAD_GATE and GATE name files: until they are there, it does not load, and computes nothing but 0.
"""
import os, pathlib, time
import numpy

def cores():
    return 1

def load(folder=None, threads=None, check=False):
    weights = numpy.load(pathlib.Path(folder or pathlib.Path(__file__).parent) / "weights.npy")

    def wait(gate):
        while gate in os.environ and not os.path.exists(os.environ[gate]):
            time.sleep(0.01)

    def model(x):
        if x.any():  # zeros are the server's own
            time.sleep(float(os.environ.get("SLEEP_S", "0")))
            wait("GATE")
        if (x[:, 0] == 1e6).any():
            raise IndexError("index out of range")
        return {"y": x @ weights, "rows": numpy.full((len(x),), len(x), "int64")}

    wait("LOAD_GATE")
    return model
'''
WEIGHTS = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")


def tensor(name: str, dtype: str, *shape: int | None) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def finished(folder: Path, **facts: Any) -> Path:
    """The folder as an artefact: a manifest, and what the server needs."""
    hashes = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
    manifest = {
        "schema": "flatout.artefact/1",
        "model": "Linear",
        "backend": "onnxruntime",
        "precision": "exact",
        "batch_dynamic": True,
        "batch_sizes": [1, 8],
        "input_axes": [0],
        "output_axes": [0, 0],
        "batch_matters": False,
        "options": {},
        "packages": {"numpy": np.__version__},
        "measured": {
            "batches": [
                {"batch": 1, "ms": 1.0, "samples_per_s": 1000.0},
                {"batch": 8, "ms": 2.0, "samples_per_s": 4000.0},
                {"batch": 16, "ms": 8.0, "samples_per_s": 2000.0},
            ]
        },
        "files": hashes,
        **facts,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    serving.write(folder)
    return folder


def linear(folder: Path, **facts: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "load.py").write_text(LINEAR)
    np.save(folder / "weights.npy", WEIGHTS)
    inputs = [tensor("x", "float32", None, 3)]
    outputs = [tensor("y", "float32", None, 5), tensor("rows", "int64", None)]
    return finished(folder, **{"inputs": inputs, "outputs": outputs, **facts})


class Served:
    """A server that runs."""

    def __init__(self, process: subprocess.Popen[str], port: int, said: list[str]) -> None:
        self.process, self.port, self.said = process, port, said

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def get(self, path: str) -> Any:
        status, _, body = self.ask("GET", path)
        assert status == 200, body
        return json.loads(body)

    def infer(self, rows: Any, path: str = "/v2/models/Linear/infer") -> tuple[int, Any]:
        status, _, body = self.ask("POST", path, json.dumps(request(rows)).encode())
        return status, json.loads(body)

    def figure(self, name: str) -> float:
        _, _, text = self.ask("GET", "/metrics")
        rows = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line[0] != "#")
        return float(rows.get(name, 0))

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def request(rows: Any, **more: Any) -> dict[str, Any]:
    """A request of the linear model, as JSON."""
    array = np.asarray(rows, "float32")
    row = {"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": array.tolist()}
    return {"inputs": [row], **more}


@contextmanager
def serving_process(
    folder: Path, *options: str, python: str = sys.executable, ready: bool = True, **variables: str
) -> Iterator[Served]:
    command = [python, "-B", str(folder / "serve.py"), "--port", "0", *options]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": variables.pop("PYTHONPATH", ""), **variables},
    )
    assert process.stderr is not None
    try:
        said = [process.stderr.readline()]
        assert "listening on" in said[0], said[0] + process.stderr.read()
        port = int(said[0].split(":")[-1].split(",")[0])
        served = Served(process, port, said)
        if ready:
            while "serve.py: ready" not in said[-1]:  # runtimes write what they like
                said.append(process.stderr.readline())
                assert said[-1], "".join(said)
        yield served
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def until(what: Any, seconds: float = 60.0) -> None:
    """Wait for what a loaded machine does late."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
