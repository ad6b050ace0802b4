"""`load.py` of every backend, the folder's protection, and hashes."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from every import for_every
from flatout.exporting import artefact
from flatout.knowledge import backends
from flatout.nouns.errors import UserError
from flatout_agent import limits
from flatout_programs.loading import frame

RUNTIMES = {
    "numpy",
    "onnxruntime",
    "openvino",
    "tensorrt",
    "torch",
}


@for_every(backends.every(), lambda backend: backend.id)
def test_load_py_stands_alone(backend: backends.KnownBackend) -> None:
    text = artefact.program(backend.id)
    module = ast.parse(text, feature_version=(3, 9))
    imports = {
        (item.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
        for node in ast.walk(module)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for item in node.names
    }
    assert imports <= sys.stdlib_module_names | RUNTIMES
    own = imports - sys.stdlib_module_names - {"numpy"}
    assert ("torch" in own) <= (not backend.torch_free)
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    assert functions >= {"load", "start", "check_files", "cores"}
    assert "noqa" not in text
    assert "type: ignore" not in text


@pytest.mark.parametrize(
    ("quota", "count"),
    [("250000 100000", 2), ("299999 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)],
)
def test_cores_are_counted_as_everywhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int
) -> None:
    for path, text in (
        ("sys/fs/cgroup/cpu.max", quota),
        ("proc/self/cgroup", "0::/\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    monkeypatch.setattr(frame, "CPU_MAX", tmp_path / "sys/fs/cgroup/cpu.max")
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(limits, "_affinity", lambda: 8)
    assert frame.cores() == limits.usable_cores() == count


def written(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "load.py").write_text("", encoding="utf-8")
    manifest = {"schema": artefact.SCHEMA, "files": artefact.hashes(folder), "packages": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_an_artefact_of_ours_may_be_replaced_also_with_a_server_in_it(tmp_path: Path) -> None:
    written(tmp_path)
    artefact.add_server(tmp_path)
    (tmp_path / artefact.OLD_REPORT).touch()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "load.pyc").touch()
    artefact.check_target(tmp_path)
    artefact.check_target(tmp_path / "not-there")
    (tmp_path / "serve.py").write_text("# my own way", encoding="utf-8")
    with pytest.raises(UserError, match=r"serve\.py"):
        artefact.check_target(tmp_path)
    artefact.add_server(tmp_path)
    (tmp_path / "results.csv").touch()
    with pytest.raises(UserError, match="not an exported model's"):
        artefact.check_target(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1, "files": {}}', '{"files": {}}'])
def test_another_manifest_is_no_artefact(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="not an exported model's"):
        artefact.check_target(tmp_path)


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "exported").touch()
    with pytest.raises(UserError, match="is no folder"):
        artefact.check_target(tmp_path / "exported")


def test_a_file_that_was_changed_is_found(tmp_path: Path) -> None:
    written(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    frame.check_files(tmp_path, manifest)
    (tmp_path / "model.bin").write_bytes(b"others!")
    with pytest.raises(RuntimeError, match=r"model\.bin is not the file that was exported"):
        frame.check_files(tmp_path, manifest)


def test_a_missing_runtime_is_told_with_its_line(tmp_path: Path) -> None:
    text = artefact.program("onnxruntime").replace("import onnxruntime", "import no_such_runtime")
    (tmp_path / "load.py").write_text(text, encoding="utf-8")
    manifest = {"options": {}, "install": "pip install no-such-runtime==1.0"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    code = "import sys; sys.path.insert(0, '.'); import load; load.load()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "RuntimeError: this model needs no_such_runtime" in done.stderr
    assert "pip install no-such-runtime==1.0" in done.stderr


DOUBLING = """
def start(folder, options, threads):
    return lambda arrays: [2 * arrays[0]]
"""
X = {"name": "x", "dtype": "float32", "shape": [None, 2]}


@contextmanager
def serving(folder: Path) -> Iterator[HTTPConnection]:
    """The example beside an artefact that doubles its input."""
    loading = artefact.program("eager")
    frame_alone = loading[: loading.index("\ndef start(")]
    (folder / "load.py").write_text(frame_alone + DOUBLING, encoding="utf-8")
    manifest = {
        "files": artefact.hashes(folder),
        "packages": {"numpy": "2.4.0"},
        "options": {},
        "inputs": [X],
        "outputs": [{**X, "name": "y"}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    artefact.add_server(folder)
    command = [sys.executable, "-B", str(folder / "serve.py"), "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            address = process.stdout.readline().rpartition("/")[2]
            yield HTTPConnection(address.strip(), timeout=120)
        finally:
            process.kill()


def test_the_example_serves_the_model(tmp_path: Path) -> None:
    def ask(method: str, body: str | None = None) -> tuple[int, Any]:
        connection.request(method, "/", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    with serving(tmp_path) as connection:
        status, told = ask("GET")
        assert (status, told["inputs"]) == (200, [X])
        assert ask("POST", '{"x": [[1, 2.5], [3, 4]]}') == (200, {"y": [[2.0, 5.0], [6.0, 8.0]]})
        for wrong, said in (
            ("no JSON", "JSONDecodeError"),
            ('{"z": [[1, 2]]}', "z is not among them"),
            ('{"x": [[1, 2, 3]]}', "not (1, 3)"),
            ('{"x": "words"}', "ValueError"),
        ):
            status, told = ask("POST", wrong)
            assert (status, said in told["error"]) == (400, True), told
    assert (tmp_path / "requirements.txt").read_text(encoding="utf-8") == "numpy==2.4.0\n"


def test_the_example_stands_alone(tmp_path: Path) -> None:
    written(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "packages": {}}))
    artefact.add_server(tmp_path)
    text = (tmp_path / "serve.py").read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 9))
    assert "flatout_programs" not in text
    assert "noqa" not in text
    assert "type: ignore" not in text
    artefact.check_target(tmp_path)
