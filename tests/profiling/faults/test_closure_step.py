"""A real run: what an optimizer's closure computes is not taken for its update."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked

pytest.importorskip("torch")
HERE = Path(__file__).parent


@pytest.mark.slow
def test_a_closure_is_forward_and_backward(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flatout", "profile", "--json", "--stop", "--no-bench"]
    ended = subprocess.run(
        [*command, "--python", forked.python(), str(HERE / "closure_step.py")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stderr[-2000:]
    document = json.loads(ended.stdout)
    shares = {part["part"]: part["share"] for part in document["anatomy"]}
    # Eighteen products of 1024 x 384 x 384 against one pass over a million weights.
    assert shares["matmul"] > 2 * shares["optimizer"] > 0
    for finding in document["findings"]:
        if finding["code"] in ("KERN010", "HOST006"):
            # No cure of the update saves more than the update.
            assert finding["gain"]["high"] <= 1.01 / (1 - shares["optimizer"])
