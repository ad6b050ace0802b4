"""Signatures are found in streams, wherever blocks end, and memory stays bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explaining.written import signature
from flatout.explaining import scanning
from flatout.explaining.scanning import Book, Hit, Scanner
from flatout.nouns.signature import Signature


def scan(text: str | bytes, *signatures: Signature, size: int = 1 << 20) -> list[Hit]:
    whole = text.encode() if isinstance(text, str) else text
    scanner = Scanner(Book(signatures))
    scanner.read(whole[i : i + size] for i in range(0, len(whole), size))
    assert scanner.bytes_read == len(whole)
    return list(scanner.hits.values())


def ids(hits: list[Hit]) -> list[str]:
    return [hit.signature.id for hit in hits]


def test_evidence_is_the_line_without_its_prefixes() -> None:
    text = "ok\n[rank2]: 2026-03-01 10:00:00 Error: it broke at 5\nok\n"
    (hit,) = scan(text, signature("broke", r"it broke at (?P<n>\d+)"))
    assert hit.evidence.text == "Error: it broke at 5"
    assert (hit.evidence.line, hit.evidence.rank) == (2, 2)
    assert hit.evidence.time_s is not None
    assert hit.captured == {"n": "5"}


def test_all_and_none_are_asked_of_the_neighbourhood() -> None:
    far = "x\n" * 50
    wants = signature("wants", "boom", all=("because",))
    bars = signature("bars", "boom", none=("harmless",))
    near = signature("near", "boom", all=("because",), near=0)
    assert ids(scan("because\nboom\n", wants, near)) == ["wants"]
    assert ids(scan(f"because\n{far}boom\n", wants)) == []
    assert ids(scan("boom because\n", near)) == ["near"]
    assert ids(scan("boom\nharmless\n", bars)) == []
    assert ids(scan(f"boom\n{far}harmless\n", bars)) == ["bars"]


def test_lines_of_other_ranks_are_no_neighbours() -> None:
    wants = signature("wants", "boom", all=("because",))
    assert ids(scan("[rank1]: because\n[rank0]: boom\n", wants)) == []
    assert ids(scan("[rank0]: because\n[rank1]: other\n[rank0]: boom\n", wants)) == ["wants"]


def test_a_condition_on_what_was_captured() -> None:
    item = signature(
        "fragmented",
        r"allocate (?P<wanted>\S+ GiB); (?P<allocated>\S+ GiB) of (?P<reserved>\S+ GiB)",
        needs=("fragmented",),
    )
    assert ids(scan("allocate 2.00 GiB; 4.0 GiB of 9.0 GiB", item)) == ["fragmented"]
    assert ids(scan("allocate 2.00 GiB; 8.0 GiB of 9.0 GiB", item)) == []
    assert ids(scan("allocate 2.00 GiB; 4.0.0 GiB of 9.0 GiB", item)) == []


def test_each_rank_and_each_signature_once() -> None:
    text = "".join(f"[rank{i % 4}]: boom {i}\n" for i in range(4000))
    hits = scan(text, signature("boom", "boom"), signature("other", r"boom \d"))
    assert len(hits) == 8
    assert sum(hit.count for hit in hits if hit.signature.id == "boom") == 4000


LINES = st.sampled_from(
    ["step 1: loss 0.5", "Error: boom 7", "[rank3]: Error: boom 8", "because", "", "é" * 40]
)


@given(st.lists(LINES, max_size=40), st.integers(1, 300))
@settings(deadline=None)
def test_where_blocks_end_does_not_matter(rows: list[str], size: int) -> None:
    text = "\n".join(rows)
    asked = (
        signature("boom", r"boom (?P<n>\d)"),
        signature("because", "Error: boom", all=("because",)),
    )
    whole, parts = scan(text, *asked), scan(text, *asked, size=size)
    assert whole == parts


def test_line_numbers_and_memory_over_a_long_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    block = b"step 1: loss 0.5\n" * 50_000

    def stream() -> Iterator[bytes]:
        for _ in range(40):
            yield block
        yield b"boom\n"

    scanner = Scanner(Book([signature("boom", "boom")]))
    tracemalloc.start()
    scanner.read(stream())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (hit,) = scanner.hits.values()
    assert hit.evidence.line == 40 * 50_000 + 1
    assert hit.order == 40 * len(block)
    assert peak < 6 * len(block)


def test_a_line_without_end_is_looked_at_around_the_message() -> None:
    text = "x" * 300_000 + " boom " + "y" * 300_000
    (hit,) = scan(text, signature("boom", "boom"), size=70_000)
    assert "boom" in hit.evidence.text
    assert len(hit.evidence.text) <= scanning.EVIDENCE
    assert hit.evidence.line == 1
