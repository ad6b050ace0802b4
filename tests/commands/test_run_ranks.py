"""`flatout run --ranks`: what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import called


@pytest.mark.parametrize(
    ("words", "told", "cure"),
    [
        (["--ranks", "2", "--gpus", "all", "train.py"], "number of ranks", "one of them"),
        (["--ranks", "2", "--live", "train.py"], "--live tunes one process", "flatout tune"),
        (["--ranks", "100000", "train.py"], "needs 100000 CPU cores", "next"),
        (["--gpus", "all", "train.py"], "no NVIDIA GPU", "--ranks N"),
        (["--ranks", "1", "train.py"], "--ranks", "next"),
        (["--ranks", "2", "--", "torchrun", "train.py"], "starts the ranks itself", "train.py"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    flat: called.Flatout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
    cure: str,
) -> None:
    monkeypatch.setattr("flatout.probing.nvml.gpus", lambda library=None: ())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "train.py").write_text("open('started', 'w')")
    torchrun = tmp_path / "torchrun"
    torchrun.write_text("#!/bin/sh\n")
    torchrun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = flat("run", *words, folder=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert cure in done.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / ".flatout").exists()
