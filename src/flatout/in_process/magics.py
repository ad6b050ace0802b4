"""`%load_ext flatout` in a notebook: `%%flatout` above a cell is flatout for that cell."""

from __future__ import annotations

import sys
from typing import Any

from flatout.in_process import cells, live
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
    """Speed up or profile the training in this cell.

    %%flatout               tune it while it trains, as flatout.live() does
    %%flatout profile       show where the time of its steps goes
    %%flatout profile 60    the same for a cell that takes no more than 60 steps
    """
    words = line.split()
    match words:
        case []:
            if not live.is_on():  # else this cell is one as any other
                here = live.live()
                cells.after_this_cell(lambda result: here.end(cells.interrupted(result)))
        case ["profile"]:
            _profile(None)
        case ["profile", steps] if steps.isdecimal():
            _profile(int(steps))
        case _:
            usage = "%%flatout and %%flatout profile [STEPS]"
            error = sys.modules["IPython.core.error"].UsageError  # has no traceback in a notebook
            raise error(f"%%flatout {line.strip()}: there are {usage}")


def _profile(known_steps: int | None) -> None:
    from flatout.in_process.cell_profile import CellProfile

    begin_again = live.set_aside()
    profile = CellProfile(known_steps)

    def cell_ended(result: Any) -> None:
        with harmless("this cell has no profile"):
            profile.end()
        begin_again()

    cells.after_this_cell(cell_ended)
