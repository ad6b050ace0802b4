"""`%%flatout profile`: a cell profiled in the kernel, with the variables that it finds there.

A cell written out as a script would lack the model and the loader of the cells above it, so this is
no process of its own. The cell is executed once, as it is, and its results are there afterwards.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from flatout.benching import ceilings
from flatout.diagnosing import checks
from flatout.diagnosing.diagnose import diagnose_profile
from flatout.in_process import cells
from flatout.in_process.live import command
from flatout.nouns import units
from flatout.nouns.profile import Profiled
from flatout.probing.identity import identity
from flatout.profiling import recording, records
from flatout.reporting import terminal
from flatout.reporting.harmless import warn
from flatout.reporting.profile import document, html
from flatout.running.one import folder
from flatout.running.one.records import Processes, Tail
from flatout.running.one.trial_process import write_orders
from flatout_agent import wire
from flatout_agent.process import start

REPORT = "flatout-profile.html"


class CellProfile:
    """From the beginning of a cell to its end."""

    def __init__(self, known_steps: int | None) -> None:
        """known_steps: that the cell takes, where they are few."""
        self._began, self._folder = time.monotonic(), folder.fresh("profile")
        self._orders = wire.ProfileOrders(known_steps=known_steps)
        orders = wire.Orders(
            str(self._folder / "records"), (), profile=self._orders, until_put_back=True
        )
        write_orders(orders, self._folder)
        self._agent = start.InThisProcess(orders)

    def end(self) -> None:
        """Put everything back, and print the profile and where its report is."""
        self._agent.put_back()
        processes = Processes(Tail(self._folder / "records").new()).all
        with cells.on_disk():
            profile = recording.profile_of(command(), processes, ceilings.cached(identity()))
            leading = records.leading(processes)
            if profile is None or leading is None:
                steps = max((process.step_count for process in processes), default=0)
                told = f"{units.count(steps, 'step')} of this cell are too few; let it take more"
                if not steps:
                    told = "no training step was seen in this cell"
                elif self._orders.known_steps is None and steps >= records.LEAST_STEPS:
                    cure = f"write `%%flatout profile {steps}`, so that they are shared out"
                    told = f"{units.count(steps, 'step')} of this cell are too few; {cure}"
                warn(f"no profile: {told}")
                return
            page, wall_s = self._folder / "report.html", time.monotonic() - self._began
            findings = diagnose_profile(profile)
            notes = records.notes(processes, leading, self._orders)
            profiled = _with_cells(
                Profiled(
                    profile,
                    findings,
                    notes,
                    checks=len(checks.JOB.files()),
                    wall_s=wall_s,
                    run_folder=str(self._folder),
                    report_path=str(page),
                )
            )
            text = json.dumps(document.document(profiled), indent=2) + "\n"
            (self._folder / "profile.json").write_text(text, encoding="utf-8")
            html.write_report(profiled, page)
        profiled = dataclasses.replace(profiled, report_path=str(cells.visible(page, REPORT)))
        terminal.profile(profiled, terminal.answers())


def _with_cells(value: Any) -> Any:
    """The same with each file of a cell under the cell's name."""
    if type(value) is str:
        return cells.named(value) if "ipykernel" in value else value
    if type(value) is tuple:
        return tuple(map(_with_cells, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    changed = {name: _with_cells(getattr(value, name)) for name in fields}
    return dataclasses.replace(value, **changed)
