"""flatout.toml: a Plan as a file that people read and edit.

`[boosts.*]` is what `flatout run` applies, in that order. The other tables say for which program
and machine it was measured, and with what gain. What a plan may hold is decided by its one reader,
`flatout_agent.apply.plan`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError
from tomlkit.items import Item, Table

from flatout.knowledge import boosts as known
from flatout.knowledge import jobs
from flatout.nouns.errors import UserError
from flatout.nouns.identity import GpuIdentity, Identity
from flatout.nouns.plan import Plan, PlannedBoost, PlannedRanks
from flatout.running.one.command import SCRIPT_SUFFIXES
from flatout_agent.apply import plan as plan_reader
from flatout_agent.apply.plan import VERSION, PlanError, PlanTable, WrittenPlan
from flatout_agent.wire import JobFacts

DIGITS = 4
"""Decimal places of measured figures: more would be noise."""
HEADER = """\
The plan of `flatout tune`; `flatout run` applies it, `flatout eject` prints it as PyTorch lines.
Edit it as you like: remove a boost, change its params. Everything but [boosts] is for the reader.\
"""
RANKS_NOTE = "What `flatout run --ranks` measured; without this table it measures again."
JOB_NOTE = "The program as it was without any boost; `flatout eject` fits its lines to it."


def read(path: Path, warn: Callable[[str], None] | None = None) -> Plan:
    """The plan in the file. Raises UserError, with the next step, if it cannot be used.

    warn: hears of boosts in it that flatout no longer has; the plan is used without them.
    """
    try:
        plan = plan_reader.read(tomlkit.parse(plan_reader.text(path)).unwrap(), path)
        if warn is not None:
            for name in plan.removed:
                cure = f"remove [boosts.{name}]; in its place, {plan_reader.REMOVED[name]}"
                warn(f"{path}: this flatout no longer has the boost {name!r}: {cure}")
        with plan_reader.naming(path):
            return _plan(plan)
    except ParseError as error:
        raise UserError(
            # The parser's own words, without the position, which is named already.
            f"{path}, line {error.line}: {str(error).partition(' at line ')[0]}",
            f"correct line {error.line}",
        ) from None
    except TOMLKitError as error:
        raise UserError(
            f"{path}: {error}", "correct it, or make a new one: flatout tune train.py"
        ) from None
    except PlanError as error:
        raise UserError(error.message, error.next_step) from None


def write(plan: Plan, path: Path) -> None:
    """Replace the file atomically, so that readers never see half a plan. Raises UserError."""
    _replace(render(plan), path)


def write_or_keep(plan: Plan, path: Path, folder: Path, warn: Callable[[str], None]) -> Path:
    """Write the plan to `path`, or if that cannot be, into `folder`; returns where it is.

    It took minutes to find. On Windows no file is replaced that another program has open.
    """
    try:
        write(plan, path)
    except UserError as error:
        path = folder / path.name
        write(plan, path)
        warn(f"{error.message}; it is at {path}: flatout run --plan {path} ...")
    return path


def write_ranks(ranks: PlannedRanks, path: Path) -> None:
    """Put the table `[ranks]` into the existing plan, all else untouched. Raises UserError."""
    document = tomlkit.parse(plan_reader.text(path))
    document["ranks"] = _ranks_table(ranks)
    _replace(tomlkit.dumps(document), path)


def _replace(text: str, path: Path) -> None:
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UserError(
            f"cannot write the plan to {path}: {error.strerror}",
            "free some space or choose a folder that you may write to",
        ) from error


def render(plan: Plan) -> str:
    """The file's text."""
    document = tomlkit.document()
    for line in HEADER.splitlines():
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    document["version"] = VERSION
    _fill(
        document,
        {"command": plan.command, "script_sha256": plan.script_sha256, "created": plan.created},
    )
    document["measured"] = _measured(plan)
    document["boosts"] = boosts = tomlkit.table(is_super_table=bool(plan.boosts))
    for boost in plan.boosts:
        boosts[boost.id] = table = tomlkit.table()
        table.add(tomlkit.comment(f"{known.get(boost.id).title}."))
        _fill(table, {"gain": boost.gain, "risk": boost.risk, "params": boost.params})
    if plan.ranks is not None:
        document["ranks"] = _ranks_table(plan.ranks)
    if plan.machine is not None:
        document["machine"] = _fill(tomlkit.table(), dataclasses.asdict(plan.machine))
    if plan.job is not None:
        document["job"] = table = tomlkit.table()
        table.comment(JOB_NOTE)
        _fill(table, jobs.values(plan.job))
    return tomlkit.dumps(document)


def differences(
    plan: Plan, machine: Identity, script_sha256: str | None, words: Sequence[str] = ()
) -> list[str]:
    """What differs here from where the plan was measured; an unknown value differs from none.

    words: the command that is to be run, as the user gave it.
    """
    changes = []
    if _differ(plan.script_sha256, script_sha256):
        other, own = _program(plan.command), _program(words)
        is_other = other and own and Path(other).name != Path(own).name
        changes.append(f"it was made for {other}" if is_other else "the script has changed")
    recorded = plan.machine
    if recorded is None:
        return changes
    if _differ(recorded.torch, machine.torch):
        changes.append(f"torch {machine.torch} instead of {recorded.torch}")
    recorded_devices, devices = _devices(recorded), _devices(machine)
    if recorded_devices != devices:
        changes.append(f"{devices} instead of {recorded_devices}")
    elif _differ(recorded.cpu, machine.cpu):
        changes.append(f"{machine.cpu} instead of {recorded.cpu}")
    if _differ(recorded.cores, machine.cores):
        changes.append(f"{machine.cores} cores instead of {recorded.cores}")
    if recorded.system != machine.system:
        changes.append(f"{machine.system} instead of {recorded.system}")
    return changes


def _program(words: Sequence[str]) -> str:
    """The script or module among the words of a command; "" where none shows."""
    if words[:1] == ("-m",):
        return " ".join(words[1:2])
    return next((word for word in words if word.lower().endswith(SCRIPT_SUFFIXES)), "")


def _differ(recorded: object, current: object) -> bool:
    return recorded is not None and current is not None and recorded != current


def _devices(machine: Identity) -> str:
    names = [gpu.name for gpu in machine.gpus]
    parts = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts) or "no GPU"


def _plan(plan: WrittenPlan) -> Plan:
    return Plan(
        boosts=tuple(PlannedBoost(**vars(boost)) for boost in plan.boosts),
        command=plan.command,
        script_sha256=plan.script_sha256,
        machine=None if plan.machine is None else _machine(plan.machine),
        speedup=plan.speedup,
        speedup_interval=plan.speedup_interval,
        pairs=plan.pairs,
        created=plan.created,
        pays_after_steps=plan.pays_after_steps,
        compile_s=plan.compile_s,
        ranks=None if plan.ranks is None else PlannedRanks(**vars(plan.ranks)),
        job=_job(plan.job),
    )


def _machine(values: PlanTable) -> Identity:
    values.only(*(field.name for field in dataclasses.fields(Identity)))
    gpus = []
    for gpu in values.tables("gpus"):
        gpu.only(*(field.name for field in dataclasses.fields(GpuIdentity)))
        gpus.append(
            GpuIdentity(gpu.text("name") or "", gpu.whole("memory_bytes"), gpu.text("driver"))
        )
    return Identity(
        system=values.text("system") or "",
        cpu=values.text("cpu"),
        cores=values.whole("cores"),
        memory_bytes=values.whole("memory_bytes"),
        gpus=tuple(gpus),
        python=values.text("python"),
        torch=values.text("torch"),
    )


def _job(values: PlanTable) -> JobFacts | None:
    if not values.raw:
        return None
    try:
        return jobs.facts(values.raw)
    except (TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"[job] cannot be used: {error}", "remove the table [job]") from None


def _measured(plan: Plan) -> Table:
    table = tomlkit.table()
    figures = {
        "speedup": plan.speedup,
        "interval": plan.speedup_interval,
        "pairs": plan.pairs,
        "compile_s": plan.compile_s,
        "pays_after_steps": plan.pays_after_steps,
    }
    comments = {
        "speedup": "script as written / with this plan, wall time per step",
        "interval": "95 % confidence",
        "pairs": "runs in turn: as written, with the plan, as written ...",
        "compile_s": "seconds spent compiling before the first fast step",
        "pays_after_steps": "from this step on, compiling has paid off",
    }
    _fill(table, figures)
    for name, comment in comments.items():
        if name in table:
            cast("Item", table.value.item(name)).comment(comment)
    return table


def _ranks_table(ranks: PlannedRanks) -> Table:
    table = tomlkit.table()
    table.comment(RANKS_NOTE)
    _fill(table, vars(ranks))
    return table


def _fill(table: Any, values: Mapping[str, Any]) -> Any:
    """Put known values into the table: None and empty ones are left out."""
    for name, value in values.items():
        if value is not None and value not in ((), [], {}):
            table[name] = _item(value)
    return table


def _item(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else value
    if isinstance(value, Mapping):
        return _fill(tomlkit.inline_table(), value)
    if isinstance(value, list | tuple):
        array = tomlkit.array()
        array.extend(_item(element) for element in value)
        return array.multiline(any(isinstance(element, Mapping) for element in value))
    return value
