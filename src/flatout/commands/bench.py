"""flatout bench."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.commands import _options, print_document
from flatout.nouns.errors import INTERRUPTED

PLACE = ("Understand", 3)

Quick = Annotated[bool, typer.Option("--quick", help="Measure fewer sizes, within 40 seconds.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Measure only this, such as matmul-bf16. Repeatable."),
]
Device = Annotated[
    list[str] | None,
    typer.Option(metavar="DEVICE", help="Measure only this device: cpu or cuda:1. Repeatable."),
]
Expect = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        help="Exit with 1 unless the GPU is this model (h100) and fast enough.",
    ),
]


def command(
    quick: Quick = False,
    only: Only = None,
    device: Device = None,
    python: _options.Python = None,
    expect: Expect = None,
    as_json: _options.Json = False,
) -> int:
    """Measure what this machine's hardware can do.

    Measures matrix products, convolutions, memory and copy bandwidth, kernel launches, attention
    and the exchange between processes, and compares the results with the data sheet.

    Examples:
      flatout bench --quick
      flatout bench --only matmul-bf16 --only copy-device
      flatout bench --quick --expect h100

    Exit code: 0 if all results are as expected, 1 if one is too low or --expect fails.
    """
    from flatout.benching import benching
    from flatout.benching.ceiling_run import CeilingOrders
    from flatout.diagnosing import expectation
    from flatout.diagnosing.diagnose import diagnose_benched, problems
    from flatout.reporting import terminal
    from flatout.reporting.bench import bench_document
    from flatout.running.one.command import chosen_python

    if expect is not None:
        expectation.check_known(expect)
    executable = chosen_python(python)
    with terminal.BenchView() as view:
        orders = CeilingOrders(quick, tuple(only or ()), tuple(device or ()))
        benched, machine = benching.bench(executable, orders, view, expect)
    benched = expectation.judged(benched, diagnose_benched(benched, machine))
    if as_json:
        print_document(bench_document(benched))
    else:
        terminal.bench(benched)
    if benched.interrupted:
        return INTERRUPTED
    return 1 if benched.passed is False or problems(benched.findings) else 0
