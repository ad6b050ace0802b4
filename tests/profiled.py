"""A script of tests/profiling/faults under `flatout profile`: its answer, and lines by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import forked

HERE = Path(__file__).parent / "profiling/faults"


def run(script: str, folder: Path, *args: str) -> dict[str, Any]:
    """The JSON document; the script runs in `folder`, on one thread."""
    shutil.copy(HERE / script, folder)
    program = Path(sysconfig.get_path("scripts")) / "flatout"
    options = ["--json", "--stop", "--no-bench", "--python", forked.python()]
    done = subprocess.run(
        [str(program), "profile", *options, script, *args],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line(script: str, fault: str) -> str:
    """Where the script marks this fault: faults.py:38."""
    lines = (HERE / script).read_text(encoding="utf-8").splitlines()
    (number,) = (
        index
        for index, text in enumerate(lines, 1)
        if fault in text.partition("# fault: ")[2].split(", ")
    )
    return f"{script}:{number}"
