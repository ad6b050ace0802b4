"""Two real processes over gloo, against the gradient of one process with all their data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

import forked

PROGRAM = Path(__file__).parent / "ranks_program.py"

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


@pytest.mark.slow
@needs_gloo
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks_with_unequal_batches_have_the_gradient_of_one_process(
    kind: str, tmp_path: Path
) -> None:
    done = forked.bare([str(PROGRAM), str(tmp_path / "store"), kind], tmp_path, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.endswith("agrees")) == [
        "rank 0 agrees",
        "rank 1 agrees",
    ]
