"""Alerts as lines: none is left out unsaid, whatever room there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from flatout.nouns.finding import Cure
from flatout.nouns.frame import Frame
from flatout.reporting.monitor import alert_lines
from reporting.monitor import frames


def told(frame: Frame, width: int, room: int) -> list[str]:
    lines = [line.plain for line in alert_lines.lines(frame, width, room)]
    assert len(lines) <= room
    assert all(cell_len(line) <= width for line in lines)
    return lines


def test_all_headlines_before_any_cure() -> None:
    one, two, three = told(frames.eight_gpus(), 80, 3)
    assert one.startswith("HANG001")
    assert "since" in two
    assert three.startswith("WAIT001")


def test_what_has_no_room_is_counted() -> None:
    alerts = tuple(replace(frames.alert(), subject=f"rank {number}") for number in range(9))
    lines = told(replace(frames.eight_gpus(), alerts=alerts), 80, 4)
    assert lines[2].startswith("WAIT001 (rank 2)")
    assert lines[3] == "and 6 more"


@pytest.mark.parametrize("room", range(12))
@pytest.mark.parametrize("width", [5, 20, 80])
def test_any_room(width: int, room: int) -> None:
    told(replace(frames.eight_gpus(), notes=("node2 does not answer: timed out",)), width, room)


def test_a_command_is_wrapped_and_not_cut() -> None:
    command = "nvidia-smi --query-gpu=index,temperature.gpu --format=csv --loop=5 --filename=log"
    alert = replace(frames.alert(), cure=Cure("Do it.", (command,)))
    shown = " ".join(line.plain.strip() for line in alert_lines.details(alert, 60))
    assert f"$ {command}" in shown
