"""One whole `flatout bench`, with the machine under load and its ceilings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import psutil

from flatout.benching import ceilings
from flatout.benching.ceiling_run import CeilingOrders, Listener
from flatout.benching.ceiling_watch import GpuWatch
from flatout.nouns.ceiling import Benched, Ceiling
from flatout.nouns.errors import UserError
from flatout.nouns.machine import Machine
from flatout.probing import machine

BUSY_S = 0.4
"""Seconds for which the cores are watched before flatout runs anything."""


def bench(
    python: str,
    orders: CeilingOrders,
    listener: Listener | None = None,
    expected: str | None = None,
) -> tuple[Benched, Machine]:
    """Measure now; the Machine is as it was under load. Raises UserError."""
    began = time.monotonic()
    busy = cores_busy()
    with GpuWatch(machine.look(python)) as watch:
        measured = ceilings.run(python, orders, listener)
    if not measured.interrupted:
        _check_asked(measured.ceilings, orders)
    benched = Benched(
        machine=measured.machine,
        torch=measured.torch,
        ceilings=measured.ceilings,
        findings=(),
        expected=expected,
        quick=orders.quick,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_s=time.monotonic() - began,
        devices=measured.devices,
        interrupted=measured.interrupted,
        busy=busy,
    )
    return benched, watch.machine


def cores_busy(interval_s: float = BUSY_S) -> float | None:
    """Share of the machine's cores that are in use now, or None if unknown."""
    try:
        return float(psutil.cpu_percent(interval_s)) / 100
    except (psutil.Error, OSError, RuntimeError):
        return None


def _check_asked(measured: Sequence[Ceiling], orders: CeilingOrders) -> None:
    """Raise UserError for a device or ceiling on the command line that does not exist."""
    devices = {ceiling.device for ceiling in measured}
    for device in orders.devices:
        if device not in devices:
            raise UserError(f"there is nothing to measure on {device!r}", "flatout doctor", 2)
    ids = {ceiling.id for ceiling in measured}
    for name in orders.wanted:
        if name not in ids:
            raise UserError(
                f"there is no ceiling {name!r} on this machine",
                "list them with: flatout bench --quick --json",
                2,
            )
