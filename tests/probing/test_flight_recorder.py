"""Dumps among what a user names, and what becomes of them in the user's interpreter."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from flatout.nouns.errors import UserError
from flatout.probing import flight_recorder
from probing.fake_packages import bare

DUMPS = Path(__file__).parent / "flight_dumps"


def test_dumps_are_told_from_logs(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("RuntimeError: no")
    dump = Path(shutil.copy(DUMPS / "missing" / "nccl_trace_rank_0", tmp_path))
    assert flight_recorder.split([str(log)]) == ([], [str(log)])
    assert flight_recorder.split([str(dump), str(log)]) == ([dump], [str(log)])
    assert flight_recorder.split([str(tmp_path)]) == ([dump], [str(tmp_path)])
    log.unlink()
    assert flight_recorder.split([str(tmp_path)]) == ([dump], [])
    text = ["CUDA error: " + "x" * 5000, "\0"]
    assert flight_recorder.split(text) == ([], text)


@pytest.mark.slow
def test_real_dumps_are_compared() -> None:
    record = flight_recorder.compare(sys.executable, sorted((DUMPS / "missing").iterdir()))
    assert (record.ranks, record.world) == ((0, 1), 2)
    assert record.unlike[0].missing == (1,)
    assert record.last[1].stack[-1] == ("/home/user/train.py", 9, "<module>")


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no analyser for them: ModuleNotFoundError"):
        flight_recorder.compare(bare(tmp_path), sorted((DUMPS / "missing").iterdir()))


def test_two_dumps_of_one_rank(tmp_path: Path) -> None:
    answer = {"ranks": [0, 0], "world": 2, "last": []}
    with pytest.raises(UserError, match="several dumps of rank 0"):
        flight_recorder._record(answer, "python")


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot compare the dumps"):
        flight_recorder.compare(str(tmp_path / "python"), [])
