"""`flatout.parallelize` on real processes over gloo, against one process with the same batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

import forked

PROGRAM = Path(__file__).parent / "parallel_program.py"

GLOO = dist.is_available() and dist.is_gloo_available()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GLOO, reason="torch was built without gloo"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("ranks", "nodes", "cases"),
    [
        (2, 1, ["mlp-dp", "text-dp+recompute"]),
        (2, 1, ["mlp-fsdp", "text-fsdp", "text-fsdp+recompute"]),
        (2, 1, ["tp", "llama-tp"]),
        (2, 1, ["pp"]),
        (2, 1, ["auto", "refused"]),
        (4, 2, ["text-hsdp", "tp"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value),
)
def test_losses_and_states_are_those_of_one_process(
    ranks: int, nodes: int, cases: list[str], tmp_path: Path
) -> None:
    words = [str(PROGRAM), str(tmp_path / "store"), str(ranks), str(nodes), *cases]
    done = forked.bare(words, tmp_path, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    agreed = [line for line in done.stdout.splitlines() if line.endswith("agrees")]
    assert len(agreed) == ranks
