"""Check a request, make its files, and submit it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flatout.launching import engines, folders, packing
from flatout.launching.engines import Engine
from flatout.nouns.errors import UserError
from flatout.nouns.launched import (
    CheckedLaunch,
    LaunchFile,
    LaunchRequest,
    PackedCode,
    PreparedLaunch,
    SubmittedJob,
)

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
"""Names that every engine accepts."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FIELDS = {
    "partition": "--partition",
    "account": "--account",
    "queue": "--queue",
    "image": "--image",
    "hosts": "--hosts",
}
"""Options that not every engine understands."""
LOCK = "environment.txt"


def engine(name: str) -> Engine:
    """The engine of that name. Raises UserError for an unknown one."""
    try:
        return engines.load(name)
    except KeyError:
        known = engines.names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise UserError(
            f"there is no engine {name!r}; {hint}", f"flatout launch {(near or known)[0]} train.py"
        ) from None


def prepare(request: LaunchRequest, dry: bool = False) -> PreparedLaunch:
    """Check it here, then with its engine; nothing is written. Raises UserError.

    dry: the engine's objections become warnings, since files may be written without an engine.
    """
    chosen = engine(request.engine)
    check(request, chosen)
    folder = folders.planned(request.name, request.folder)
    request = replace(request, launch_folder=folder)
    if chosen.ENGINE.travels:
        request = replace(request, packed=packing.select(request.folder))
        # Script and plan must be among the files sent.
        assert request.packed is not None
        plan = request.plan.as_posix() if request.plan is not None else None
        for word in (*[word for word in request.argv[:1] if word.endswith(".py")], plan):
            if word is None or Path(word).as_posix() in request.packed.files:
                continue
            if Path(word).is_absolute() or ".." in Path(word).parts:
                raise UserError(
                    f"{word} is outside {request.folder}, the only folder sent to the nodes",
                    "start it in the folder of the code, with a path below it",
                )
            reasons = {item.path: item.reason for item in request.packed.left_out}
            why = reasons.get(Path(word).as_posix(), "it is in a folder that is not sent")
            raise UserError(
                f"{word} is not sent to the nodes: {why}", "name or place it differently"
            )
    try:
        checked = chosen.check(request)
    except UserError as error:
        if not dry:
            raise
        step = error.next_step
        then = f" (next: {step})" if step and "--dry-run" not in step else ""
        checked = CheckedLaunch(request, (f"this could not be submitted: {error.message}{then}",))
    costs, files = chosen.costs(checked.request), chosen.files(checked.request)
    packed = checked.request.packed
    warnings = (*_left_out(packed, expected=False), *checked.warnings)
    notes = (*costs.notes, *_left_out(packed, expected=True), *checked.notes)
    return PreparedLaunch(checked.request, files, costs, warnings, notes)


def submit(prepared: PreparedLaunch) -> SubmittedJob:
    """Write the files into a folder of their own and submit them. Raises UserError."""
    request = prepared.request
    folder = request.launch_folder
    folders.make(folder)
    # The packages of the launching environment, to compare with and to install from.
    lock = (LaunchFile(LOCK, request.lock),) if request.lock else ()
    folders.write((*prepared.files, *lock), folder)
    try:
        job = engine(request.engine).submit(request, folder)
    except UserError as error:
        raise UserError(
            f"{error.message} (its files are in {folder})", error.next_step, error.exit_code
        ) from error
    folders.keep(job)
    return job


def check(request: LaunchRequest, chosen: Engine) -> None:
    """Check what needs no engine. Raises UserError."""
    title, understood = chosen.ENGINE.title, chosen.ENGINE.understands
    for field, option in FIELDS.items():
        if getattr(request, field) and field not in understood:
            raise UserError(f"{title} has no {option}", f"flatout launch {request.engine} --help")
    for name, _ in request.options:
        if chosen.ENGINE.settings != ("*",) and name not in chosen.ENGINE.settings:
            known = ", ".join(chosen.ENGINE.settings) or "none"
            raise UserError(f"{title} has no setting {name!r}; there are: {known}", "leave it out")
    if not NAME.fullmatch(request.name):
        message = f"not every engine accepts --name {request.name!r}"
        raise UserError(
            message, "use up to 42 lower-case letters, digits and hyphens: --name my-run-3"
        )
    for name, _ in request.variables:
        if not VARIABLE.fullmatch(name):
            raise UserError(
                f"--env {name!r} does not name a variable", "write it as in --env EPOCHS=3"
            )
    if request.gpus is not None and request.ranks is not None:
        raise UserError(
            "--gpus starts a process on each GPU; --ranks is for nodes without GPUs",
            "leave one of them out",
        )
    _check_program(request)


def _check_program(request: LaunchRequest) -> None:
    """Check that the script exists where its nodes look for it."""
    from flatout.running.one import command

    words = request.argv
    if not words:
        raise UserError(
            "there is nothing to launch",
            f"name the training script: flatout launch {request.engine} train.py",
        )
    if words[0].lower().endswith(command.SCRIPT_SUFFIXES):
        command.resolve(words)
        return
    if words[0] == "-m":
        if len(words) == 1:
            raise UserError("-m needs the name of a module", "-m package.module")
        return
    if words[0].startswith("-"):
        raise UserError(
            f"{words[0]} is not an option of flatout launch",
            "put its options before the script's name and the script's after it; see flatout"
            " launch --help",
        )


def _left_out(packed: PackedCode | None, expected: bool) -> Iterator[str]:
    """What of the code folder is not sent, in a few words. expected: what surprises nobody."""
    by_reason: dict[str, list[str]] = {}
    for item in packed.left_out if packed is not None else ():
        if (item.reason in packing.EXPECTED) is expected:
            by_reason.setdefault(item.reason, []).append(item.path)
    for reason, paths in by_reason.items():
        shown = ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")
        yield f"not sent ({reason}): {shown}"
