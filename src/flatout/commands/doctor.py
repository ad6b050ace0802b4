"""flatout doctor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flatout.commands import _options, print_document
from flatout.nouns.diagnosed import Diagnosed, Health
from flatout.nouns.errors import UserError

if TYPE_CHECKING:
    from flatout.nouns.selftest import SelfTest

PLACE = ("Fix", 1)
Deep = Annotated[
    bool,
    typer.Option("--deep", help="Also run short tests on every device, including torch.compile."),
]
Recording = Annotated[
    Path | None,
    typer.Option(
        "--machine",
        metavar="FILE",
        help="Check a machine that was recorded with doctor --json.",
    ),
]
FailOn = Annotated[
    Literal["error", "warning"],
    typer.Option(
        metavar="[error|warning]", help="Exit with 1 if a finding is at least this severe."
    ),
]
Redact = Annotated[
    bool,
    typer.Option("--redact", help="Hide user and host names, paths, addresses and serial numbers."),
]


def command(
    deep: Deep = False,
    machine: Recording = None,
    python: _options.Python = None,
    fail_on: FailOn = "warning",
    redact: Redact = False,
    as_json: _options.Json = False,
) -> int:
    """Find what is wrong with this machine and how to fix it.

    Checks the drivers, the container, the Python environment and the hardware. For each problem it
    prints the evidence and the commands that fix it. Neither a GPU nor PyTorch is needed.

    Examples:
      flatout doctor
      flatout doctor --deep
      flatout doctor --json --redact > machine.json
      flatout doctor --machine machine.json
    """
    if machine is not None and (deep or python):
        message = "--deep and --python ask this machine, --machine a recorded one"
        raise UserError(message, "leave one of them out")
    diagnosed = _diagnose(deep, machine, redact, python)
    if as_json:
        from flatout.reporting import document

        print_document(document.doctor_document(diagnosed))
    else:
        from flatout.reporting import terminal

        terminal.doctor(diagnosed)
    failing = (Health.BROKEN, Health.IMPAIRED) if fail_on == "warning" else (Health.BROKEN,)
    return int(diagnosed.health in failing)


def _diagnose(deep: bool, recording: Path | None, redact: bool, python: str | None) -> Diagnosed:
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import nullcontext

    from flatout.diagnosing import checks
    from flatout.diagnosing.diagnose import diagnose
    from flatout.probing import machine, recorded, redacted, selftest
    from flatout.reporting.moving_line import SelfTestView
    from flatout.running.one.command import chosen_python

    began = time.monotonic()
    executable = chosen_python(python)
    with SelfTestView() if deep else nullcontext() as view, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(checks.MACHINE.every)
        facts = recorded.read(recording) if recording else machine.look(executable, deep)
        modules = loading.result()
        tests: tuple[SelfTest, ...] = ()
        if view is not None:
            tests = selftest.run(executable, tell=view.step)
    if redact:
        facts, tests = redacted.with_tests(facts, tests)
    findings = diagnose(facts, modules)
    return Diagnosed(facts, findings, tests, len(modules), time.monotonic() - began)
