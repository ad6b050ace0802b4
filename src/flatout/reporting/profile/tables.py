"""The tables of a profile's page: the content of each column, and its sort key."""

from __future__ import annotations

from collections.abc import Iterable

from flatout.nouns import units
from flatout.nouns.profile import Collective, Profile
from flatout.reporting import plain
from flatout.reporting.profile import cells, words
from flatout.reporting.profile.cells import Cell, ReportRow, Table

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
"""A trace's names of data types -> torch's."""
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
SLOWER = 1.05
"""A rank is marked from this many times the median step on."""


def kernels(profile: Profile) -> Table:
    """Kernels by name, the costliest first."""
    step = profile.anatomy.step_ms
    rows = [
        ReportRow(
            (
                cells.name(kernel.name),
                cells.kind(kernel.kind),
                cells.milliseconds(kernel.ms),
                cells.share(kernel.ms, step),
                cells.number(kernel.calls),
                cells.each(kernel.ms, kernel.calls),
                cells.where(kernel.where),
                Cell(plain.one_line(kernel.operator), style="short"),
                Cell({True: "yes", False: "no", None: ""}[kernel.tensor_cores]),
                cells.percent(kernel.occupancy),
            ),
            kernel.ms,
            kernel.kind,
        )
        for kernel in sorted(profile.kernels, key=lambda kernel: -kernel.ms)
    ]
    return cells.many("kernels", "Kernels", KERNEL_COLUMNS, rows)


def operators(profile: Profile) -> Table:
    """Operators and Python calls, the costliest first."""
    cpu = profile.anatomy.device == "cpu"
    rows = []
    for operator in sorted(
        profile.operators, key=lambda operator: -(operator.host_ms + operator.device_ms)
    ):
        ms = operator.host_ms if cpu else operator.device_ms
        rate = words.flops_per_s(operator.flops, ms) if operator.flops and ms > 0 else ""
        row_cells = (
            cells.name(f"{operator.name} (backward)" if operator.backward else operator.name),
            cells.kind(operator.kind),
            *(() if cpu else (cells.milliseconds(operator.device_ms),)),
            cells.milliseconds(operator.host_ms),
            cells.number(operator.calls),
            cells.where(operator.where),
            Cell(rate, (operator.flops or 0.0) / ms if ms > 0 else 0.0),
            Cell(plain.one_line(", ".join(DTYPES.get(dtype, dtype) for dtype in operator.dtypes))),
            Cell(plain.one_line("; ".join(operator.shapes)), style="short"),
        )
        rows.append(ReportRow(row_cells, ms, operator.kind))
    times = ("Time",) if cpu else ("On the device", "On the host")
    columns = ("Operator", "Kind", *times, "Calls", "Line", "Reached", "Types", "Shapes")
    return cells.many("operators", "Operators", columns, rows)


def waits(profile: Profile) -> list[Table]:
    """Small tables: gaps, syncs, copies, collectives and Python calls, if there are any."""
    candidates = (
        _gaps(profile),
        _syncs(profile),
        _copies(profile),
        _collectives(profile),
        _calls(profile),
    )
    return [cells.few(table) for table in candidates if table.rows]


def ranks(profile: Profile) -> Table:
    """One row for each rank; the slow ones are marked."""
    steps = sorted(rank.step_ms for rank in profile.ranks)
    median_ms = steps[len(steps) // 2] if steps else 0.0
    computing = sorted(rank.compute_ms for rank in profile.ranks)
    median_compute_ms = computing[len(computing) // 2] if computing else 0.0
    rows = []
    for rank in profile.ranks:
        style = "slow" if rank.compute_ms > SLOWER * median_compute_ms else ""
        times = (rank.step_ms, rank.busy_ms, rank.compute_ms, rank.communication_ms)
        step, busy, compute, communication = (cells.milliseconds(value) for value in times)
        if rank.step_ms > SLOWER * median_ms:
            step = Cell(step.text, step.value, "slow")
        compute = Cell(compute.text, compute.value, style)
        number = Cell(str(rank.rank), rank.rank)
        rows.append(ReportRow((number, step, busy, compute, communication)))
    note = "A rank that computes longer than the others makes them wait: it is marked."
    columns = ("Rank", "Step", "Busy", "Computing", "Communicating")
    return Table("ranks", "Ranks", note, columns, tuple(rows))


def devices(profile: Profile) -> Table:
    """What the driver reported about each GPU while the window was recorded."""
    rows = []
    for sample in profile.devices:
        limits = ", ".join(sample.throttled)
        memory = units.UNKNOWN
        if sample.memory_used_bytes is not None:
            total = f" of {units.size(sample.memory_bytes)}" if sample.memory_bytes else ""
            memory = f"{units.size(sample.memory_used_bytes)}{total}"
        row_cells = (
            Cell(str(sample.index), sample.index),
            Cell(plain.one_line(sample.name or units.UNKNOWN)),
            Cell(units.share(sample.utilisation)),
            Cell(_of(sample.power_w, sample.power_limit_w, "W")),
            Cell(_of(sample.clock_mhz, sample.clock_max_mhz, "MHz")),
            Cell("" if sample.temperature_c is None else f"{sample.temperature_c:.0f} °C"),
            Cell(memory),
            Cell(plain.one_line(limits) or "nothing", style="slow" if limits else ""),
        )
        rows.append(ReportRow(row_cells))
    note = "Means over the samples taken while the window was recorded."
    return Table("devices", "Devices", note, DEVICE_COLUMNS, tuple(rows))


def ceilings(profile: Profile) -> Table:
    """The measured ceilings of this hardware, beside its data sheet."""
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


def _gaps(profile: Profile) -> Table:
    rows = [
        ReportRow(
            (
                cells.kind(gap.kind),
                cells.milliseconds(gap.ms),
                cells.share(gap.ms, profile.anatomy.step_ms),
                cells.number(gap.count),
                Cell(plain.one_line(gap.doing), style="short"),
                cells.where(gap.where),
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
                cells.number(sync.calls),
                cells.milliseconds(sync.ms),
                cells.milliseconds(sync.idle_ms),
                cells.where(sync.where),
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
                cells.number(copy.calls),
                Cell(units.size(copy.bytes), copy.bytes),
                cells.milliseconds(copy.ms),
                Cell(words.bytes_per_s(copy.bytes, copy.ms)),
                cells.milliseconds(copy.exposed_ms),
                cells.where(copy.where),
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
                cells.number(collective.calls),
                Cell(
                    units.size(collective.bytes) if collective.bytes else "",
                    collective.bytes or 0.0,
                ),
                cells.milliseconds(collective.ms),
                cells.milliseconds(collective.exposed_ms),
                _bus(collective),
            )
        )
        for collective in profile.collectives
    ]
    columns = ("Communication", "Calls", "Amount", "Time", "Exposed", "Reached")
    note = (
        "Between devices. Exposed: while nothing computes. Reached: bus bandwidth of the fastest "
    )
    note += "large message."
    return Table("collectives", "Communication", note, columns, tuple(rows))


def _bus(collective: Collective) -> Cell:
    reached = collective.bus_gb_per_s
    return Cell("" if reached is None else f"{reached:,.1f} GB/s", reached or 0.0)


def _calls(profile: Profile) -> Table:
    calls = profile.seen.calls if profile.seen is not None else ()
    rows = [
        ReportRow(
            (
                Cell(plain.one_line(f"{call.name} {call.detail}")),
                cells.number(call.calls),
                cells.milliseconds(call.s * 1000),
                Cell(plain.one_line(call.where or ""), style="where"),
            )
        )
        for call in calls
    ]
    note = "Python calls that a training loop should not make, or not in each step."
    return Table("calls", "Calls in the loop", note, ("Call", "Calls", "Time", "Line"), tuple(rows))


def _of(value: float | None, limit: float | None, unit: str) -> str:
    if value is None:
        return units.UNKNOWN
    return f"{value:.0f} of {limit:.0f} {unit}" if limit else f"{value:.0f} {unit}"


def tables(profile: Profile) -> Iterable[Table]:
    """All tables that have rows."""
    candidates = [
        *waits(profile),
        kernels(profile),
        operators(profile),
        ranks(profile),
        devices(profile),
    ]
    return [table for table in candidates if table.rows]
