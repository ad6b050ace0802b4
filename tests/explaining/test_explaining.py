"""From a text to the answer, with the signatures that ship."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.explaining.explaining import explain, explain_text
from flatout.knowledge import signatures
from flatout.nouns.machine import Container, Disk, Machine, Memory, System
from flatout.nouns.signature import Confidence

LOGS = {item.id: item.log.encode() for item in signatures.every()}
KILLED = "RuntimeError: DataLoader worker (pid 82935) is killed by signal: Killed."
HERE = Machine(
    system=System(name="Linux"),
    memory=Memory(limit_bytes=8 << 30, shm_bytes=64 << 20),
    container=Container(kind="docker"),
    disks=(Disk("/", "work", free_bytes=1 << 40),),
)


def test_what_applies_here_comes_first_and_what_does_not_last() -> None:
    bus = "ERROR: Unexpected bus error encountered in worker."
    (inside,) = explain_text(bus, lambda: HERE).matches
    outside_machine = dataclasses.replace(HERE, container=Container(), memory=Memory())
    (outside,) = explain_text(bus, lambda: outside_machine).matches
    (unknown,) = explain_text(bus).matches
    assert "--shm-size" in inside.cure[0].text.en
    assert inside.cure[0].applies is True
    assert "--shm-size" in outside.cure[-1].text.en
    assert outside.cure[-1].applies is False
    assert [step.applies for step in unknown.cure] == [None] * len(unknown.cure)
    assert {step.text for step in inside.cure} == {step.text for step in outside.cure}


def test_the_machine_is_looked_at_only_where_there_is_something_to_cure() -> None:
    def never() -> Machine:
        raise AssertionError

    assert not explain_text("all is well", never).recognised
    with pytest.raises(AssertionError):
        explain_text(KILLED, never)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RuntimeError: CUDA error: something new", "cuda"),
        ("NCCL WARN something new", "distributed"),
        ("Traceback (most recent call last):\nFooError: new", "any"),
        ("", "any"),
    ],
)
def test_not_recognised_says_how_to_get_a_better_log(text: str, kind: str) -> None:
    answer = explain_text(text)
    assert not answer.recognised or answer.matches[0].confidence is not Confidence.HIGH
    if not answer.recognised:
        assert kind in [item.id for item in answer.better_log]


def test_the_end_of_a_long_log_tells_that_something_failed() -> None:
    harmless = LOGS["hf-weights-newly-initialized"]
    steps = b"step 1: loss 0.5\n" * 400_000
    failed = b"Traceback (most recent call last):\nFooError: something new about NCCL\n"
    good = explain([(None, [harmless, steps])])
    bad = explain([(None, [harmless, steps, failed])])
    assert good.recognised
    assert not bad.recognised
    assert "distributed" in [item.id for item in bad.better_log]


def test_several_files_are_one_answer() -> None:
    logs = [
        ("logs/rank0.log", [b"2026-03-01 10:00:09 all is well\n"]),
        ("logs/rank1.log", [f"2026-03-01 10:00:01 {KILLED}\n".encode()]),
    ]
    answer = explain(logs)
    assert answer.sources == ("logs/rank0.log", "logs/rank1.log")
    assert answer.matches[0].evidence.rank == 1
    assert answer.matches[0].evidence.source == "logs/rank1.log"


RANKS = range(8)
OUT_OF_MEMORY = (
    "[rank3]: 2026-03-01 12:00:05,100 ERROR torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.20 GiB is "
    "free.\n"
)
WAITED = "".join(
    f"[rank{rank}]:[E301 12:10:05.{rank}00 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=718, OpType=ALLREDUCE, Timeout(ms)=600000) ran "
    f"for 600238 milliseconds before timing out.\n"
    for rank in RANKS
    if rank != 3
)
SUMMARY = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-03-01_12:00:06
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 73853)
"""
STEPS = "".join(f"[rank{rank}]: step {step}\n" for step in range(200) for rank in RANKS)


@pytest.mark.parametrize(
    "log", [STEPS + OUT_OF_MEMORY + WAITED + SUMMARY, WAITED + STEPS + OUT_OF_MEMORY + SUMMARY]
)
def test_of_eight_ranks_the_one_that_died_first_is_the_root(log: str) -> None:
    root, *rest = explain_text(log).matches
    assert root.id == "cuda-oom"
    assert root.evidence.rank == 3
    assert {item.consequence_of for item in rest} == {"cuda-oom"}
    waited = next(item for item in rest if item.id == "nccl-timeout")
    assert set(waited.ranks) == set(RANKS) - {3}


def test_a_message_cut_by_prefixes_is_put_together() -> None:
    cut = (
        "[rank3]: RuntimeError: DataLoader worker (pid 7) is\n[rank3]: killed by signal: Killed.\n"
    )
    assert explain_text(cut).matches[0].id == "loader-worker-killed"


@given(st.lists(st.sampled_from(list(LOGS.values())), max_size=3), st.data())
def test_any_pieces_of_logs_are_answered(logs: list[bytes], data: st.DataObject) -> None:
    pieces = []
    for text in logs:
        begin, end = sorted(
            data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text))))
        )
        pieces += [text[begin:end], data.draw(st.binary(max_size=20))]
    answer = explain([(None, pieces)])
    assert answer.bytes_read == sum(map(len, pieces))
    order = [match.consequence_of is not None for match in answer.matches]
    assert not order or not order[0]
    assert all(match.evidence.line >= 1 for match in answer.matches)
