"""`%%flatout tune`: a cell tuned as `flatout tune` does a script, and nothing kept but the plan.

A cell written out as a script would lack the variables of the cells above it, so it is executed in
the kernel: until everything is decided, or for the time given. Then what it has trained is as it
was before it.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from flatout.in_process import cells
from flatout.reporting.harmless import harmless

BUDGET_S = 120.0


class AllDecided(BaseException):
    """Ends the cell: everything is decided. Not for the program to catch."""


def leave_loop() -> NoReturn:
    """Called between two steps, when everything is decided."""
    raise AllDecided


def ends_quietly() -> Callable[[Any], None]:
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
