"""What each rank was doing when a collective timed out decides between the causes."""

from __future__ import annotations

import pytest

from flatout.explaining.explaining import explain_text


def waits(rank: int, operation: str = "ALLREDUCE", number: int = 40213, elements: int = 8) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={elements}, "
        f"NumelOut={elements}, Timeout(ms)=600000) ran for 600074 milliseconds before timing out.\n"
    )


def came(rank: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        f"Exception (either an error or timeout) detected by watchdog at work: {enqueued}, last "
        f"enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.\n"
    )


def numbered(rank: int, number: int) -> str:
    """The row of a rank whose operation stands in another file."""
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {rank}] Timeout at NCCL work: "
        f"{number}, last enqueued NCCL work: {number}, last completed NCCL work: {number - 1}.\n"
    )


def said(text: str) -> str:
    return " ".join(wording.en for wording in explain_text(text).observations)


def test_each_rank_is_told_with_operation_and_number() -> None:
    text = said(waits(0) + waits(1) + waits(2, "BROADCAST", 40213))
    assert "ranks 0, 1 waited in ALLREDUCE (40213), rank 2 waited in BROADCAST (40213)" in text


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        (waits(0) + waits(1, "ALLGATHER"), "different collectives at the same place"),
        (waits(0) + waits(1, elements=9), "has 8 / 9 elements"),
        (waits(0) + waits(1, number=40210), "Rank 1 is behind: it had called 40210"),
        ("world_size=3\n" + waits(0) + waits(2), "Rank 1 reported no time-out, and 2 others did"),
        ("world_size=2\n" + waits(0) + waits(1), "All 2 ranks waited in the same collective"),
        (waits(3), "Only rank 3 is in this text"),
        (waits(0, number=1) + came(0, 1, 0) + waits(1, number=1) + came(1, 1, 0), "never complete"),
    ],
    ids=["mismatch", "sizes", "one late", "one dead", "network", "one log", "from the start"],
)
def test_what_the_ranks_decide(text: str, decided: str) -> None:
    assert decided in said(text).replace("was ever complete", "never complete")


def test_what_is_not_compared() -> None:
    assert "different" not in said(waits(0, "SEND") + waits(1, "RECV"))
    assert said("RuntimeError: Torch not compiled with CUDA enabled\n") == ""


@pytest.mark.parametrize("head", ["", "world_size=4\n"])
def test_ranks_of_which_only_the_number_is_told_are_there(head: str) -> None:
    text = said(head + waits(2, number=19) + "".join(numbered(rank, 19) for rank in (2, 3, 1)))
    assert "ranks 1, 2, 3 waited in ALLREDUCE (19)" in text
    assert "Rank 0 reported no time-out, and 3 others did" in text
    assert "Only rank" not in text
