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
"""A trace's names of data types, and torch's."""
KERNEL_COLUMNS = (
    "Kernel",
    "Kind",
    "Time",
    "Of the step",
    "Calls",
    "Each",
    "Line",
    "Operator",
    "Tensor cores",
    "Occupancy",
)
DEVICE_COLUMNS = (
    "GPU",
    "Name",
    "Utilisation",
    "Power",
    "Clock",
    "Temperature",
    "Memory",
    "Held back by",
)
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
class ReportRow:
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
    rows: tuple[ReportRow, ...]
    many: bool = False

    def numbers(self, column: int) -> bool:
        """Whether the column holds numbers."""
        return any(row.cells[column].value is not None for row in self.rows)

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds that occur, with their names: what can be filtered by."""
        present = {row.kind for row in self.rows if row.kind is not None}
        return {str(kind): words.kind(kind) for kind in Kind if kind in present}


def kernels(profile: Profile) -> Table:
    """Kernels by name, the costliest first."""
    step = profile.anatomy.step_ms
    rows = [
        ReportRow(
            (
                _name(kernel.name),
                _kind(kernel.kind),
                _ms(kernel.ms),
                _share(kernel.ms, step),
                _number(kernel.calls),
                _each(kernel.ms, kernel.calls),
                _where(kernel.where),
                Cell(plain.one_line(kernel.operator), style="short"),
                Cell({True: "yes", False: "no", None: ""}[kernel.tensor_cores]),
                _percent(kernel.occupancy),
            ),
            kernel.ms,
            kernel.kind,
        )
        for kernel in sorted(profile.kernels, key=lambda kernel: -kernel.ms)
    ]
    return _many("kernels", "Kernels", KERNEL_COLUMNS, rows)


def operators(profile: Profile) -> Table:
    """Operators and Python calls, the costliest first."""
    cpu = profile.anatomy.device == "cpu"
    rows = []
    for operator in sorted(
        profile.operators, key=lambda operator: -(operator.host_ms + operator.device_ms)
    ):
        ms = operator.host_ms if cpu else operator.device_ms
        rate = words.flops_per_s(operator.flops, ms) if operator.flops and ms > 0 else ""
        cells = (
            _name(f"{operator.name} (backward)" if operator.backward else operator.name),
            _kind(operator.kind),
            *(() if cpu else (_ms(operator.device_ms),)),
            _ms(operator.host_ms),
            _number(operator.calls),
            _where(operator.where),
            Cell(rate, (operator.flops or 0.0) / ms if ms > 0 else 0.0),
            Cell(plain.one_line(", ".join(DTYPES.get(dtype, dtype) for dtype in operator.dtypes))),
            Cell(plain.one_line("; ".join(operator.shapes)), style="short"),
        )
        rows.append(ReportRow(cells, ms, operator.kind))
    times = ("Time",) if cpu else ("On the device", "On the host")
    columns = ("Operator", "Kind", *times, "Calls", "Line", "Reached", "Types", "Shapes")
    return _many("operators", "Operators", columns, rows)


def waits(profile: Profile) -> list[Table]:
    """Small tables: gaps, syncs, copies, collectives and Python calls, where there are any."""
    candidates = (
        _gaps(profile),
        _syncs(profile),
        _copies(profile),
        _collectives(profile),
        _calls(profile),
    )
    return [_few(table) for table in candidates if table.rows]


def ranks(profile: Profile) -> Table:
    """One row for each rank; the slow ones are marked."""
    steps = sorted(rank.step_ms for rank in profile.ranks)
    median_ms = steps[len(steps) // 2] if steps else 0.0
    computing = sorted(rank.compute_ms for rank in profile.ranks)
    median_compute_ms = computing[len(computing) // 2] if computing else 0.0
    rows = [_rank(rank, median_ms, median_compute_ms) for rank in profile.ranks]
    note = "A rank that computes longer than the others makes them wait: it is marked."
    columns = ("Rank", "Step", "Busy", "Computing", "Communicating")
    return Table("ranks", "Ranks", note, columns, tuple(rows))


def devices(profile: Profile) -> Table:
    """What the driver reported of each GPU while the window was recorded."""
    rows = tuple(ReportRow(_device(sample)) for sample in profile.devices)
    note = "Means over the samples taken while the window was recorded."
    return Table("devices", "Devices", note, DEVICE_COLUMNS, rows)


def ceilings(profile: Profile) -> Table:
    """What was measured of this hardware, beside its data sheet."""
    rows = [
        ReportRow(
            (
                Cell(plain.one_line(ceiling.title)),
                Cell(plain.one_line(ceiling.device)),
                Cell(units.rate(ceiling.value, ceiling.unit), ceiling.value),
                Cell(units.rate(ceiling.datasheet, ceiling.unit) if ceiling.datasheet else ""),
                Cell(plain.one_line(ceiling.best), style="short"),
            )
        )
        for ceiling in profile.ceilings
        if ceiling.value is not None
    ]
    columns = ("Ceiling", "Device", "Measured", "Data sheet", "At")
    return Table("ceilings", "Ceilings", "As `flatout bench` measured them.", columns, tuple(rows))


def _many(id_: str, title: str, columns: tuple[str, ...], rows: list[ReportRow]) -> Table:
    note = "Per step."
    if len(rows) > AT_MOST:
        omitted = rows[AT_MOST:]
        time = units.milliseconds(sum(row.ms for row in omitted))
        note = f"Per step. {len(omitted):,} more, {time} together, are in the JSON (--json)."
    shown = sorted(rows[:AT_MOST], key=lambda row: -row.ms)
    return _without_empty(Table(id_, title, note, columns, tuple(shown), many=True))


def _few(table: Table) -> Table:
    """The table without its tail and its empty columns."""
    note = table.note
    if len(table.rows) > FEW:
        note = f"{note} {len(table.rows) - FEW:,} smaller ones are in the JSON (--json)."
    rows = table.rows[:FEW]
    return _without_empty(dataclasses.replace(table, note=note, rows=rows))


def _without_empty(table: Table) -> Table:
    indices = [
        index
        for index in range(len(table.columns))
        if any(row.cells[index].text for row in table.rows)
    ]
    rows = tuple(
        dataclasses.replace(row, cells=tuple(row.cells[index] for index in indices))
        for row in table.rows
    )
    columns = tuple(table.columns[index] for index in indices)
    return dataclasses.replace(table, columns=columns, rows=rows)


def _gaps(profile: Profile) -> Table:
    rows = [
        ReportRow(
            (
                _kind(gap.kind),
                _ms(gap.ms),
                _share(gap.ms, profile.anatomy.step_ms),
                _number(gap.count),
                Cell(plain.one_line(gap.doing), style="short"),
                _where(gap.where),
            ),
            kind=gap.kind,
        )
        for gap in profile.gaps
    ]
    columns = ("Cause", "Time", "Of the step", "Gaps", "What the host did meanwhile", "Line")
    note = "Times in which the device did nothing, by cause and line."
    return Table("gaps", "Idle", note, columns, tuple(rows))


def _syncs(profile: Profile) -> Table:
    rows = [
        ReportRow(
            (
                Cell(plain.one_line(sync.name)),
                _number(sync.calls),
                _ms(sync.ms),
                _ms(sync.idle_ms),
                _where(sync.where),
            )
        )
        for sync in profile.syncs
    ]
    columns = ("Call", "Calls", "The host waited", "The device ran dry", "Line")
    note = "Calls in which the host waits for the device."
    return Table("syncs", "Synchronising calls", note, columns, tuple(rows))


def _copies(profile: Profile) -> Table:
    rows = [
        ReportRow(
            (
                Cell(copy.direction),
                Cell({True: "pinned", False: "pageable", None: ""}[copy.pinned]),
                _number(copy.calls),
                Cell(units.size(copy.bytes), copy.bytes),
                _ms(copy.ms),
                Cell(words.bytes_per_s(copy.bytes, copy.ms)),
                _ms(copy.exposed_ms),
                _where(copy.where),
            )
        )
        for copy in profile.copies
    ]
    columns = ("Direction", "Memory", "Copies", "Amount", "Time", "Reached", "Exposed", "Line")
    note = "Between host and device, and on devices. Exposed: while nothing computes."
    return Table("copies", "Copies", note, columns, tuple(rows))


def _collectives(profile: Profile) -> Table:
    rows = [
        ReportRow(
            (
                Cell(collective.name),
                _number(collective.calls),
                Cell(
                    units.size(collective.bytes) if collective.bytes else "",
                    collective.bytes or 0.0,
                ),
                _ms(collective.ms),
                _ms(collective.exposed_ms),
            )
        )
        for collective in profile.collectives
    ]
    columns = ("Communication", "Calls", "Amount", "Time", "Exposed")
    note = "Between devices. Exposed: while nothing computes."
    return Table("collectives", "Communication", note, columns, tuple(rows))


def _calls(profile: Profile) -> Table:
    calls = profile.seen.calls if profile.seen is not None else ()
    rows = [
        ReportRow(
            (
                Cell(plain.one_line(f"{call.name} {call.detail}")),
                _number(call.calls),
                _ms(call.s * 1000),
                Cell(plain.one_line(call.where or ""), style="where"),
            )
        )
        for call in calls
    ]
    note = "Python calls that a training loop should not make, or not in each step."
    return Table("calls", "Calls in the loop", note, ("Call", "Calls", "Time", "Line"), tuple(rows))


def _rank(rank: RankSeen, median_ms: float, median_compute_ms: float) -> ReportRow:
    style = "slow" if rank.compute_ms > SLOWER * median_compute_ms else ""
    times = (rank.step_ms, rank.busy_ms, rank.compute_ms, rank.communication_ms)
    step, busy, compute, communication = (_ms(value) for value in times)
    if rank.step_ms > SLOWER * median_ms:
        step = Cell(step.text, step.value, "slow")
    compute_cell = Cell(compute.text, compute.value, style)
    return ReportRow((Cell(str(rank.rank), rank.rank), step, busy, compute_cell, communication))


def _device(sample: DeviceSample) -> tuple[Cell, ...]:
    limits = ", ".join(sample.throttled)
    return (
        Cell(str(sample.index), sample.index),
        Cell(plain.one_line(sample.name or units.UNKNOWN)),
        Cell(units.share(sample.utilisation)),
        Cell(_of(sample.power_w, sample.power_limit_w, "W")),
        Cell(_of(sample.clock_mhz, sample.clock_max_mhz, "MHz")),
        Cell("" if sample.temperature_c is None else f"{sample.temperature_c:.0f} °C"),
        Cell(_memory(sample)),
        Cell(plain.one_line(limits) or "nothing", style="slow" if limits else ""),
    )


def _memory(sample: DeviceSample) -> str:
    if sample.memory_used_bytes is None:
        return units.UNKNOWN
    total = f" of {units.size(sample.memory_bytes)}" if sample.memory_bytes else ""
    return f"{units.size(sample.memory_used_bytes)}{total}"


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
    text = f"{value:,.0f}" if whole else f"{value:.2g}"
    return Cell(text, value)


def _share(ms: float, step_ms: float) -> Cell:
    share = ms / step_ms if step_ms else 0.0
    return Cell(units.share(share), share)


def _percent(value: float | None) -> Cell:
    return Cell("" if value is None else units.share(value), value if value is not None else -1.0)


def tables(profile: Profile) -> Iterable[Table]:
    """All that have rows."""
    candidates = [
        *waits(profile),
        kernels(profile),
        operators(profile),
        ranks(profile),
        devices(profile),
    ]
    return [table for table in candidates if table.rows]
