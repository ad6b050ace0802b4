"""What is written into the artefact folder: the server, and its container's files."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flatout.exporting import artefact, serving
from flatout.nouns.errors import UserError
from served import linear, serving_process


def instructions(folder: Path) -> list[list[str]]:
    text = (folder / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def facts(folder: Path, **more: object) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    return folder


def test_the_server_stands_alone(tmp_path: Path) -> None:
    folder = linear(tmp_path / "artefact")
    sources = [folder / "serve.py", *(folder / "serving").glob("*.py")]
    assert len(sources) > 5
    for path in sources:
        tree = ast.parse(path.read_text(), feature_version=(3, 10))
        names = {item.name for node in ast.walk(tree) if isinstance(node, ast.Import)
                 for item in node.names}  # fmt: skip
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        roots = {name.partition(".")[0] for name in names}
        assert roots <= sys.stdlib_module_names | {"numpy", "serving", "load"}, path


def test_the_dockerfile(tmp_path: Path) -> None:
    folder = linear(tmp_path / "artefact", python="3.12.4")
    lines = instructions(folder)
    assert lines[0] == ["FROM", "python:3.12-slim"]
    keys = [key for key, _ in lines]
    assert keys.count("USER") == keys.count("HEALTHCHECK") == keys.count("ENTRYPOINT") == 1
    assert keys.index("USER") < keys.index("ENTRYPOINT")
    assert dict(lines)["USER"] == "10001:10001"
    copied = {name for key, rest in lines if key == "COPY"
              for name in rest.replace("--chown=10001:10001 ", "").split()[:-1]}  # fmt: skip
    assert copied == {"requirements.txt", "load.py", "manifest.json", "weights.npy", "serve.py",
                      "serving"}  # fmt: skip
    assert all((folder / name).exists() for name in copied)
    assert (folder / "requirements.txt").read_text() == f"numpy=={np.__version__}\n"
    assert "torch" not in (folder / "Dockerfile").read_text()
    assert not re.search(r"https?://(?!127\.0\.0\.1)", (folder / "Dockerfile").read_text())
    ignored = (folder / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line[0] == "!"} == copied


def test_what_the_image_runs_runs(tmp_path: Path) -> None:
    """Its entry point and its health check, in a copy of what it copies."""
    folder = linear(tmp_path / "artefact")
    lines = dict(instructions(folder))
    entry, command = json.loads(lines["ENTRYPOINT"]), json.loads(lines["CMD"])
    assert entry[:2] == ["python", "serve.py"]
    check = json.loads(lines["HEALTHCHECK"].partition("CMD")[2])
    options = [word for word in [*entry[2:], *command] if word not in ("--port", "8000")]
    with serving_process(folder, *options) as running:
        code = check[2].replace("8000", str(running.port))
        assert check[:2] == ["python", "-c"]
        assert exit_code(code) == 0
    assert exit_code(code) != 0


def exit_code(code: str) -> int:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode


def test_torch_comes_with_a_choice_of_index_and_what_compiles(tmp_path: Path) -> None:
    folder = linear(
        tmp_path / "artefact", backend="compile", packages={"torch": "2.13.0", "numpy": "2.4.6"}
    )
    text = (folder / "Dockerfile").read_text()
    assert "--extra-index-url $TORCH_INDEX" in text
    assert "g++" in text
    assert (folder / "requirements.txt").read_text() == "torch==2.13.0\nnumpy==2.4.6\n"


def test_files_in_folders_keep_their_place(tmp_path: Path) -> None:
    folder = tmp_path / "artefact"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "one.bin").write_bytes(b"1")
    linear(folder)
    text = (folder / "Dockerfile").read_text()
    assert "COPY --chown=10001:10001 parts/one.bin parts/one.bin\n" in text


def test_a_name_that_a_dockerfile_would_misread_is_refused(tmp_path: Path) -> None:
    folder = linear(tmp_path / "artefact")
    for name in ("a b", "x\nRUN curl", "[a]", "${A}"):
        facts(folder, files={name: "0"})
        with pytest.raises(UserError, match="name"):
            serving.write(folder)


def test_an_export_replaces_what_it_wrote_and_nothing_that_was_changed(tmp_path: Path) -> None:
    folder = linear(tmp_path / "artefact")
    serving.kserve(folder)
    artefact.check_target(folder)
    (folder / "serve.py").write_text((folder / "serve.py").read_text() + "# mine\n")
    with pytest.raises(UserError, match=r"serve\.py"):
        artefact.check_target(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "flatout.artefact/1"}', '{"schema": "flatout.artefact/9"}']
)
def test_a_folder_that_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="holds no exported model"):
        serving.write(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json"):
        serving.write(tmp_path)


def test_words_are_the_shells(tmp_path: Path) -> None:
    folder = linear(tmp_path / "artefact")
    for key, rest in instructions(folder):
        if key == "RUN":
            assert shlex.split(rest)
