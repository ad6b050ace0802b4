"""Limits as the operating system gives them to this process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flatout.nouns.machine import Limits
from flatout.probing import limits

if sys.platform == "win32":

    def test_windows_has_none() -> None:
        assert limits.limits() == Limits()

else:
    import resource

    def test_here() -> None:
        found = limits.limits()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert found.open_files == (-1 if soft == resource.RLIM_INFINITY else soft)
        assert found.open_files_hard == (-1 if hard == resource.RLIM_INFINITY else hard)

    def test_lowered_limits_show() -> None:
        code = (
            "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (99, 100));"
            "r.setrlimit(r.RLIMIT_MEMLOCK, (4096, 4096));"
            "from flatout.probing.limits import limits; print(limits())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert "open_files=99, open_files_hard=100, locked_memory_bytes=4096" in done.stdout

    def test_unlimited_and_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
        answers = {resource.RLIMIT_NOFILE: (1024, resource.RLIM_INFINITY)}

        def getrlimit(which: int) -> tuple[int, int]:
            if which not in answers:
                raise ValueError("not known here")
            return answers[which]

        monkeypatch.setattr(resource, "getrlimit", getrlimit)
        assert limits.limits() == Limits(open_files=1024, open_files_hard=-1)
