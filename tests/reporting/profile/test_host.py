"""The host's time for people: nothing is lost, times are an undisturbed step's, names are kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flatout.nouns.host_time import HostKind, HostTime
from flatout.nouns.profile import Profile, Profiled
from flatout.reporting.profile import cells, host
from flatout.reporting.profile.cells import Table
from machines.healthy import changed
from reporting import profiled_examples as examples


@pytest.fixture
def profile() -> Profile:
    return examples.scripted().profile


def frames(profile: Profile) -> dict[str, dict[str, Any]]:
    """All frames of the graph by name, the last of a name."""
    figure = host.flames(profile)
    assert figure is not None
    by_name, left = {}, [figure["root"]]
    while left:
        node = left.pop()
        by_name[node["name"]] = node
        left += node["children"]
    return by_name


def column(table: Table, name: str) -> list[str]:
    return [row.cells[table.columns.index(name)].text for row in table.rows]


def test_the_graph_is_as_wide_as_an_undisturbed_step(profile: Profile) -> None:
    nodes = frames(profile)
    assert nodes["step"]["value"] == pytest.approx(80.0)
    assert nodes["train.py:14 mask"]["value"] == pytest.approx(0.8 * 40.0)
    assert nodes["train.py:30 train"]["value"] == pytest.approx(0.8 * 87.5)
    assert nodes["garbage collection"]["value"] == pytest.approx(0.8 * 2.5)
    assert "train.py:50 watch" not in nodes


def test_no_frame_is_wider_than_the_one_above(profile: Profile) -> None:
    for node in frames(profile).values():
        assert sum(child["value"] for child in node["children"]) <= node["value"] + 1e-3


def test_the_same_name_called_by_itself_is_two_frames() -> None:
    figure = host.flames(examples.hostile().profile)
    assert figure is not None
    (outer,) = figure["root"]["children"]
    assert outer["name"] == outer["children"][0]["name"] == examples.XSS


def test_the_table_has_each_line_with_what_it_costs_and_who_called_it(profile: Profile) -> None:
    table = host.lines(profile)
    assert column(table, "Line")[:4] == ["train.py:14", "train.py:30", "train.py:21", "train.py:30"]
    assert column(table, "Time")[:2] == ["32.0 ms", "16.0 ms"]
    assert column(table, "Of the step")[0] == "40%"
    assert column(table, "Whose code")[:4] == ["your Python", "torch", "sklearn", "waiting"]
    assert column(table, "Called from")[0] == "train.py:30 < train.py:40"
    assert column(table, "In")[-2:] == ["loader", "model"]
    assert column(table, "Calls")[0] == "" and column(table, "Source")[0] == "m[i][j] = 1.0"
    assert table.kinds == {str(kind): cells.HOST_KINDS[kind] for kind in HostKind}


def test_the_sums_are_those_of_an_undisturbed_step(profile: Profile) -> None:
    sums = {name: ms for _, name, ms in host.sums(profile)}
    assert sums == pytest.approx(
        {
            "your Python": 32.0,
            "torch": 16.0,
            "other packages": 14.0,
            "waiting": 8.0,
            "making batches in this process": 4.0,
            "garbage collection": 2.0,
        }
    )


@pytest.mark.parametrize("host_time", [None, HostTime(0, 0.0, ())])
def test_without_samples_there_is_nothing(profile: Profile, host_time: HostTime | None) -> None:
    empty = dataclasses.replace(profile, host=host_time)
    assert host.flames(empty) is None
    assert host.lines(empty).rows == ()
    assert host.section(empty).others == []
    assert host.sums(empty) == host.costliest(empty, 3) == []


def test_the_costliest_lines_are_the_users_without_torch_and_loader(profile: Profile) -> None:
    costly = host.costliest(profile, 3)
    assert [(str(line.where), round(line.ms, 3)) for line in costly] == [
        ("train.py:14", 32.0),
        ("train.py:21", 12.0),
        ("train.py:30", 8.0),
    ]
    assert len(host.costliest(profile, 1)) == 1


def test_names_of_files_cannot_change_the_page() -> None:
    profiled: Profiled = examples.hostile()
    control = changed(profiled.profile, host__stacks__0__frames=("\x1b[31mred\n", "b"))
    assert not any("\x1b" in name or "\n" in name for name in frames(control))
