from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, saved_ms
from flatout_agent import wire

CHECK = "padded-beyond-longest"
ROW = wire.PaddingSeen(
    "train.py:37",
    "[0][0]",
    "16x160",
    length=160,
    longest=60,
    padded=0.6,
    filled=0.2,
    s=0.24,
    flops=0.9,
)


def flow(row: wire.PaddingSeen | None) -> wire.FlowSeen:
    return wire.FlowSeen(steps=2, operators=300, operators_s=0.3, padding=row)


def test_padded_to_a_fixed_length() -> None:
    job = cpu_profile(seen__flow=flow(ROW))
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("DATA011", "train.py:37")
    assert "padded to 160" in finding.title
    operators_ms = 136.0 + 68.0 + 30.0 + 24.0 + 8.0
    assert saved_ms(finding, job) == pytest.approx(0.8 * 0.6 * operators_ms, rel=0.01)


def test_where_and_how() -> None:
    row = dataclasses.replace(ROW, where=None, left=True, masked=True, constant=2)
    job = cpu_profile(
        seen__flow=flow(row), seen__loader_where=None, seen__model_where="train.py:64"
    )
    finding = only(CHECK, job)
    assert finding.where == "train.py:64"
    assert "mask" in finding.evidence
    assert 'padding_side="left"' in changes(finding)


def test_little_padding_or_work() -> None:
    for row in (
        dataclasses.replace(ROW, padded=0.2),
        dataclasses.replace(ROW, s=0.001),
        None,
    ):
        assert findings(CHECK, cpu_profile(seen__flow=flow(row))) == ()
    assert findings(CHECK, cpu_profile()) == ()


def test_frames_of_features() -> None:
    row = dataclasses.replace(ROW, shape="8x48x1x24x24", length=48, longest=20, masked=True)
    text = changes(only(CHECK, cpu_profile(seen__flow=flow(row))))
    assert "longest = max(len(row) for row in rows)" in text
    assert "torch.full((len(rows), longest, ...), 0)" in text
    last = dataclasses.replace(row, shape="8x80x400", length=400, longest=200)
    text = changes(only(CHECK, cpu_profile(seen__flow=flow(last))))
    assert "longest = max(row.shape[-1] for row in rows)" in text
