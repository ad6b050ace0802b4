"""`%load_ext flatout` in a notebook: `%%flatout` above a cell is flatout for that cell."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from flatout.in_process import cells, live
from flatout.nouns import units
from flatout.reporting.harmless import harmless

BUDGET_S = 120.0


class AllDecided(BaseException):
    """Ends the cell: everything is decided. Not for the program to catch."""


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
            _tune(BUDGET_S)
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
    """Tune the cell as `flatout tune` does a script; nothing is kept but the plan.

    A cell written out as a script would lack the variables of the cells above it, so it is executed
    in the kernel: until everything is decided, or for the time given. Then what it has trained is
    as it was before it.
    """
    begin_again = live.set_aside()
    ends_quietly = quiet_end()
    put_back = remembered(cells.shell().user_ns.values())
    run = live.RunHere(live.Asked(budget_s=budget_s, leave_loop=leave_loop))

    def cell_ended(result: Any) -> None:
        with harmless("the tuning of this cell has no result"):
            run.end(cells.interrupted(result))
        ends_quietly(result)
        put_back()
        begin_again()

    cells.after_this_cell(cell_ended)


def leave_loop() -> NoReturn:
    """Called between two steps, when everything is decided."""
    raise AllDecided


def quiet_end() -> Callable[[Any], None]:
    """Let `AllDecided` end the cell as if it were its end; returns what is to be done then."""
    shell = cells.shell()
    before = shell.custom_exceptions, shell.CustomTB
    shell.set_custom_exc((AllDecided,), lambda *arguments, **options: None)

    def cell_ended(result: Any) -> None:
        shell.custom_exceptions, shell.CustomTB = before
        if isinstance(result.error_in_exec, AllDecided):
            result.error_in_exec = None

    return cell_ended


def remembered(values: Iterable[Any]) -> Callable[[], None]:
    """Copy the state of all that has one (models, optimizers, schedules, scalers), and of the
    generators of random numbers; returns the way back.
    """
    owners = {
        id(value): value
        for value in values
        if not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    }
    states = [(owner, copy.deepcopy(owner.state_dict())) for owner in owners.values()]
    draws = _draws()

    def put_back() -> None:
        for owner, state in states:
            with harmless(f"a {type(owner).__name__} is not as it was before the cell"):
                owner.load_state_dict(state)
        for draw in draws:
            draw()

    return put_back


def _draws() -> list[Callable[[], None]]:
    """Ways back to the present states of the generators that are loaded."""
    state = random.getstate()
    ways: list[Callable[[], None]] = [lambda: random.setstate(state)]
    if (numpy := sys.modules.get("numpy")) is not None:
        of_numpy = numpy.random.get_state()
        ways.append(lambda: numpy.random.set_state(of_numpy))
    if (torch := sys.modules.get("torch")) is not None:
        of_torch = torch.get_rng_state()
        ways.append(lambda: torch.set_rng_state(of_torch))
        if torch.cuda.is_initialized():
            of_devices = torch.cuda.get_rng_state_all()
            ways.append(lambda: torch.cuda.set_rng_state_all(of_devices))
    return ways
