"""flatout doctor."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from flatout.nouns.diagnosed import Diagnosed, Health
from flatout.nouns.errors import UserError


def command(
    deep: Annotated[
        bool, typer.Option("--deep", help="Also try the devices: copy, multiply, compile.")
    ] = False,
    machine: Annotated[
        Path | None, typer.Option(help="Diagnose a recorded machine: a --json document.")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave out user names, paths and host names.")
    ] = False,
    python: Annotated[str | None, typer.Option(help="The Python that runs the training.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Find what is wrong with this machine for training, and the exact commands that cure it.

    flatout doctor
    flatout doctor --deep
    flatout doctor --json --redact > machine.json
    flatout doctor --machine machine.json
    """
    if machine is not None and (deep or python):
        raise UserError("--deep and --python ask this machine, --machine a recorded one")
    diagnosed = _diagnose(deep, machine, redact, python)
    if as_json:
        from flatout.reporting import document

        json.dump(document.doctor_document(diagnosed), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        from flatout.reporting import terminal

        terminal.doctor(diagnosed)
    return 0 if diagnosed.health is Health.HEALTHY else 1


def _diagnose(deep: bool, recording: Path | None, redact: bool, python: str | None) -> Diagnosed:
    from concurrent.futures import ThreadPoolExecutor

    from flatout.diagnosing import checks
    from flatout.diagnosing.diagnose import diagnose
    from flatout.probing import machine, recorded, redacted, selftest
    from flatout.running.command import chosen_python

    began = time.monotonic()
    executable = chosen_python(python)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(checks.MACHINE.every)
        found = recorded.read(recording) if recording else machine.look(executable, deep)
        if redact:
            found = redacted.redacted(found)
        modules = loading.result()
    findings = diagnose(found, modules)
    tests = selftest.run(executable) if deep else ()
    return Diagnosed(found, findings, tests, len(modules), time.monotonic() - began)
