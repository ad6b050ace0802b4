"""Which rank hangs, from stacks and from what processes have used: both are given here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flatout.running.ranks import hang
from flatout.running.ranks.hang import HangSearch, RankHang
from flatout.running.ranks.stacks import RankStacks

WAITS = 'Current thread 0x1\n  File "/x/flatout_agent/ranks/exchange.py", line 3 in wait\n'
STANDS = 'Current thread 0x1\n  File "train.py", line 7 in main\n'
ELSEWHERE = STANDS.replace("7", "9")
SILENT = ""
NOTHING = (0.0, 0)


def found(
    monkeypatch: pytest.MonkeyPatch,
    looks: tuple[tuple[str, str], tuple[str, str]],
    used: tuple[float, int] = NOTHING,
    still_s: float = 40.0,
    steps: tuple[int | None, int] = (5, 5),
) -> RankHang | None:
    """looks: the stacks of ranks 0 and 1, twice; used: by rank 1 between the two."""
    watched: list[Any] = [
        SimpleNamespace(
            ring=SimpleNamespace(header=SimpleNamespace(rank=rank)), step=step, still_s=still_s
        )
        for rank, step in enumerate(steps)
    ]
    pulses: Any = SimpleNamespace(by_rank=dict(enumerate(watched)), step_s=0.1)
    families: Any = {0: lambda: "rank 0", 1: lambda: "rank 1"}
    texts, work = iter(looks), {"rank 0": [NOTHING, NOTHING], "rank 1": [NOTHING, used]}
    monkeypatch.setattr(hang, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(hang, "_work", lambda family: work[family].pop(0))
    monkeypatch.setattr(
        hang,
        "_answers",
        lambda asked: [
            RankStacks(pulse.ring, pulse.step, text)
            for pulse, text in zip(asked, next(texts), strict=True)
        ],
    )
    return HangSearch(still_s=30.0, look_s=1.0).look(pulses, families, now=100.0)


@pytest.mark.parametrize(("text", "place"), [(STANDS, "train.py:7"), (SILENT, None)])
def test_who_stands_still_while_another_waits_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, place: str | None
) -> None:
    """Also one that is stopped and writes no stacks."""
    named = found(monkeypatch, ((WAITS, text), (WAITS, text)))
    assert named is not None
    assert (named.rank, named.still_s, named.place) == (1, 41.0, place)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"used": (0.9, 0)}, id="it computes"),
        pytest.param({"used": (0.0, 99)}, id="it writes"),
        pytest.param({"looks": ((WAITS, STANDS), (WAITS, ELSEWHERE))}, id="it is elsewhere"),
        pytest.param({"looks": ((WAITS, STANDS), (WAITS, WAITS))}, id="it waits by now"),
        pytest.param({"looks": ((WAITS, STANDS), (STANDS, STANDS))}, id="the other went on"),
        pytest.param({"looks": ((STANDS, STANDS), (STANDS, STANDS))}, id="all pause together"),
        pytest.param({"still_s": 20.0}, id="not for long"),
        pytest.param({"steps": (None, 5)}, id="one has not begun"),
    ],
)
def test_a_slow_rank_does_not_hang(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    assert found(monkeypatch, **{"looks": ((WAITS, STANDS), (WAITS, STANDS)), **given}) is None


def test_a_rank_that_is_behind_is_missed_by_one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other waits where nobody sees it, as for a GPU."""
    named = found(monkeypatch, ((ELSEWHERE, STANDS), (ELSEWHERE, STANDS)), steps=(6, 5))
    assert named is not None
    assert named.rank == 1
