"""What launchers, loggers and containers put in front of a line is read and removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.explaining import lines
from flatout.nouns import escapes

MESSAGE = "RuntimeError: CUDA error: unknown"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: ", 3),
        ("[rank12]:", 12),
        ("[default7]:", 7),
        ("5: ", 5),
        ("[1,4]<stderr>:", 4),
        ("(RayWorker pid=91757) ", None),
        ("(WorkerDict pid=12, ip=10.0.0.2) ", None),
        ("2026-03-01 12:00:01,123 ", None),
        ("2026-03-01T12:00:01.123456Z ", None),
        ("[2026-03-01 12:00:01,123] ", None),
        ("12:00:01 ", None),
        ("[Mon Feb 10 09:21:47 2025] ", None),
        ("Feb 10 09:21:47 node1 kernel: ", None),
        ("[12345.678901] ", None),
        ("trainer-1  | ", None),
        ("worker-0: ", None),
        ("10.0.0.1: ", None),
        ("> ", None),
        ("2026-03-01T12:00:01Z trainer-1  | [rank2]: ", 2),
        ("", None),
    ],
)
def test_prefixes(prefix: str, rank: int | None) -> None:
    assert lines.stripped(prefix + MESSAGE) == MESSAGE
    assert lines.rank(prefix + MESSAGE) == rank


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[E ProcessGroupNCCL.cpp:563] [Rank 2] Watchdog caught", 2),
        ("[rank3]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 3] Timeout", 3),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 6] Process group watchdog thread", 6),
        ("the rank of this matrix is 5", None),
    ],
)
def test_ranks_within(line: str, rank: int | None) -> None:
    assert lines.rank(line) == rank


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("logs/rank_3.log", 3),
        ("run/rank12/stderr.log", 12),
        ("attempt_0/4/stderr.log", 4),
        ("/tmp/x/none_abc/attempt_0/0/stdout.log", 0),
        ("train.log", None),
        ("C:\\logs\\rank5.txt", 5),
    ],
)
def test_ranks_of_files(name: str, rank: int | None) -> None:
    assert lines.rank_of_file(name) == rank


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-03-01 12:00:01,123 a", "2026-03-01 12:00:01,124 a"),
        ("2026-02-28T23:59:59Z a", "2026-03-01T00:00:00Z a"),
        ("E0730 10:00:00.1 1 x.py:1] a", "E0730 10:00:00.2 1 x.py:1] a"),
        ("Feb 10 09:21:47 node kernel: a", "Feb 11 00:00:00 node kernel: a"),
        ("[Mon Feb 10 09:21:47 2025] a", "[Tue Feb 11 09:21:47 2025] a"),
        ("10:00:00 a", "10:00:01 a"),
    ],
)
def test_times_are_in_order(earlier: str, later: str) -> None:
    first, second = lines.time_s(earlier), lines.time_s(later)
    assert first is not None
    assert second is not None
    assert first < second


@pytest.mark.parametrize("line", ["no time", "2026-02-31 12:00:00 x", "99:99", "loss 12:30"])
def test_no_time(line: str) -> None:
    assert lines.time_s(line) is None


@given(st.text(max_size=300))
def test_nothing_of_it_fails_on_any_line(line: str) -> None:
    assert line.endswith(lines.stripped(line))
    lines.rank(line)
    lines.rank_of_file(line)
    lines.time_s(line)


@given(st.binary(max_size=300))
def test_any_bytes_can_be_cleaned(block: bytes) -> None:
    assert escapes.BYTES.search(lines.clean(b"\x1b[31m" + block.replace(b"\x1b", b""))) is None


def test_clean() -> None:
    assert lines.clean(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x") == b"red x"
    assert lines.clean("can’t “x”\u00a0y".encode()) == b'can\'t "x" y'
    assert lines.clean(b"can&#39;t &quot;x&quot; &gt;= 1") == b'can\'t "x" >= 1'
    assert lines.clean(b"a && b") == b"a && b"
