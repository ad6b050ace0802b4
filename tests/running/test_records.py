import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.running.records import Tail
from flatout_agent import wire

EXAMPLES = [
    wire.Started(1, ("python", "träin.py", "a\nb"), "3.11", "/usr/bin/python", 1),
    wire.TorchSeen("2.13.0"),
    wire.BoostNote("tf32", "engaged", "5\u2028 % error"),
    wire.StepTaken(3, "window", 0.25, samples=8),
    wire.LossesSeen((1.5, None, 0.25)),
    wire.Fault("hook", "Traceback\r\n..."),
    wire.Ended("program", 10, 80, 1.0, 0.0),
]
NOT_RECORDS = [b"", b"{", b"[1]", b'{"kind":"from-the-future"}', b'{"kind":"torch"}', b"\xff\xfe"]
LINES = st.lists(
    st.one_of(
        st.sampled_from(EXAMPLES).map(lambda item: wire.dump(item).encode()),
        st.sampled_from(NOT_RECORDS),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(lines=LINES, cuts=st.lists(st.integers(0, 2000), max_size=10))
def test_any_chunking_gives_the_same_records(
    lines: list[bytes], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    folder = tmp_path_factory.mktemp("records")
    tail = Tail(folder)
    seen = []
    edges = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    for begin, end in zip([0, *edges], edges, strict=False):
        with (folder / "77.jsonl").open("ab") as file:
            file.write(data[begin:end])
        seen += list(tail.new())

    good = [wire.record(line.decode()) for line in lines if line not in NOT_RECORDS]
    assert seen == [(77, item) for item in good]
    assert tail.skipped == sum(line in NOT_RECORDS and line != b"" for line in lines)
    assert list(tail.new()) == []


def test_every_process_has_its_own_file(tmp_path: Path) -> None:
    for pid in (12, 5):
        (tmp_path / f"{pid}.jsonl").write_text(wire.dump(wire.TorchSeen(str(pid))) + "\n")
    (tmp_path / "notes.jsonl").write_text(json.dumps({"kind": "torch", "version": "x"}) + "\n")
    assert {pid: record.version for pid, record in Tail(tmp_path).new()} == {12: "12", 5: "5"}


def test_a_line_being_written_waits(tmp_path: Path) -> None:
    line = wire.dump(wire.TorchSeen("2.13.0"))
    path = tmp_path / "1.jsonl"
    path.write_text(line[:9])
    tail = Tail(tmp_path)
    assert list(tail.new()) == []
    path.write_text(line + "\n")
    assert list(tail.new()) == [(1, wire.TorchSeen("2.13.0"))]
    assert tail.skipped == 0


def test_a_folder_that_is_not_there_has_no_records(tmp_path: Path) -> None:
    assert list(Tail(tmp_path / "none").new()) == []
