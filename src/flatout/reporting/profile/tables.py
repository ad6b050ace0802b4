"""The tables of a profile's page: what is in which column, and by what number it sorts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from flatout.nouns import units
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import DeviceSample, Place, Profile, RankSeen
from flatout.reporting import plain
from flatout.reporting.profile import words

AT_MOST = 400
"""Rows of one table; the rest is in the JSON."""
DTYPES = {
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "float": "float32",
    "double": "float64",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "unsigned char": "uint8",
    "signed char": "int8",
}
"""What a trace calls them, and what torch does."""
FEW = 12
"""Rows of a table that is read as a whole."""
SLOWER = 1.05
"""From this many times the median step on, a rank is marked."""


@dataclass(frozen=True)
class Cell:
    """One cell; `value` is what it is sorted by, where that is not its text."""

    text: str
    value: float | None = None
    style: str = ""
    """name, where, short, kind, slow."""


@dataclass(frozen=True)
class Row:
    """One row, with the time that it stands for."""

    cells: tuple[Cell, ...]
    ms: float = 0.0
    kind: Kind | None = None


@dataclass(frozen=True)
class Table:
    """One table; `many` has more rows than are read, and can be sorted and filtered."""

    id: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    many: bool = False

    def numbers(self, column: int) -> bool:
        """Whether the column holds numbers."""
        return any(row.cells[column].value is not None for row in self.rows)

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds that occur, with their names: what can be filtered by."""
        seen = {row.kind for row in self.rows if row.kind is not None}
        return {str(kind): words.kind(kind) for kind in Kind if kind in seen}


def kernels(profile: Profile) -> Table:
    """Kernels by name, the costliest first."""
    step = profile.anatomy.step_ms
    rows = [
        Row(
            (
                _name(item.name),
                _kind(item.kind),
                _ms(item.ms),
                _share(item.ms, step),
                _number(item.calls),
                _each(item.ms, item.calls),
                _where(item.where),
                Cell(plain.one_line(item.operator), style="short"),
                Cell({True: "yes", False: "no", None: ""}[item.tensor_cores]),
                _percent(item.occupancy),
            ),
            item.ms,
            item.kind,
        )
        for item in sorted(profile.kernels, key=lambda item: -item.ms)
    ]
    columns = (
        "Kernel", "Kind", "Time", "Of the step", "Calls", "Each", "Line", "Operator",
        "Tensor cores", "Occupancy",
    )  # fmt: skip
    return _many("kernels", "Kernels", columns, rows)


def operators(profile: Profile) -> Table:
    """Operators and Python calls, the costliest first."""
    cpu = profile.anatomy.device == "cpu"
    rows = []
    for item in sorted(profile.operators, key=lambda item: -(item.host_ms + item.device_ms)):
        ms = item.host_ms if cpu else item.device_ms
        rate = words.flops_per_s(item.flops, ms) if item.flops and ms > 0 else ""
        cells = (
            _name(f"{item.name} (backward)" if item.backward else item.name),
            _kind(item.kind),
            *(() if cpu else (_ms(item.device_ms),)),
            _ms(item.host_ms),
            _number(item.calls),
            _where(item.where),
            Cell(rate, (item.flops or 0.0) / ms if ms > 0 else 0.0),
            Cell(plain.one_line(", ".join(DTYPES.get(it, it) for it in item.dtypes))),
            Cell(plain.one_line("; ".join(item.shapes)), style="short"),
        )
        rows.append(Row(cells, ms, item.kind))
    times = ("Time",) if cpu else ("On the device", "On the host")
    columns = ("Operator", "Kind", *times, "Calls", "Line", "Reached", "Types", "Shapes")
    return _many("operators", "Operators", columns, rows)


def waits(profile: Profile) -> list[Table]:
    """Small tables: gaps, syncs, copies, collectives and Python calls, where there are any."""
    found = (
        _gaps(profile),
        _syncs(profile),
        _copies(profile),
        _collectives(profile),
        _calls(profile),
    )
    return [_few(table) for table in found if table.rows]


def ranks(profile: Profile) -> Table:
    """One row for each rank; the slow ones are marked."""
    steps = sorted(rank.step_ms for rank in profile.ranks)
    usual = steps[len(steps) // 2] if steps else 0.0
    computing = sorted(rank.compute_ms for rank in profile.ranks)
    busiest = computing[len(computing) // 2] if computing else 0.0
    rows = [_rank(rank, usual, busiest) for rank in profile.ranks]
    note = "A rank that computes longer than the others lets them wait: it is marked."
    columns = ("Rank", "Step", "Busy", "Computing", "Communicating")
    return Table("ranks", "Ranks", note, columns, tuple(rows))


def devices(profile: Profile) -> Table:
    """What the driver said of each GPU while the window was recorded."""
    rows = tuple(Row(_device(sample)) for sample in profile.devices)
    note = "Means over the samples that were taken while the window was recorded."
    columns = (
        "GPU", "Name", "Utilisation", "Power", "Clock", "Temperature", "Memory", "Held back by",
    )  # fmt: skip
    return Table("devices", "Devices", note, columns, rows)


def ceilings(profile: Profile) -> Table:
    """What was measured of this hardware, beside its data sheet."""
    rows = [
        Row(
            (
                Cell(plain.one_line(item.title)),
                Cell(plain.one_line(item.device)),
                Cell(units.rate(item.value, item.unit), item.value),
                Cell(units.rate(item.datasheet, item.unit) if item.datasheet else ""),
                Cell(plain.one_line(item.best), style="short"),
            )
        )
        for item in profile.ceilings
        if item.value is not None
    ]
    columns = ("Ceiling", "Device", "Measured", "Data sheet", "At")
    return Table("ceilings", "Ceilings", "As `flatout bench` measured them.", columns, tuple(rows))


def _many(id_: str, title: str, columns: tuple[str, ...], rows: list[Row]) -> Table:
    note = "Per step."
    if len(rows) > AT_MOST:
        left = rows[AT_MOST:]
        time = units.milliseconds(sum(row.ms for row in left))
        note = f"Per step. {len(left):,} more, {time} together, are in the JSON (--json)."
    kept = sorted(rows[:AT_MOST], key=lambda row: -row.ms)
    return _without_empty(Table(id_, title, note, columns, tuple(kept), many=True))


def _few(table: Table) -> Table:
    """The table without its tail, and without columns in which nothing stands."""
    note = table.note
    if len(table.rows) > FEW:
        note = f"{note} {len(table.rows) - FEW:,} smaller ones are in the JSON (--json)."
    rows = table.rows[:FEW]
    return _without_empty(dataclasses.replace(table, note=note, rows=rows))


def _without_empty(table: Table) -> Table:
    kept = [
        number
        for number in range(len(table.columns))
        if any(row.cells[number].text for row in table.rows)
    ]
    rows = tuple(
        dataclasses.replace(row, cells=tuple(row.cells[number] for number in kept))
        for row in table.rows
    )
    columns = tuple(table.columns[number] for number in kept)
    return dataclasses.replace(table, columns=columns, rows=rows)


def _gaps(profile: Profile) -> Table:
    rows = [
        Row(
            (
                _kind(item.kind),
                _ms(item.ms),
                _share(item.ms, profile.anatomy.step_ms),
                _number(item.count),
                Cell(plain.one_line(item.doing), style="short"),
                _where(item.where),
            ),
            kind=item.kind,
        )
        for item in profile.gaps
    ]
    columns = ("Cause", "Time", "Of the step", "Gaps", "What the host did meanwhile", "Line")
    note = "Times in which the device did nothing, by cause and line."
    return Table("gaps", "Idle", note, columns, tuple(rows))


def _syncs(profile: Profile) -> Table:
    rows = [
        Row(
            (
                Cell(plain.one_line(item.name)),
                _number(item.calls),
                _ms(item.ms),
                _ms(item.idle_ms),
                _where(item.where),
            )
        )
        for item in profile.syncs
    ]
    columns = ("Call", "Calls", "The host waited", "The device ran dry", "Line")
    note = "Calls in which the host waits for the device."
    return Table("syncs", "Synchronising calls", note, columns, tuple(rows))


def _copies(profile: Profile) -> Table:
    rows = [
        Row(
            (
                Cell(item.direction),
                Cell({True: "pinned", False: "pageable", None: ""}[item.pinned]),
                _number(item.calls),
                Cell(units.size(item.bytes), item.bytes),
                _ms(item.ms),
                Cell(words.bytes_per_s(item.bytes, item.ms)),
                _ms(item.exposed_ms),
                _where(item.where),
            )
        )
        for item in profile.copies
    ]
    columns = ("Direction", "Memory", "Copies", "Amount", "Time", "Reached", "Exposed", "Line")
    note = "Between host and device, and on devices. Exposed: while nothing computes."
    return Table("copies", "Copies", note, columns, tuple(rows))


def _collectives(profile: Profile) -> Table:
    rows = [
        Row(
            (
                Cell(item.name),
                _number(item.calls),
                Cell(units.size(item.bytes) if item.bytes else "", item.bytes or 0.0),
                _ms(item.ms),
                _ms(item.exposed_ms),
            )
        )
        for item in profile.collectives
    ]
    columns = ("Communication", "Calls", "Amount", "Time", "Exposed")
    note = "Between devices. Exposed: while nothing computes."
    return Table("collectives", "Communication", note, columns, tuple(rows))


def _calls(profile: Profile) -> Table:
    seen = profile.seen.calls if profile.seen is not None else ()
    rows = [
        Row(
            (
                Cell(plain.one_line(f"{item.name} {item.detail}")),
                _number(item.calls),
                _ms(item.s * 1000),
                Cell(plain.one_line(item.where or ""), style="where"),
            )
        )
        for item in seen
    ]
    note = "Python calls that a training loop should not make, or not in each step."
    return Table("calls", "Calls in the loop", note, ("Call", "Calls", "Time", "Line"), tuple(rows))


def _rank(rank: RankSeen, usual: float, busiest: float) -> Row:
    slow = "slow" if rank.compute_ms > SLOWER * busiest else ""
    times = (rank.step_ms, rank.busy_ms, rank.compute_ms, rank.communication_ms)
    step, busy, compute, communication = (_ms(value) for value in times)
    if rank.step_ms > SLOWER * usual:
        step = Cell(step.text, step.value, "slow")
    marked = Cell(compute.text, compute.value, slow)
    return Row((Cell(str(rank.rank), rank.rank), step, busy, marked, communication))


def _device(sample: DeviceSample) -> tuple[Cell, ...]:
    held = ", ".join(sample.throttled)
    return (
        Cell(str(sample.index), sample.index),
        Cell(plain.one_line(sample.name or units.UNKNOWN)),
        Cell(units.share(sample.utilisation)),
        Cell(_of(sample.power_w, sample.power_limit_w, "W")),
        Cell(_of(sample.clock_mhz, sample.clock_max_mhz, "MHz")),
        Cell("" if sample.temperature_c is None else f"{sample.temperature_c:.0f} °C"),
        Cell(_memory(sample)),
        Cell(plain.one_line(held) or "nothing", style="slow" if held else ""),
    )


def _memory(sample: DeviceSample) -> str:
    if sample.memory_used_bytes is None:
        return units.UNKNOWN
    of = f" of {units.size(sample.memory_bytes)}" if sample.memory_bytes else ""
    return f"{units.size(sample.memory_used_bytes)}{of}"


def _of(value: float | None, limit: float | None, unit: str) -> str:
    if value is None:
        return units.UNKNOWN
    return f"{value:.0f} of {limit:.0f} {unit}" if limit else f"{value:.0f} {unit}"


def _name(text: str) -> Cell:
    return Cell(plain.one_line(text).removeprefix("void "), style="name")


def _kind(kind: Kind) -> Cell:
    return Cell(words.kind(kind), style=f"kind k-{kind}")


def _where(place: Place | None) -> Cell:
    return Cell(plain.one_line(str(place)) if place else "", style="where")


def _ms(value: float) -> Cell:
    small = 0 < abs(value) < 0.1
    return Cell(f"{value * 1000:.3g} us" if small else units.milliseconds(value), value)


def _each(ms: float, calls: float) -> Cell:
    return _ms(ms / calls) if calls else Cell("", 0.0)


def _number(value: float) -> Cell:
    """Means over steps: 12 calls, 0.5 calls."""
    whole = value >= 9.95 or value == round(value)
    shown = f"{value:,.0f}" if whole else f"{value:.2g}"
    return Cell(shown, value)


def _share(ms: float, step_ms: float) -> Cell:
    share = ms / step_ms if step_ms else 0.0
    return Cell(units.share(share), share)


def _percent(value: float | None) -> Cell:
    return Cell("" if value is None else units.share(value), value if value is not None else -1.0)


def tables(profile: Profile) -> Iterable[Table]:
    """All that have rows."""
    found = [
        *waits(profile),
        kernels(profile),
        operators(profile),
        ranks(profile),
        devices(profile),
    ]
    return [table for table in found if table.rows]
