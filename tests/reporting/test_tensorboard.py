"""Traces where TensorBoard's profiler plugin finds them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from flatout.nouns.errors import UserError
from flatout.nouns.profile import Profiled
from flatout.reporting import tensorboard
from machines.healthy import changed
from reporting import profiled_examples as examples

# As in torch_tb_profiler/consts.py and run.py.
WORKER_PATTERN = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")
NODE_PROCESS_PATTERN = re.compile(r"^(.*)_(\d+)")


def profiled(**traces: Path | str) -> Profiled:
    found: Profiled = changed(
        examples.healthy(),
        profile__trace=str(traces["trace"]),
        profile__seen__detail_trace=str(traces.get("detail", "")),
    )
    return found


def read(path: Path) -> object:
    """As the plugin reads it: the ending decides."""
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def test_each_run_is_a_folder_of_traces_by_worker(tmp_path: Path) -> None:
    plain, packed, detail = tmp_path / "0.json", tmp_path / "rank1.trace", tmp_path / "d.json"
    plain.write_text('{"traceEvents": [0]}')
    packed.write_bytes(gzip.compress(b'{"traceEvents": [1]}'))
    detail.write_text('{"traceEvents": [2]}')
    logs = tmp_path / "logs"
    found = tensorboard.profile(profiled(trace=plain, detail=detail), logs, [packed, plain])
    assert sorted(logs.rglob("*.*")) == sorted(found)
    assert [path.parent.name for path in found] == ["flatout", "flatout", "flatout-stacks"]
    assert [read(path) for path in found] == [{"traceEvents": [number]} for number in range(3)]
    workers = [WORKER_PATTERN.match(path.name) for path in found]
    nodes = [NODE_PROCESS_PATTERN.match(match[1]) for match in workers if match]
    assert [node[2] for node in nodes if node] == ["0", "1", "0"]


def test_torchs_own_names_are_kept_and_writing_again_changes_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "node7_4211.1700000000000000000.pt.trace.json"
    trace.write_text("{}")
    logs = tmp_path / "logs"
    first = tensorboard.profile(profiled(trace=trace), logs)
    assert [path.name for path in first] == [trace.name]
    assert tensorboard.profile(profiled(trace=trace), logs) == first
    assert tensorboard.profile(profiled(trace=first[0]), logs) == first  # already there


def test_no_trace_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no raw trace"):
        tensorboard.profile(examples.healthy(), tmp_path)
    with pytest.raises(UserError, match=r"gone\.json: No such file"):
        tensorboard.profile(profiled(trace=tmp_path / "gone.json"), tmp_path / "logs")
