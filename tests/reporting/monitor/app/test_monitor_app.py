"""The application, driven by textual's pilot: keys, frames, odd sizes, foreign text, ends."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from flatout.nouns.frame import Frame
from flatout.nouns.machine_sample import ProcessSample
from reporting.monitor.frames import alert, job
from reporting.monitor.frames import eight_gpus as frame

pytest.importorskip("textual")
from textual.pilot import Pilot
from textual.widgets import Input, Static

from flatout.reporting.monitor.app.alerts_screen import AlertsScreen
from flatout.reporting.monitor.app.job_screen import JobScreen, StacksScreen
from flatout.reporting.monitor.app.live_table import LiveTable
from flatout.reporting.monitor.app.monitor_app import MonitorApp
from flatout.reporting.monitor.feed import FrameFeed

pytestmark = pytest.mark.slow
TRIES = 600
"""Of 50 ms each: no test depends on how fast the machine is."""
Work = Callable[[Pilot[None], MonitorApp, "queue.Queue[Frame | None]"], Coroutine[Any, Any, None]]


def drive(
    work: Work,
    *first: Frame,
    size: tuple[int, int] = (120, 40),
    stacks: Callable[[str], str] | None = None,
) -> MonitorApp:
    """Run the application on these frames and on those that `work` puts; None ends them."""
    waiting: queue.Queue[Frame | None] = queue.Queue()
    for each in first:
        waiting.put(each)

    def frames() -> Iterator[Frame]:
        while (each := waiting.get()) is not None:
            yield each

    app = MonitorApp(FrameFeed(frames()), stacks)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app._frame is not None)
            await work(pilot, app, waiting)
        waiting.put(None)

    asyncio.run(run())
    return app


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    for _ in range(TRIES):
        await pilot.pause(0.05)
        if holds():
            return
        if pilot.app.return_code:
            break
    raise AssertionError("it did not come")


def rows(app: MonitorApp, name: str) -> list[list[str]]:
    table = app.screen_stack[0].query_one(name, LiveTable)
    return [[cell.plain for cell in table.get_row_at(number)] for number in range(table.row_count)]


def text(app: MonitorApp, name: str) -> str:
    return str(app.screen.query_one(name, Static).content)


def programs(app: MonitorApp) -> list[str]:
    return [row[0] for row in rows(app, "#jobs")]


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [(80, 24), (20, 6), (120, 40), (200, 50), (40, 12)])
def test_any_size(size: tuple[int, int]) -> None:
    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        assert "flatout monitor" in text(app, "#machine")
        assert len(programs(app)) == len(frame().jobs)
        assert all(program.startswith("train.py") for program in programs(app))
        for key in ("s", "p", "space", "space", "question_mark", "escape", "tab", "down"):
            await pilot.press(key)
        await pilot.resize_terminal(size[1], size[0])
        await pilot.pause()

    drive(work, frame(), size=size)


def test_alerts_with_their_cures() -> None:
    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        await until(pilot, lambda: "WAIT001" in text(app, "#alerts"))
        told = text(app, "#alerts")
        assert "the job waits for its data 41% of the time" in told
        assert "82 ms of 200 ms a step" in told
        assert "Boost: loader-workers" in told
        assert "flatout explain WAIT001" in told

    drive(work, frame())


def test_sorting_and_pausing() -> None:
    jobs = (job(1, step_s=0.1), job(2, step_s=0.3), job(3, state="ended", exit_code=1))

    async def work(pilot: Pilot[None], app: MonitorApp, frames: queue.Queue[Frame | None]) -> None:
        assert programs(app) == [
            "train.py --epochs 2",
            "train.py --epochs 1",
            "train.py --epochs 3",
        ]
        await pilot.press("s")
        assert "sorted by step time" in text(app, "#machine")
        assert programs(app)[0] == "train.py --epochs 2"
        await pilot.press("space")
        frames.put(replace(shown, jobs=()))
        assert "paused" in text(app, "#machine")
        for _ in range(5):
            await pilot.pause(0.1)
        assert len(programs(app)) == 3
        await pilot.press("space")
        frames.put(replace(shown, jobs=()))
        await until(pilot, lambda: not programs(app))
        assert "No job runs" in text(app, "#none")

    shown = replace(frame(), jobs=jobs)
    drive(work, shown)


def test_the_filter() -> None:
    jobs = (job(1), job(2), job(3, program="other.py"))

    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        await pilot.press("slash", *"other")
        assert programs(app) == ["other.py"]
        await pilot.press("enter")
        assert not app.query_one("#filter", Input).display
        assert "only 'other'" in text(app, "#machine")
        await pilot.press("slash", *"q")  # a letter of the filter, not the key
        assert programs(app) == []
        assert "No job contains" in text(app, "#none")
        await pilot.press("escape")
        assert len(programs(app)) == 3

    drive(work, replace(frame(), jobs=jobs))


def test_the_cursor_stays_with_its_job() -> None:
    first = replace(frame(), jobs=(job(1), job(2), job(3)))
    later = replace(frame(), jobs=(job(0), job(9), job(2), job(3, step=99)))

    async def work(pilot: Pilot[None], app: MonitorApp, frames: queue.Queue[Frame | None]) -> None:
        table = app.query_one("#jobs", LiveTable)
        await pilot.press("down")
        assert table.chosen == "7-2"
        frames.put(later)
        await until(pilot, lambda: len(programs(app)) == 4)
        assert table.chosen == "7-2"

    drive(work, first)


def test_one_job_opened() -> None:
    told = replace(alert(), job="7-2", title="only this one")
    shown = replace(frame(), jobs=(job(2, run_folder="/runs/9"),), alerts=(told,))

    async def work(pilot: Pilot[None], app: MonitorApp, frames: queue.Queue[Frame | None]) -> None:
        frames.put(replace(shown, jobs=(job(2, run_folder="/runs/9", loss=1.25),)))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await until(pilot, lambda: "1.25" in text(app, "#curves"))
        assert "/runs/9" in text(app, "#head")
        assert "only this one" in text(app, "#details")
        ranks = app.screen.query_one("#ranks", LiveTable)
        assert ranks.get_row_at(0)[1].plain == "9"
        frames.put(replace(shown, jobs=()))
        await until(pilot, lambda: "no longer shown" in text(app, "#head"))
        await pilot.press("escape")
        assert not isinstance(app.screen, JobScreen)

    drive(work, shown)


def test_the_keys_of_the_list_mean_nothing_in_a_job() -> None:
    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        shown = {binding.binding.description for binding in app.screen.active_bindings.values()}
        assert "Back" in shown
        assert not {"Sort", "Filter", "Processes"} & shown
        await pilot.press("slash", "s", "p", "question_mark")
        assert isinstance(app.screen, JobScreen)
        await pilot.press("q")
        assert not isinstance(app.screen, JobScreen)
        assert "sorted by" not in text(app, "#machine")

    drive(work, frame())


def test_all_alerts_with_the_jobs_that_they_are_about() -> None:
    many = tuple(replace(alert(), subject=f"rank {number}", job="7-2") for number in range(30))

    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        await until(pilot, lambda: "more" in text(app, "#alerts"))
        await pilot.press("a")
        await until(pilot, lambda: isinstance(app.screen, AlertsScreen))
        told = text(app, "#details")
        assert told.count("flatout explain WAIT001") == 30
        assert told.count("train.py --epochs 2") == 30
        await pilot.press("escape")
        assert not isinstance(app.screen, AlertsScreen)

    drive(work, replace(frame(), alerts=many), size=(80, 24))


def test_a_process_leads_to_its_job() -> None:
    processes = (
        ProcessSample(4, command="/opt/bin/python other.py", memory_bytes=1),
        ProcessSample(9, command="train.py --epochs 2", memory_bytes=2**30),
    )
    machine = replace(frame().machines[0], processes=processes)

    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        await pilot.press("p")
        await until(pilot, lambda: app.query_one("#processes").has_focus)
        assert [row[0] for row in rows(app, "#processes")] == ["9", "4"]  # most memory first
        assert rows(app, "#processes")[1][-1] == "python other.py"
        await pilot.press("down", "enter")
        await pilot.pause()
        assert not isinstance(app.screen, JobScreen)  # it belongs to none that is shown
        await pilot.press("up", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        assert "train.py --epochs 2" in text(app, "#head")

    drive(work, replace(frame(), machines=(machine,), jobs=(job(1), job(2))))


def test_every_column_fits() -> None:
    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        for width in (80, 60, 120, 200):
            await pilot.resize_terminal(width, 40)
            for name in ("#gpus", "#jobs"):
                table = app.query_one(name, LiveTable)
                await until(
                    pilot,
                    lambda table=table: (
                        sum(column.get_render_width(table) for column in table.ordered_columns)
                        <= app.size.width
                    ),
                )
        assert {"samples/s", "loss curve", "left"} <= {
            str(column.label) for column in app.query_one("#jobs", LiveTable).ordered_columns
        }

    drive(work, replace(frame(), jobs=(job(1, program="train.py " + "x" * 300), job(2))))


def test_stacks_are_asked_for_in_a_thread_and_shown_as_they_are() -> None:
    asked: list[tuple[str, bool]] = []

    def stacks(job_id: str) -> str:
        asked.append((job_id, threading.current_thread() is threading.main_thread()))
        return 'File "train.py", line 11 in [red]hang[/red]\x1b[2J'

    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, StacksScreen))
        await until(pilot, lambda: "line 11" in text(app, "#stacks"))
        assert "[red]hang[/red]" in text(app, "#stacks")
        assert "\x1b" not in text(app, "#stacks")

    drive(work, replace(frame(), jobs=(job(2),)), stacks=stacks)
    assert asked == [("7-2", False)]


@pytest.mark.parametrize("fails", [True, False])
def test_why_there_are_no_stacks(fails: bool) -> None:
    def broken(job_id: str) -> str:
        raise OSError("gone")

    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, StacksScreen))
        reason = "OSError: gone" if fails else "only where the job runs"
        await until(pilot, lambda: reason in text(app, "#stacks"))

    drive(work, replace(frame(), jobs=(job(2),)), stacks=broken if fails else None)


def test_what_programs_are_called_is_no_markup() -> None:
    odd = job(1, program="[red]x[/] \x1b[2J[/]")
    process = ProcessSample(7, user="[b]me", command="[/]python\x07")
    machine = replace(frame().machines[0], processes=(process,))

    async def work(pilot: Pilot[None], app: MonitorApp, _: object) -> None:
        (program,) = programs(app)
        assert "[red]x[/]" in program
        assert "\x1b" not in program
        await pilot.press("p")
        assert app.query_one("#processes").display
        ((*_, user, _gpu, command),) = [
            (*r[:1], r[1], r[2], r[-1]) for r in rows(app, "#processes")
        ]
        assert user == "[b]me"
        assert command.startswith("[/]python")

    drive(work, replace(frame(), machines=(machine,), jobs=(odd,)))


def test_the_last_frame_stays() -> None:
    async def work(pilot: Pilot[None], app: MonitorApp, frames: queue.Queue[Frame | None]) -> None:
        frames.put(None)
        await until(pilot, lambda: "the last frame" in text(app, "#machine"))
        assert programs(app)

    drive(work, frame())


def test_an_error_of_the_source_ends_it_and_comes_out() -> None:
    def frames() -> Iterator[Frame]:
        yield frame()
        raise RuntimeError("broken")

    app = MonitorApp(FrameFeed(frames()))

    async def run() -> None:
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.feed.failed)
            await pilot.pause()

    asyncio.run(run())
    with pytest.raises(RuntimeError, match="broken"):
        app.feed.check()
