"""The comparison of dumps: what it finds in real ones, and that no dump runs code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from flatout_programs import flight_recorder as program

DUMPS = Path(__file__).parents[1] / "probing" / "flight_dumps"


def told(*paths: Path) -> dict[str, Any]:
    said: list[dict[str, Any]] = []
    program.main(list(map(str, paths)), said.append)
    (answer,) = said
    return answer


def both(kind: str) -> list[Path]:
    return sorted((DUMPS / kind).iterdir())


def test_a_rank_that_did_not_come() -> None:
    answer = told(*both("missing"))
    assert (answer["ranks"], answer["world"]) == ([0, 1], 2)
    (unlike,) = answer["unlike"]
    assert (unlike["operation"], unlike["number"]) == ("gloo:all_reduce", 4)
    assert (unlike["missing"], unlike["others"]) == ([1], [])
    assert ["/home/user/train.py", 12, "<module>"] in unlike["stack"]
    assert "Not all ranks joining collective, sequence number: 4" in answer["text"]
    last = {call["rank"]: call for call in answer["last"]}
    assert (last[0]["number"], last[1]["number"]) == (4, 3)


def test_a_rank_that_called_something_else() -> None:
    (unlike,) = told(*both("operation"))["unlike"]
    (other,) = unlike["others"]
    assert (unlike["missing"], other["rank"], other["operation"]) == ([], 1, "gloo:broadcast")
    assert ["/home/user/train.py", 7, "evaluate"] in other["stack"]


class Attack:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


def test_a_dump_that_would_run_code(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [Attack()]}))
    assert "which no such dump does" in told(path)["error"]


def test_ranks_that_the_analyser_would_evaluate(tmp_path: Path) -> None:
    """torch's own reader evaluates the ranks of a group where they are a text within a text."""
    content = pickle.loads(both("missing")[0].read_bytes())
    mark = tmp_path / "run"
    content["pg_config"][""]["ranks"] = repr(f"[open({str(mark)!r}, 'w').write('') or 0, 1]")
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(content, protocol=2))
    told(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("trace", {}, "does not end with the number of its rank"),
        ("rank_0", [], "is no dump"),
        ("rank_0", {"entries": 3}, "is no dump"),
        ("rank_0", {"entries": [3], "version": "2.10"}, "an entry that is none"),
        ("rank_0", {"entries": [{}], "version": "2.10"}, "without profiling_name"),
        ("rank_0", {"entries": [], "version": "x"}, "version 'x'"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, name: str, content: Any, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(content))
    assert reason in told(path)["error"]


def test_a_damaged_dump(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(both("missing")[0].read_bytes()[:500])
    assert "rank_0 cannot be read" in told(path)["error"]
