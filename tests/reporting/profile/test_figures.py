"""What the page of a profile draws: nothing is lost, and parts add up."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.ceiling import Ceiling
from flatout.nouns.profile import MemoryPoint, Profile, Span
from flatout.reporting.profile import figures
from machines.healthy import changed
from reporting import profiled_examples as examples


def test_each_span_is_drawn_once_with_its_name_and_kind() -> None:
    profile = examples.naive().profile
    figure = figures.timeline(profile)
    assert figure is not None
    drawn = {
        (lane["name"], figure["names"][name], figure["kinds"][kind], begin, ms)
        for lane in figure["lanes"]
        for _, name, kind, begin, ms in lane["spans"]
    }
    given_ = {
        (span.lane, span.name, str(span.kind or ""), round(span.begin_ms, 5), round(span.ms, 5))
        for span in profile.timeline
    }
    assert drawn == given_
    assert [lane["name"] for lane in figure["lanes"]] == ["host", "stream 7", "stream 20", "idle"]
    assert [lane["idle"] for lane in figure["lanes"]] == [False, False, False, True]


def test_busy_and_idle_add_up_to_the_step() -> None:
    profile = examples.naive().profile
    sums = figures.timeline_sums(profile)
    assert sum(ms for _, _, ms in sums) == pytest.approx(profile.anatomy.step_ms)
    assert sums[0] == ("busy", "GPU busy", pytest.approx(profile.anatomy.busy_ms))
    assert sums[1] == ("wait-data", "waiting for data", pytest.approx(232.0))


SPANS = st.lists(
    st.builds(
        Span, st.just("stream 7"), st.just("k"), st.none(), st.integers(0, 50), st.integers(0, 20)
    ),
    max_size=25,
)


@given(SPANS)
def test_spans_of_a_lane_never_lie_on_each_other(spans: list[Span]) -> None:
    profile = dataclasses.replace(examples.bare().profile, timeline=tuple(spans))
    figure = figures.timeline(profile)
    rows: dict[int, list[tuple[float, float]]] = {}
    for row, _, _, begin, ms in figure["lanes"][0]["spans"] if figure else ():
        rows.setdefault(row, []).append((begin, begin + ms))
    for row, inside in rows.items():
        ordered = sorted(inside)
        overlap = any(a[1] > b[0] + 1e-9 for a, b in itertools.pairwise(ordered))
        assert not overlap or row == figures.ROWS - 1


def test_memory_by_category_keeps_what_a_category_was() -> None:
    points = (
        MemoryPoint(0.0, 1, "activations and gradients"),
        MemoryPoint(1.0, 5, "parameters"),
        MemoryPoint(2.0, 3, "activations and gradients"),
        MemoryPoint(2.0, 9, "all"),
    )
    figure = figures.memory(dataclasses.replace(examples.bare().profile, memory=points))
    assert figure == {
        "x": "ms",
        "at": [0.0, 1.0, 2.0],
        "series": [
            {"name": "parameters", "bytes": [0, 5, 5]},
            {"name": "activations and gradients", "bytes": [1, 1, 3]},
        ],
    }


def test_many_points_are_thinned_and_the_peak_stays() -> None:
    points = [MemoryPoint(float(n), n % 977) for n in range(20_000)]
    points[7777] = MemoryPoint(7777.0, 10**9)
    profile = dataclasses.replace(examples.bare().profile, memory=tuple(points))
    figure = figures.memory(profile)
    assert figure is not None
    assert len(figure["at"]) <= figures.DRAWN_POINTS + 2
    assert max(figure["series"][0]["bytes"]) == 10**9
    assert (figure["at"][0], figure["at"][-1]) == (0.0, 19_999.0)


def roofline(profile: Profile) -> figures.Json:
    figure = figures.roofline(profile)
    assert figure is not None
    return figure


def test_the_roofline_has_points_where_operations_and_bytes_are_known() -> None:
    figure = roofline(examples.naive().profile)
    assert [point["name"] for point in figure["points"]] == [
        "tensor cores",
        "elementwise",
        "normalisation",
    ]
    first = figure["points"][0]
    assert first["flop_per_byte"] == pytest.approx(6.3e12 / 4.1e10)
    assert first["flops"] == pytest.approx(6.3e12 / 0.061)


def test_ceilings_of_the_device_that_trains_alone_in_units_per_second() -> None:
    ceilings = (
        Ceiling("matmul-bf16", "", "cuda:0", 900.0, "TFLOP/s"),
        Ceiling("matmul-bf16", "", "cuda:1", 950.0, "TFLOP/s"),
        Ceiling("matmul-fp32", "", "cuda:0", None, "TFLOP/s"),
        Ceiling("matmul-cpu-fp32", "", "cpu", 800.0, "GFLOP/s"),
        Ceiling("copy-device", "", "cuda:0", 3.2, "TB/s"),
        Ceiling("copy-device-to-host-pinned", "", "cuda:0", 55.0, "GB/s"),
        Ceiling("launch-latency", "", "cuda:0", 5.0, "us"),
        Ceiling("memory-cpu", "", "cpu", 40.0, "GB/s"),
    )
    gpu = roofline(changed(examples.naive().profile, ceilings=ceilings))
    assert gpu["roofs"] == [{"name": "matmul-bf16", "value": pytest.approx(950e12)}]
    assert gpu["memory"] == [{"name": "copy-device", "value": pytest.approx(3.2e12)}]
    cpu = roofline(changed(examples.cpu().profile, ceilings=ceilings))
    assert cpu["roofs"] == [{"name": "matmul-cpu-fp32", "value": pytest.approx(8e11)}]
    assert cpu["memory"] == [{"name": "memory-cpu", "value": pytest.approx(4e10)}]


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    profile = examples.bare().profile
    assert figures.timeline(profile) is None
    assert figures.roofline(profile) is None
    assert figures.memory(profile) is None
    assert figures.timeline_sums(profile) == []
