"""The script's own profilers record nothing, and go on as if they did; the agent's does."""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from agent import profiled
from flatout_agent.watch.profile.own_profilers import hold_off
from flatout_agent.watch.profile.recording import ProfilerRecording, other_profiler


def work() -> None:
    torch.randn(8, 8) @ torch.randn(8, 8)


def test_the_scripts_profilers_are_held_off_beside_ours(tmp_path: Path) -> None:
    start, enable = profile.start, cProfile.Profile.enable
    undo = hold_off()
    try:
        recording = ProfilerRecording("cpu", steps=2, warmup=1, detail=False)
        for between in (False, True):  # before ours, and while it is on
            if between:
                recording.start()
            with profile(activities=[ProfilerActivity.CPU], with_stack=True) as own:
                assert not other_profiler()  # ours only warms up
                for _ in range(2):
                    work()
                    own.step()
            assert own.events() is not None
            assert [row.key for row in own.key_averages() if row.key.startswith("aten")] == []
        python = cProfile.Profile()
        python.enable()
        assert sys.getprofile() is None
        python.disable()
        while not recording.step():
            work()
        assert not recording.yielded
        trace = recording.save(str(tmp_path / "trace"))
        assert any(event.get("name") == "aten::mm" for event in profiled.events(trace))
        assert len(profiled.marks(trace)) == 2, "the script marks steps as well"
    finally:
        undo()
    assert (profile.start, cProfile.Profile.enable) == (start, enable)
    with profile(activities=[ProfilerActivity.CPU]) as own:
        work()
    assert any(row.key == "aten::mm" for row in own.key_averages())


def test_the_script_saves_each_of_its_traces(tmp_path: Path) -> None:
    undo = hold_off()
    try:
        for number in range(2):
            with profile(activities=[ProfilerActivity.CPU]) as own:
                work()
            own.export_chrome_trace(str(tmp_path / f"{number}.json"))
        own.export_chrome_trace(str(tmp_path / "no" / "folder.json"))
    finally:
        undo()
    for number in range(2):
        events = json.loads((tmp_path / f"{number}.json").read_text())["traceEvents"]
        assert not [event for event in events if event["name"].startswith("aten")]


def test_the_script_prints_what_pythons_profiler_has_seen(tmp_path: Path) -> None:
    undo = hold_off()
    try:
        python = cProfile.Profile()
        python.runcall(work)
        text = io.StringIO()
        pstats.Stats(python, stream=text).sort_stats("cumulative").print_stats()
        python.dump_stats(tmp_path / "stats")
    finally:
        undo()
    assert "held off by flatout" in text.getvalue()
    pstats.Stats(str(tmp_path / "stats"))
