"""`%load_ext flatout` in a notebook: `%%flatout` above a cell is flatout for that cell."""

from __future__ import annotations

import sys
from typing import Any

from flatout.in_process import cell_tuning, cells, live
from flatout.nouns import units
from flatout.reporting.harmless import harmless


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext flatout`."""
    shell.register_magic_function(flatout, "line", "flatout")
    shell.input_transformers_cleanup.append(_as_line)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext flatout`."""
    shell.magics_manager.magics["line"].pop("flatout", None)
    shell.input_transformers_cleanup.remove(_as_line)


def _as_line(lines: list[str]) -> list[str]:
    """`%%flatout` above a cell is the line `%flatout` in it.

    So the cell is executed as ever: with its own line numbers, its last value, its errors, `await`.
    """
    if lines and lines[0].split()[:1] == ["%%flatout"]:
        return [lines[0][1:], *lines[1:]]
    return lines


def flatout(line: str) -> None:
    """Speed up, profile or tune the training in this cell.

    %%flatout               tune it while it trains, as flatout.live() does
    %%flatout profile       show where the time of its steps goes
    %%flatout profile 60    the same for a cell that takes no more than 60 steps
    %%flatout tune          find what makes it faster, in at most two minutes; the plan is written,
                            and what the cell has trained is put back to what it was
    %%flatout tune 10m      the same in at most ten minutes
    """
    words = line.split()
    match words:
        case []:
            _live()
        case ["profile"]:
            _profile(None)
        case ["profile", steps] if steps.isdecimal():
            _profile(int(steps))
        case ["tune"]:
            _tune(cell_tuning.BUDGET_S)
        case ["tune", time] if seconds := units.seconds(time):
            _tune(seconds)
        case _:
            usage = "%%flatout, %%flatout profile [STEPS], %%flatout tune [TIME]"
            error = sys.modules["IPython.core.error"].UsageError  # has no traceback in a notebook
            raise error(f"%%flatout {line.strip()}: there are {usage}")


def _live() -> None:
    if not live.is_on():  # else this cell is one as any other
        here = live.live()
        cells.after_this_cell(lambda result: here.end(cells.interrupted(result)))


def _profile(known_steps: int | None) -> None:
    from flatout.in_process.cell_profile import CellProfile

    begin_again = live.set_aside()
    profile = CellProfile(known_steps)

    def cell_ended(result: Any) -> None:
        with harmless("this cell has no profile"):
            profile.end()
        begin_again()

    cells.after_this_cell(cell_ended)


def _tune(budget_s: float) -> None:
    begin_again = live.set_aside()
    ends_quietly = cell_tuning.ends_quietly()
    put_back = cell_tuning.remembered(cells.shell().user_ns.values())
    run = live.RunHere(live.Asked(budget_s=budget_s, leave_loop=cell_tuning.leave_loop))

    def cell_ended(result: Any) -> None:
        with harmless("the tuning of this cell has no result"):
            run.end(cells.interrupted(result))
        ends_quietly(result)
        put_back()
        begin_again()

    cells.after_this_cell(cell_ended)
