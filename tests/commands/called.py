"""`flatout` called in the tests' own process: for what a process of its own would not change."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from flatout.__main__ import outcome

SHOWN = {"COLUMNS": "80", "LANG": "C.UTF-8", "LC_ALL": ""}
"""What decides how an answer is shown, unless a test says otherwise."""


@dataclass(frozen=True)
class Ended:
    """How a call ended; named as in subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def process(
    *words: str, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`flatout words...` as a process of its own, with these environment variables."""
    return subprocess.run(
        [sys.executable, "-m", "flatout", *words],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


class Flatout:
    """`flat(*words)` is what the command line `flatout words...` does, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(
        self,
        *words: str,
        folder: Path | None = None,
        stdin: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run it in `folder` with these environment variables; stdin: what is piped into it."""
        with self._monkeypatch.context() as patch:
            if folder is not None:
                patch.chdir(folder)
            for name, value in {**SHOWN, **(variables or {})}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            self._capsys.readouterr()  # of an earlier call
            try:
                code = outcome(words)
            except SystemExit as end:  # of a completion
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        printed = self._capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    def printed(self, *words: str) -> str:
        """What it prints on stdout; it has to end well."""
        done = self(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout
