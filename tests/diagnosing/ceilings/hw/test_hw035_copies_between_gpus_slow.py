from __future__ import annotations

from typing import Any

from diagnosing.ceilings.benched import benched, findings, only, with_rows
from flatout.nouns.ceiling import Ceiling, Point
from machines.healthy import a100, changed

ID = "copies-between-gpus-slow"


def row(best: float, worst: float, datasheet: float | None = 300.0) -> Ceiling:
    points = (Point("cuda:0 to cuda:1", best), Point("cuda:2 to cuda:3", worst))
    name = "copy-device-to-device"
    return Ceiling(name, name, "cuda:0", best, "GB/s", datasheet, points[0].size, points)


def without_nvlink() -> Any:
    pairs = tuple(changed(pair, link="system") for pair in a100().gpu_pairs or ())
    return changed(a100(), gpu_pairs=pairs)


def test_one_pair_far_below_nvlink() -> None:
    finding = only(ID, with_rows(benched(a100()), row(240.0, 22.0)), a100())
    assert finding.code == "HW035"
    assert "22 GB/s from cuda:2 to cuda:3" in finding.title
    assert "NVLink carries 300" in finding.evidence


def test_without_nvlink_a_copy_from_the_host_is_the_measure() -> None:
    machine = without_nvlink()
    finding = only(ID, with_rows(benched(machine), row(20.0, 8.0)), machine)
    assert "a copy from the host gives 26.1 GB/s" in finding.evidence
    assert findings(ID, with_rows(benched(machine), row(22.0, 18.0)), machine) == ()


def test_silent_where_all_pairs_are_fast_or_nothing_was_measured() -> None:
    assert findings(ID, with_rows(benched(a100()), row(250.0, 240.0)), a100()) == ()
    assert findings(ID, benched(a100()), a100()) == ()
