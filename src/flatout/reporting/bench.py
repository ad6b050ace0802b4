"""What `flatout bench` shows: progress, a table for each device, findings, PASS or FAIL; JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flatout.nouns import units
from flatout.nouns.ceiling import Benched, Ceiling
from flatout.reporting import plain
from flatout.reporting.doctor import print_entry, print_finding
from flatout.reporting.document import as_object
from flatout.reporting.moving_line import MovingLine
from flatout.reporting.paragraphs import Line, show, styled

if TYPE_CHECKING:
    from rich.console import Console

BENCH = "flatout.bench/1"
"""A field once published keeps its name and meaning."""
TITLE, VALUE, UNIT, SHEET = 38, 9, 10, 16
"""Column widths; the size that reached the ceiling gets the rest of the line."""
SMALLER = {"TFLOP/s": "GFLOP/s"}


class BenchView(MovingLine):
    """Shows each ceiling as it is measured."""

    first = "looking at the machine"

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self._count = self._done = 0

    def planned(self, count: int) -> None:
        """`count` ceilings will be measured."""
        self._count = count

    def begun(self, ceiling: Ceiling) -> None:
        """A ceiling is being measured."""
        self._show(ceiling)

    def point(self, ceiling: Ceiling) -> None:
        """One of the ceiling's sizes has been measured."""
        self._show(ceiling)

    def ended(self, ceiling: Ceiling) -> None:
        """The ceiling has its value, or will have none."""
        self._done += 1
        if self._status is None:
            value, unit = _figure(ceiling)
            outcome = f"{value} {unit}" if ceiling.value is not None else ceiling.note
            self._print(
                f"[{self._done}/{self._count}] {ceiling.device}, {ceiling.title}: {outcome}"
            )

    def _show(self, ceiling: Ceiling) -> None:
        if self._status is None:
            return
        value, unit = _figure(ceiling)
        value_text = f": {value} {unit}" if ceiling.value is not None else ""
        text = f"{self._done + 1} of {self._count}  {ceiling.device}, {ceiling.title}{value_text}"
        self._move(text)


def bench(benched: Benched, console: Console | None = None) -> None:
    """Print everything; on stdout unless another console is given."""
    from rich.console import Console

    console = console or Console()
    names = {device.device: device.name for device in benched.devices}
    names.setdefault("cpu", benched.machine.cpu)
    devices = list(dict.fromkeys(ceiling.device for ceiling in benched.ceilings if ceiling.device))
    for device in devices:
        rows = [ceiling for ceiling in benched.ceilings if ceiling.device == device]
        _table(console, device, names.get(device), rows)
        show(console, Line(""))
    missing = [ceiling for ceiling in benched.ceilings if ceiling.value is None]
    for ceiling in missing:
        where = f" on {ceiling.device}" if ceiling.device else ""
        reason = f"{ceiling.title}{where}: {ceiling.note or 'not measured'}"
        print_entry(console, ("no figure", reason, "bold yellow"))
    for finding in benched.findings:
        print_finding(console, finding)
        show(console, Line(""))
    for entry in _closing(benched):
        print_entry(console, entry)


def _figure(ceiling: Ceiling) -> tuple[str, str]:
    """Value and unit in readable form: 0.35 TFLOP/s is 350 GFLOP/s."""
    value, unit = ceiling.value, ceiling.unit
    if value is None:
        return "-", ""
    if unit in SMALLER and value < 1:
        value, unit = value * 1000, SMALLER[unit]
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f}", unit


def _table(console: Console, device: str, name: str | None, rows: list[Ceiling]) -> None:
    title = f"{device:<10}{plain.one_line(name or units.UNKNOWN)}"
    show(console, Line(title))
    wide = console.width >= 100
    sheet = any(ceiling.datasheet for ceiling in rows)
    head = f"  {'':{TITLE}}{'measured':>{VALUE + 1 + UNIT}}"
    head += f"{'of data sheet':>{SHEET}}" if sheet else ""
    show(console, styled(head + ("  at" if wide else ""), "dim"))
    for ceiling in rows:
        if ceiling.value is not None:
            value, unit = _figure(ceiling)
            line = f"  {plain.cut(plain.one_line(ceiling.title), TITLE - 1):<{TITLE}}"
            line += f"{value:>{VALUE}} {unit:<{UNIT}}"
            if sheet:
                of_sheet = ""
                if (ratio := _share(ceiling)) is not None:
                    of_sheet = f"{units.share(ratio)} of {ceiling.datasheet:,.4g}"
                line += f"{of_sheet:>{SHEET}}"
            if wide:
                line += f"  {plain.one_line(ceiling.best)}"
            show(console, Line(plain.cut(line.rstrip(), console.width)))


def _closing(benched: Benched) -> Iterator[tuple[str, str, str]]:
    if benched.interrupted:
        count = units.count(len(benched.ceilings), "ceiling")
        yield "interrupted", f"after {count}; the rest was not measured", "bold yellow"
    if benched.passed is not None:
        word, style = ("PASS", "bold green") if benched.passed else ("FAIL", "bold red")
        names = ", ".join(dict.fromkeys(device.name or device.device for device in benched.devices))
        if benched.passed:
            why = f"{names}: this is {benched.expected}, and it performs as expected"
        elif not benched.devices:
            why = f"expected {benched.expected}, and torch sees no GPU"
        else:
            codes = ", ".join(dict.fromkeys(finding.code for finding in benched.findings))
            found = codes or "not everything was measured"
            why = f"expected {benched.expected}, found {names}: {found}"
        yield word, why, style
    how = "--quick" if benched.quick else "all sizes"
    torch, took = benched.torch or units.UNKNOWN, units.duration(benched.wall_s)
    yield "measured", f"with torch {torch}, {how}, in {took}", "bold"
    if benched.findings:
        yield "next", f"flatout explain {benched.findings[0].code}", "bold cyan"


def bench_document(benched: Benched) -> dict[str, Any]:
    """What `flatout bench --json` prints; values that were not measured are null."""
    return as_object(
        {
            "schema": BENCH,
            "ceilings": [
                {
                    "id": ceiling.id,
                    "title": ceiling.title,
                    "device": ceiling.device,
                    "value": ceiling.value,
                    "unit": ceiling.unit,
                    "datasheet": ceiling.datasheet,
                    "share": _share(ceiling),
                    "best": ceiling.best,
                    "curve": ceiling.curve,
                    "note": ceiling.note,
                }
                for ceiling in benched.ceilings
            ],
            "findings": benched.findings,
            "expected": benched.expected,
            "passed": benched.passed,
            "machine": benched.machine,
            "torch": benched.torch,
            "devices": benched.devices,
            "quick": benched.quick,
            "date": benched.date,
            "interrupted": benched.interrupted,
            "busy": benched.busy,
            "wall_s": benched.wall_s,
        }
    )


def _share(ceiling: Ceiling) -> float | None:
    """The share of the data sheet's figure, or None if not measured or not on the sheet."""
    if ceiling.value is None or not ceiling.datasheet:
        return None
    return ceiling.value / ceiling.datasheet
