"""Logs as people have them are read as UTF-8, block by block."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.probing import logs

TEXT = "step 1\nRuntimeError: è’\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "train.log"
    path.write_bytes((TEXT * 100_000).encode(encoding))
    read = b"".join(logs.blocks(path)).decode().lstrip("\ufeff")
    assert read == TEXT * 100_000


def test_compressed_and_cut_off(tmp_path: Path) -> None:
    packed = gzip.compress((TEXT * 10_000).encode())
    path = tmp_path / "train.log.gz"
    path.write_bytes(packed)
    assert b"".join(logs.blocks(path)).decode() == TEXT * 10_000
    path.write_bytes(packed[: len(packed) // 2])
    assert b"".join(logs.blocks(path)).decode().startswith(TEXT)


def test_blocks_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"x" * (3 * logs.BLOCK + 5))
    sizes = [len(block) for block in logs.blocks(path)]
    assert sum(sizes) == 3 * logs.BLOCK + 5
    assert max(sizes) <= logs.BLOCK


def test_a_pipe_is_read_as_it_comes() -> None:
    command = [sys.executable, "-c", "print('a', flush=True); input(); print('b')"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        stream = logs.of_stream(process.stdout)  # type: ignore[arg-type]
        assert next(stream).split() == [b"a"]
        process.stdin.write(b"\n")
        process.stdin.close()
        assert b"".join(stream).split() == [b"b"]


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("rank0.log", "sub/rank1.err", "sub/stdout", "job.o123", "x.log.gz"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    (tmp_path / "model.pt").write_bytes(b"PK\0\0")
    (tmp_path / "core.log").write_bytes(b"\x7fELF\0\0")
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "power.log").write_bytes("text".encode("utf-16"))
    found = [path.relative_to(tmp_path).as_posix() for path in logs.files(tmp_path)]
    expected = ["job.o123", "power.log", "rank0.log", "x.log.gz", "sub/rank1.err", "sub/stdout"]
    assert found == expected


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_a_folder_with_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    assert logs.files(tmp_path) == []
