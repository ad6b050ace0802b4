"""The root cause comes first; what follows from it is told as that; harmless ones come last."""

from __future__ import annotations

import pytest

from explaining.written import signature
from flatout.explaining.ranking import RankedCause, ranked
from flatout.explaining.scanning import Book, Scanner
from flatout.nouns.signature import Role, Signature

CAUSE = signature("cause", "it ran out", specificity=8)
GENERAL = signature("general", "error", specificity=4)
ECHO = signature("echo", r"rank (?P<root_rank>\d) died", role=Role.ECHO)
WARNING = signature("warning", "slowly", role=Role.WARNING, specificity=7)
HARMLESS = signature("harmless", "do not fear", role=Role.HARMLESS, specificity=9)
EVERY = (CAUSE, GENERAL, ECHO, WARNING, HARMLESS)
FAR = "step\n" * 1000


def order(text: str, *signatures: Signature, **files: str) -> list[RankedCause]:
    scanner = Scanner(Book(signatures or EVERY))
    for name, content in files.items() or {"": text}.items():
        scanner.read([content.encode()], name.replace("__", "/") or None)
    return ranked(scanner.hits.values())


def told(found: list[RankedCause]) -> list[tuple[str, str | None]]:
    return [(item.id, item.consequence_of.id if item.consequence_of else None) for item in found]


def test_the_more_particular_wins_where_both_fit_one_place() -> None:
    assert told(order("error: it ran out\n")) == [("cause", None), ("general", "cause")]


def test_of_two_failures_the_first_in_time_is_the_root() -> None:
    other = signature("other", "second trouble", specificity=9)
    found = order(f"it ran out\n{FAR}second trouble\n", CAUSE, other)
    assert told(found) == [("cause", None), ("other", None)]


def test_a_vague_first_sign_gives_way_to_a_cause() -> None:
    vague = signature("vague", "something failed", specificity=2)
    found = order(f"something failed\n{FAR}it ran out\n", CAUSE, vague)
    assert told(found)[0] == ("cause", None)


def test_what_a_cause_leads_to_is_its_consequence_at_any_distance() -> None:
    cause = signature("cause", "it ran out", specificity=5, leads_to=("later",))
    later = signature("later", "it hangs", specificity=9)
    found = order(f"it hangs\n{FAR}it ran out\n", cause, later)
    assert told(found) == [("cause", None), ("later", "cause")]


def test_reports_of_a_death_follow_from_its_cause_and_stand_alone_without() -> None:
    assert told(order(f"it ran out\n{FAR}rank 0 died\n")) == [("cause", None), ("echo", "cause")]
    assert told(order("rank 0 died\nslowly\n")) == [("echo", None), ("warning", None)]


@pytest.mark.parametrize(
    ("leads_to", "text", "expected"),
    [
        (("b", "c", "a"), "two\none\nthree\n", [("b", None), ("a", "b"), ("c", "b")]),
        (("b", "c"), f"three\n{FAR}two\n{FAR}one\n", [("a", None), ("c", "a"), ("b", "a")]),
    ],
    ids=["a circle ends with the earliest", "a chain ends with its root"],
)
def test_consequences_of_consequences(
    leads_to: tuple[str, ...], text: str, expected: list[tuple[str, str | None]]
) -> None:
    names, words = "abc", ("one", "two", "three")
    signatures = [
        signature(name, word, specificity=4 + at, leads_to=leads_to[at : at + 1])
        for at, (name, word) in enumerate(zip(names, words, strict=True))
    ]
    assert told(order(text, *signatures)) == expected


def test_harmless_ones_come_last_and_explain_nothing() -> None:
    found = order("do not fear\nerror\n")
    assert told(found) == [("general", None), ("harmless", None)]


def test_the_rank_that_failed_first_by_the_clock_wins() -> None:
    text = (
        "[rank0]: 2026-03-01 10:00:05 error\n"
        f"{FAR}"
        "[rank3]: 2026-03-01 10:00:01 error\n"
        "[rank1]: 2026-03-01 10:00:04 error\n"
    )
    (found,) = order(text, GENERAL)
    assert found.ranks == (3, 1, 0)
    assert found.first.evidence.rank == 3


def test_the_rank_that_the_launcher_names_wins() -> None:
    other = signature("other", "peer is gone", specificity=8)
    text = f"[rank0]: peer is gone\n{FAR}[rank2]: it ran out\n{FAR}rank 2 died\n"
    assert told(order(text, CAUSE, ECHO, other))[0] == ("cause", None)


def test_files_of_ranks_are_told_apart() -> None:
    found = order(
        "",
        logs__rank0="2026-03-01 10:00:05 error\n",
        logs__rank1="2026-03-01 10:00:01 it ran out\n",
    )
    assert found[0].id == "cause"
    assert found[0].first.evidence.rank == 1
