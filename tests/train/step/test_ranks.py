"""Two real processes over gloo, against the gradient of one process with all their data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

PROGRAM = Path(__file__).parent / "ranks_program.py"

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.thorough)])
def test_ranks_with_unequal_batches_have_the_gradient_of_one_process(
    kind: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "store"), kind],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert sorted(line for line in done.stdout.splitlines() if line.endswith("agrees")) == [
        "rank 0 agrees",
        "rank 1 agrees",
    ]
