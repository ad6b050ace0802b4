"""A plan as changes of its script, tried by running the changed script for a few steps."""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import flatout_programs
from flatout.measuring import trial
from flatout.measuring.outcome import Outcome
from flatout.measuring.trial import Bench
from flatout.nouns.ejected import Ejected, EjectedBoost
from flatout.nouns.errors import UserError
from flatout.nouns.plan import Plan
from flatout.running.one.command import Command, resolve, script_sha256
from flatout.tuning.script_changes import with_boost
from flatout.tuning.script_syntax import UnclearError
from flatout_agent.wire import JobFacts

STEPS = 3
LIMIT_S = 120.0
"""The changed script is stopped after so long: most need it to start, and some to compile."""
PROGRAM = Path(flatout_programs.__file__).with_name("changed_script.py")
CHANGED_SINCE = "the script has changed since the plan was made"


def as_changes(ejected: Ejected, plan: Plan, tell: Callable[[str], None] | None) -> Ejected:
    """The boosts as changes of the plan's script, as far as that can be done.

    tell: called with a line before the changed script is run, or None not to run it. A boost whose
    lines fail there stays a template.
    """
    try:
        words = plan.command
        if words[:1] == ("-m",) and len(words) > 1:
            command = resolve(words[2:], module=words[1], verb="eject")
        else:
            command = resolve(words, verb="eject")
        text = command.script.read_bytes().decode() if command.script else ""
    except UserError as error:
        return replace(ejected, note=f"no diff: {error.message}" if plan.command else "")
    except (OSError, UnicodeDecodeError) as error:
        return replace(ejected, note=f"no diff: {error}")
    if command.script is None:
        return ejected
    ends, text = "\r\n" if "\r\n" in text else "\n", text.replace("\r\n", "\n")
    unlike = plan.script_sha256 not in (None, script_sha256(command.script))
    ejected = replace(ejected, script=str(command.script), note=CHANGED_SINCE if unlike else "")
    ejected, steps = _changed(ejected, text, plan.job)
    tried = ""
    if tell is not None and command.argv[1:2] != (str(command.script),):
        tried, tell = "not run: flatout can only try a script that Python starts directly", None
    while tell is not None and len(steps) > 1:
        name = command.script.name
        tell(f"running the changed {name} for {STEPS} steps, {LIMIT_S:.0f} s at most")
        outcome, line = _run(command, steps[-1])
        if not outcome.returncode or outcome.late:
            tried = f"run: {outcome.error or f'{STEPS} steps went through'}"
            break
        because = f"the changed script failed: {outcome.error}"
        guilty = _guilty(ejected.boosts, steps, line)
        boosts = tuple(
            replace(boost, template_because=because) if boost in guilty else boost
            for boost in ejected.boosts
        )
        ejected, steps = _changed(replace(ejected, boosts=boosts), text, plan.job)
    return replace(ejected, tried=tried, diff=_diff(str(command.script), text, steps[-1], ends))


def _changed(ejected: Ejected, text: str, facts: JobFacts | None) -> tuple[Ejected, list[str]]:
    """The boosts, with why some stay templates, and the text after each of the others."""
    texts, boosts = [text], []
    for boost in ejected.boosts:
        because = boost.template_because
        if not because:
            try:
                texts.append(with_boost(texts[-1], boost, facts))
            except UnclearError as reason:
                because = _of_the_script(text, boost, facts) or str(reason)
        boosts.append(replace(boost, template_because=because))
    return replace(ejected, boosts=tuple(boosts)), texts


def _of_the_script(text: str, boost: EjectedBoost, facts: JobFacts | None) -> str:
    """Why the script as it is cannot take a boost, by its own lines' numbers; "" if it could."""
    try:
        with_boost(text, boost, facts)
    except UnclearError as reason:
        return str(reason)
    return ""


def _run(command: Command, text: str) -> tuple[Outcome, int | None]:
    """What came of running the changed text, and its line where an exception ended it."""
    with tempfile.TemporaryDirectory(prefix="flatout-eject-") as name:
        folder = Path(name)
        copy = folder / "changed.py"
        copy.write_bytes(text.encode())
        argv = (command.argv[0], str(PROGRAM), str(copy), *command.argv[1:])
        bench = Bench(
            replace(command, argv=argv),
            folder,
            min_steps=STEPS,
            max_steps=STEPS,
            window_s=0.0,
            compile_cache=folder / "compiled",
        )
        outcome = trial.run(bench, "changed", (), None, LIMIT_S, warmup_max_s=0.0)
        log = Path(outcome.log).read_text(encoding="utf-8", errors="replace")
    script = re.escape(str(command.script))
    lines = re.findall(rf'^  File ".*{script}", line (\d+)', log, re.MULTILINE)
    return outcome, int(lines[-1]) if lines else None


def _guilty(
    boosts: Sequence[EjectedBoost], texts: Sequence[str], line: int | None
) -> list[EjectedBoost]:
    """The boosts whose line failed; where it is none of theirs, those that round, or else all."""
    changed = [boost for boost in boosts if not boost.template_because]
    failed = texts[-1].splitlines()[line - 1] if line else None
    guilty = [
        boost
        for boost, before, after in zip(changed, texts, texts[1:], strict=False)
        if failed in after.splitlines() and failed not in before.splitlines()
    ]
    return guilty or [boost for boost in changed if boost.risk == "rounding"] or changed


def _diff(script: str, before: str, after: str, ends: str) -> tuple[str, ...]:
    """The lines of a diff; ends: with what the script's lines end."""
    old, new = (re.split(r"(?<=\n)(?!\Z)", text.replace("\n", ends)) for text in (before, after))
    shown = []
    for line in difflib.unified_diff(old, new, script, script):
        shown.append(line.removesuffix("\n"))
        if not line.endswith("\n"):
            shown.append("\\ No newline at end of file")
    return tuple(shown)
