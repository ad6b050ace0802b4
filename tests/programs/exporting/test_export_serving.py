"""The process that serves a build while it is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from flatout_programs import export
from flatout_programs.exporting import serving

ALONE = """
import os, subprocess, sys, time
from flatout_programs.exporting import serving

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core ...
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # ... for two
try:
    began, before, end = time.monotonic(), serving.run_delay_s(), time.monotonic() + 1
    while time.monotonic() < end:
        pass
    print(serving.run_delay_s() - before)
finally:
    other.kill()
    other.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(serving.run_delay_s() is None, reason="this system does not tell")
def test_how_long_others_had_the_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert float(done.stdout) > 0.1  # about half of the second


def test_versions_of_the_packages_that_are_there() -> None:
    told: list[dict[str, Any]] = []
    packages = [("pytest", "pytest"), ("json", "json"), ("no", "no_module")]
    export.main([json.dumps({"do": "packages", "packages": packages})], told.append)
    versions = {"pytest": pytest.__version__, "json": "unknown", "no": None}
    assert told == [{"versions": versions}]
