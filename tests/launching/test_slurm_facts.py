"""What Slurm prints, read; on a cluster it is tested in engines/test_slurm.py."""

from __future__ import annotations

import pytest

from flatout.launching import engine_calls, slurm_facts
from flatout.launching.engine_calls import ToolAnswer
from flatout.nouns.errors import UserError

SINFO = """\
debug|up|30:00|10:00|2|8|(null)|idle
gpu*|up|2-00:00:00|1:00:00|4|64|gpu:a100:4(S:0-1)|mix
gpu*|up|2-00:00:00|1:00:00|2|128|gpu:h100:8(S:0-1),craynetwork:4|alloc
gpu*|up|2-00:00:00|1:00:00|1|128|gpu:h100:8|down*
long|up|infinite|n/a|3|32|gpu:2|idle
"""


@pytest.fixture(autouse=True)
def sinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"sinfo": ToolAnswer(0, SINFO, "")}
    monkeypatch.setattr(engine_calls, "ask", lambda command, *_: answers[command[0]])


def test_a_partition_of_nodes_that_differ() -> None:
    found = slurm_facts.partition("")
    assert (found.name, found.limit_s, found.default_s) == ("gpu", 172800.0, 3600.0)
    assert found.nodes == 7
    assert [found.most_gpus(nodes) for nodes in (1, 3, 4, 7, 8)] == [8, 8, 4, 4, 0]
    assert [found.cores(nodes) for nodes in (1, 4)] == [128, 64]
    assert slurm_facts.gpus(found, "all", 5) == 4
    with pytest.raises(UserError, match="has no 4 nodes with 8 GPUs; they have 4"):
        slurm_facts.gpus(found, 8, 4)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination specified",
            "this account may not be charged there (sbatch: Invalid account or account/partition "
            "combination specified)",
        ),
        (
            "sbatch: error: QOSMaxGRESPerUser\nsbatch: error: Batch job submission failed: Job "
            "violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "it is beyond a limit of your account",
        ),
        ("sbatch: error: something new", "sbatch: something new"),
    ],
)
def test_what_a_refusal_means(said: str, meaning: str) -> None:
    assert meaning in slurm_facts.refusal(ToolAnswer(1, "", said)).message
