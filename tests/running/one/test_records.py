"""Lines become records, and records state: which process leads, when all are complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.running.one.records import Process, Processes, Tail
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


def test_a_folder_that_is_not_there_has_no_records(tmp_path: Path) -> None:
    assert list(Tail(tmp_path / "none").new()) == []


def started(pid: int, rank: int = 0) -> tuple[int, wire.Record]:
    return pid, wire.Started(pid, ("train.py",), "3.11", "python", rank=rank)


def step(pid: int, index: int = 0) -> tuple[int, wire.Record]:
    return pid, wire.StepTaken(index, "window", 0.1)


def ended(pid: int, steps: int = 3) -> tuple[int, wire.Record]:
    return pid, wire.Ended("program", steps, 0, 1.0, 0.0)


def test_the_lowest_rank_that_trains_leads() -> None:
    launcher = [started(1)]
    processes = Processes([*launcher, started(2, 1), step(2), started(3, 0), step(3)])
    assert [process.pid for process in processes.training] == [3, 2]
    assert processes.leading is processes.of(3)
    assert Processes(launcher).leading is None
    assert processes.of(9) is None


def test_of_one_rank_the_longest_leads() -> None:
    """A job script that tries a step first, and then trains."""
    processes = Processes([step(1), step(2, 0), step(2, 1)])
    assert processes.leading is processes.of(2)


def test_it_is_complete_when_all_that_train_have_ended() -> None:
    processes = Processes([started(1), step(2), step(3), ended(2)])
    assert not processes.complete
    processes.add(*ended(3))
    assert processes.complete, "the launcher takes no steps: it is not waited for"
    assert not Processes([ended(1)]).complete


def test_steps_are_counted_even_where_only_some_are_recorded() -> None:
    process = Process()
    assert process.step_count == 0
    process.add(wire.StepTaken(11, "warmup", 0.1))
    assert process.step_count == 12
    process.add(wire.LiveSummary((), False, 30))
    assert process.step_count == 30
    process.add(ended(0, 40)[1])
    assert process.step_count == 40


def test_the_last_word_on_a_boost_stands() -> None:
    process = Process()
    for state in ("applied", "idle"):
        process.add(wire.BoostNote("tf32", state))
    process.add(wire.BoostNote("compile", "engaged"))
    assert process.engaged == ("compile",)


def test_what_several_processes_tell_is_told_once() -> None:
    fault, path = wire.Fault("loader", "TypeError"), wire.Redirected("/data/x")
    processes = Processes([(1, fault), (1, path), (2, fault), (2, path)])
    assert processes.faults == ("loader: TypeError",)
    assert processes.redirected == ("/data/x",)


def test_every_kind_of_record_is_accounted_for() -> None:
    """A new kind of record must change the state of its process."""
    facts = wire.JobFacts("2.13.0", "3.11", "linux", "cpu")
    records: list[wire.Record] = [
        started(7, 1)[1],
        wire.TorchSeen("2.13.0"),
        wire.JobSeen(facts),
        wire.BoostNote("tf32", "applied"),
        step(7)[1],
        wire.AtGate(0, "gate-0"),
        wire.LossesSeen((1.0,)),
        wire.Decided("tf32", "kept"),
        wire.BlockRun(1, 4, 9.0),
        wire.LiveSummary((), True, 9),
        wire.Redirected("x"),
        wire.Fault("here", "why"),
        wire.LoopSeen(0.1, 0.1, 6),
        wire.Crashed("Traceback"),
        wire.CrashScene(),
        wire.HistorySeen((1,), (9,), "cpu"),
        wire.HostSeen(8, 0.1),
        wire.RanksSeen(2, "gloo"),
        wire.NativeSeen("lightning"),
        wire.RanksRefused("batches differ"),
        wire.ExportSeen("capture", "Net", "evaluation", 4, 1.0),
        wire.ExportRefused("no model"),
        ended(7)[1],
    ]
    assert {type(record) for record in records} | {wire.MemorySeen} == set(wire.KINDS.values())
    for record in records:
        process = Process()
        process.add(record)
        assert process != Process(), record.kind
