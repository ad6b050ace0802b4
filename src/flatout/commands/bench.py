"""flatout bench."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from flatout.nouns.ceiling import Benched
from flatout.nouns.errors import UserError

INTERRUPTED = 130


def command(
    quick: Annotated[
        bool, typer.Option("--quick", help="Within 20 seconds: one or two sizes of each.")
    ] = False,
    cached: Annotated[
        bool, typer.Option("--cached", help="Measure nothing: show what was measured last.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Measure this ceiling alone (matmul-bf16); repeatable.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(help="Only on this device: cpu, cuda:1; repeatable.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option(help="PASS where it is this GPU and gives what it should.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="The Python that runs the training.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Measure what this hardware can really do, beside its data sheet.

    flatout bench
    flatout bench --quick
    flatout bench --only matmul-bf16 --only copy-device
    flatout bench --quick --expect h100
    """
    if cached and (quick or only or device or expect or python):
        raise UserError("--cached measures nothing: it goes with --json alone")
    benched = _last() if cached else _measured(quick, only or (), device or (), expect, python)
    return _report(benched, as_json)


def _last() -> Benched:
    from flatout.benching import benching
    from flatout.diagnosing import expectation
    from flatout.diagnosing.diagnose import diagnose_benched
    from flatout.nouns.machine import Machine

    benched = benching.last()
    return expectation.judged(benched, diagnose_benched(benched, Machine()))


def _measured(
    quick: bool,
    only: Sequence[str],
    device: Sequence[str],
    expect: str | None,
    python: str | None,
) -> Benched:
    from flatout.benching import benching
    from flatout.benching.ceiling_run import Orders
    from flatout.diagnosing import expectation
    from flatout.diagnosing.diagnose import diagnose_benched
    from flatout.reporting.terminal import BenchView
    from flatout.running.command import chosen_python

    if expect is not None:
        expectation.check_known(expect)
    executable = chosen_python(python)
    with BenchView() as view:
        orders = Orders(quick, tuple(only), tuple(device))
        benched, machine = benching.bench(executable, orders, view, expect)
    return expectation.judged(benched, diagnose_benched(benched, machine))


def _report(benched: Benched, as_json: bool) -> int:
    """Tell it; 1: the answer is no."""
    from flatout.diagnosing.diagnose import problems
    from flatout.reporting import terminal
    from flatout.reporting.bench import document

    if as_json:
        json.dump(document.bench_document(benched), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        terminal.bench(benched)
    if benched.interrupted:
        return INTERRUPTED
    return 1 if benched.passed is False or problems(benched.findings) else 0
