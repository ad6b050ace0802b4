"""What the page of a profile draws: nothing is lost, and parts add up."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.profile import MemoryPoint, Span
from flatout.reporting.profile import figures
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


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    profile = examples.bare().profile
    assert figures.timeline(profile) is None
    assert figures.memory(profile) is None
    assert figures.timeline_sums(profile) == []
