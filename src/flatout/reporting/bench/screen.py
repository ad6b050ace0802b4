"""What `flatout bench` prints: a table for each device, findings with cures, PASS or FAIL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.ceiling import Benched, Ceiling
from flatout.reporting import plain
from flatout.reporting.bench.document import share
from flatout.reporting.doctor import print_entry, print_finding
from flatout.reporting.paragraphs import Line, show, styled

if TYPE_CHECKING:
    from rich.console import Console

TITLE, VALUE, UNIT, SHEET = 38, 9, 10, 16
"""Column widths; the size that reached the ceiling gets the rest of the line."""
SMALLER = {"TFLOP/s": "GFLOP/s"}


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


def figure(ceiling: Ceiling) -> tuple[str, str]:
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
            show(console, Line(plain.cut(_row(ceiling, sheet, wide), console.width)))


def _row(ceiling: Ceiling, sheet: bool, wide: bool) -> str:
    value, unit = figure(ceiling)
    line = f"  {plain.cut(plain.one_line(ceiling.title), TITLE - 1):<{TITLE}}"
    line += f"{value:>{VALUE}} {unit:<{UNIT}}"
    if sheet:
        line += f"{_of_sheet(ceiling):>{SHEET}}"
    if wide:
        line += f"  {plain.one_line(ceiling.best)}"
    return line.rstrip()


def _of_sheet(ceiling: Ceiling) -> str:
    ratio = share(ceiling)
    return f"{units.share(ratio)} of {ceiling.datasheet:,.4g}" if ratio is not None else ""


def _closing(benched: Benched) -> Iterator[tuple[str, str, str]]:
    if benched.interrupted:
        count = units.count(len(benched.ceilings), "ceiling")
        yield "interrupted", f"after {count}; the rest was not measured", "bold yellow"
    if benched.passed is not None:
        word, style = ("PASS", "bold green") if benched.passed else ("FAIL", "bold red")
        yield word, _why(benched), style
    how = "--quick" if benched.quick else "all sizes"
    when = f"measured {benched.date}" if benched.cached else f"in {units.duration(benched.wall_s)}"
    yield "measured", f"with torch {benched.torch or units.UNKNOWN}, {how}, {when}", "bold"
    if benched.findings:
        yield "next", f"flatout explain {benched.findings[0].code}", "bold cyan"


def _why(benched: Benched) -> str:
    names = ", ".join(dict.fromkeys(device.name or device.device for device in benched.devices))
    if benched.passed:
        return f"{names}: this is {benched.expected}, and it performs as expected"
    if not benched.devices:
        return f"expected {benched.expected}, and torch sees no GPU"
    codes = ", ".join(dict.fromkeys(finding.code for finding in benched.findings))
    return f"expected {benched.expected}, found {names}: {codes or 'not everything was measured'}"
