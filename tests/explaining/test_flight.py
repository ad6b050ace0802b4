from __future__ import annotations

from flatout.explaining import flight
from flatout.explaining.explaining import explain_text
from flatout.nouns.flight_record import FlightCall, FlightRecord, UnlikeCall

TORCH = ("/env/site-packages/torch/distributed/distributed_c10d.py", 3245, "all_reduce")
LAST = tuple(
    FlightCall(rank, "nccl:all_reduce", number, "[[10]]", "completed", (TORCH, ("t.py", 9, "f")))
    for rank, number in ((0, 4), (1, 3))
)


def english(record: FlightRecord) -> list[str]:
    return [said.en for said in flight.observations(record)]


def test_a_missing_rank_is_named_with_its_last_call() -> None:
    call = UnlikeCall("0:default_pg", "nccl:all_reduce", 4, (1,), (TORCH, ("t.py", 12, "step")))
    said = english(FlightRecord((0, 1), 2, LAST, (call,)))
    assert said == [
        "Rank 1 never called nccl:all_reduce number 4 of group default_pg; others waited in it at "
        "t.py:12 (step).",
        "The last call of rank 1 was nccl:all_reduce number 3, completed, at t.py:9 (f).",
    ]


def test_the_first_difference_counts_and_names_both_sides() -> None:
    other = FlightCall(1, "nccl:broadcast", 4, "[[5]]", "started", (TORCH,))
    first = UnlikeCall("0:tp", "nccl:all_reduce", 4, (), (), (other,))
    later = UnlikeCall("0:tp", "nccl:all_reduce", 5, (0,), ())
    said = english(FlightRecord((0, 1), 2, LAST, (first, later)))
    assert said == [
        "At call number 4 of group tp, where others called nccl:all_reduce at ?, rank 1 called "
        f"nccl:broadcast with [[5]] at {TORCH[0]}:3245 (all_reduce)."
    ]


def test_ranks_without_a_dump() -> None:
    said = english(FlightRecord((0, 1), 12, LAST))
    assert said[-1].startswith("There is no dump of rank 2, 3, 4, 5, 6, 7, 8, 9, ...: it had ended")


def test_ranks_that_agree_are_recognised_too() -> None:
    record = FlightRecord((0, 1), 2, LAST)
    assert english(record)[-1].startswith("All ranks called the same collectives")
    assert [match.id for match in explain_text(flight.text(record)).matches] == ["flight-all-alike"]
