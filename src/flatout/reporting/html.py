"""The report: one self-contained HTML file that works from file:// and needs no server.

Text from outside (command, paths, errors) is escaped on its way in. Also, the page's own policy
allows only the script whose hash it names, and no requests at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from flatout.nouns import units
from flatout.nouns.trial import Trial, Verdict
from flatout.nouns.tuned import Tuned
from flatout.nouns.units import Quantity
from flatout.reporting import charts, document, outcome, plain
from flatout.reporting.chart import curve_charts
from flatout.reporting.outcome import Headline, OutcomeSide, TuneOutcome

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
GRADIENT = "gradient error"
STYLES = ("vendored/uPlot.css", "report.css")
SCRIPTS = ("report.js", "vendored/uPlot.js")
WORDS = {
    Verdict.KEPT: "kept",
    Verdict.SLOWER: "not faster",
    Verdict.DIFFERENT: "learns differently",
    Verdict.FAILED: "failed",
    Verdict.SKIPPED: "not tried",
}


def write_report(tuned: Tuned, path: Path) -> None:
    """Write the report to `path`, whole or not at all. Raises OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(render(tuned, path.parent), path)


def write_page(page: str, path: Path) -> None:
    """Write a page to `path`, whole or not at all. Raises OSError if that fails."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        part.chmod(0o644)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def render(tuned: Tuned, folder: Path) -> str:
    """The page as text. folder: where it will be, for links to the logs beside it."""
    charts_by_id, guard = charts.charts(tuned), outcome.guard_of_plan(tuned)
    head = outcome.headline(tuned)
    return page(
        "report.html.j2",
        curve_charts(charts_by_id),
        {
            "size": units.size,
            "duration": units.duration,
            "times": times,
            "named": lambda boost: plain.named(boost.id, boost.params),
        },
        tuned=tuned,
        head=head,
        title=headline_words(head, tuned),
        learning_words=outcome.learning_words(guard),
        guard=guard,
        guard_numbers="; ".join(outcome.guard_numbers(guard)) if guard else "",
        command=plain.command_line(tuned.command),
        pairs=before_and_after(head, tuned),
        why_nothing=outcome.why_nothing(tuned),
        charts=charts_by_id,
        rows=[row(trial, folder) for trial in tuned.trials],
        environment=surroundings(tuned),
    )


def page(
    template: str,
    data: Any,
    filters: dict[str, Callable[..., str]] | None = None,
    styles: Sequence[str] = STYLES,
    scripts: Sequence[str] = SCRIPTS,
    **values: Any,
) -> str:
    """A page as text, with everything that it needs inside.

    data: what its scripts draw; styles, scripts: files in the templates' folder; values: further
    names of the template.
    """
    script = "\n".join(_text(name) for name in scripts)
    text = (
        templates(**(filters or {}))
        .get_template(template)
        .render(
            data=script_json(data),
            style="\n".join(_text(name) for name in styles),
            script=script,
            script_hash=digest(script),
            **values,
        )
    )
    # A path may hold bytes that are not text; they become visible escapes.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def templates(**filters: Callable[..., str]) -> Environment:
    """The environment of our templates: foreign text is escaped, a missing name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    own_filters = {"ms": units.milliseconds, "share": units.share, "text": plain.one_line}
    environment.filters.update(own_filters | filters)
    return environment


def headline_words(head: Headline, tuned: Tuned) -> str:
    """The answer in one line."""
    if head.answer is TuneOutcome.NOTHING:
        if tuned.interrupted:
            return "Stopped before anything faster was found"
        if not tuned.tried:
            return "Nothing could be tried in the time given"
        guard_failed = tuned.confirmation is not None and not tuned.confirmation.guard.passed
        return "Nothing faster that learns the same" if guard_failed else "Nothing faster was found"
    faster = f"{times(head.speedup)} faster"
    if head.answer is TuneOutcome.UNCONFIRMED:
        has_pairs = tuned.confirmation is not None
        return f"{faster}, measured within one run" if has_pairs else f"{faster}, not confirmed"
    return {
        outcome.Learning.SAME: f"{faster}, and it learns the same",
        outcome.Learning.STATISTICAL: f"{faster}, no difference in the losses",
        outcome.Learning.DIFFERENT: f"{faster}, but it learns differently",
        outcome.Learning.UNKNOWN: f"{faster}, learning not compared",
    }[outcome.learning(outcome.guard_of_plan(tuned))]


def before_and_after(head: Headline, tuned: Tuned) -> list[dict[str, Any]]:
    """Each figure before and after, with the width of its bar."""
    plan = outcome.plan_measured(tuned)
    waits = (tuned.baseline.wait_share, plan.wait_share if plan else None)
    untouched, planned = head.untouched, head.plan
    table: list[tuple[str, Callable[[float | None], Quantity], float | None, float | None]] = [
        ("Time per step", units.in_milliseconds, untouched.step_ms, planned.step_ms),
        ("Throughput", *_throughput(untouched, planned)),
        ("Peak memory", units.in_bytes, untouched.peak_bytes, planned.peak_bytes),
        ("Waiting for data", lambda value: Quantity(units.share(value)), *waits),
    ]
    figures: list[dict[str, Any]] = []
    for name, show, before, after in table:
        if before is None and after is None:
            continue
        if head.answer is TuneOutcome.NOTHING:
            figures.append({"name": name, "title": str(show(before)), "bars": []})
            continue
        values = {"as written": before, "with the plan": after}
        largest = max((value for value in values.values() if value), default=0.0)
        bars = [
            {
                "side": side,
                "text": str(show(value)),
                "width": 100 * value / largest if largest else 0,
            }
            for side, value in values.items()
            if value is not None
        ]
        first, second = show(before), show(after)
        # The unit only once if it is the same.
        title = f"{first.number if first.unit == second.unit else first} → {second}"
        figures.append({"name": name, "title": title, "bars": bars})
    return figures


def _throughput(
    untouched: OutcomeSide, plan: OutcomeSide
) -> tuple[Callable[[float | None], Quantity], float | None, float | None]:
    """Samples per second, or steps per second if one side's samples are not known."""
    before, after = untouched.samples_per_s, plan.samples_per_s
    if (before is None) == (after is None) or plan.step_ms is None:
        return units.at_rate, before, after
    before, after = (outcome.quotient(1000, side.step_ms) for side in (untouched, plan))
    return lambda value: units.at_rate(value, "steps/s"), before, after


def row(trial: Trial, folder: Path) -> dict[str, Any]:
    """One row of the table of everything tried."""
    name = "the whole plan" if trial.boosts else "as written"
    is_untouched = outcome.is_untouched(trial)
    reason = [line for line in plain.lines(trial.reason) if line.strip()]
    if is_untouched and reason:
        name, reason = reason[-1], []
    others = [boost for boost in trial.boosts if boost != trial.tried]
    numbers = outcome.guard_numbers(trial.guard) if trial.guard else []
    if reason and GRADIENT in reason[-1]:  # the guard's own words have that figure
        numbers = [number for number in numbers if not number.startswith(GRADIENT)]
    return {
        "name": plain.one_line(trial.tried or name),
        "params": [plain.one_line(f"{key}={value}") for key, value in trial.params.items()],
        "verdict": "measured" if is_untouched else WORDS[trial.verdict],
        "kind": "measured" if is_untouched else str(trial.verdict),
        "gain": times(trial.gain) if trial.gain is not None else "",
        "measured": trial.measured,
        "reason": reason[-1] if reason else "",
        "more": "\n".join(reason) if len(reason) > 1 else "",
        "guard": "; ".join(numbers),
        "engaged": [plain.one_line(f"{k}: {v}") for k, v in trial.engaged.items() if v],
        "together": [plain.one_line(boost) for boost in others],
        "log": plain.one_line(trial.log) if trial.log else "",
        "link": beside(trial.log, folder) if trial.log else None,
        "retried": trial.retried,
        "wall": units.duration(trial.wall_s) if trial.wall_s else "",
    }


def beside(log: str, folder: Path) -> str | None:
    """The link from the report to a file in or under its folder, or None for any other file."""
    try:
        relative = Path(log).absolute().relative_to(folder.absolute())
    except ValueError:
        return None
    return "./" + quote(relative.as_posix(), errors="replace")


def surroundings(tuned: Tuned) -> list[tuple[str, str]]:
    """Where and how this was measured."""
    machine = tuned.machine
    gpus = [
        f"{gpu.name} ({units.size(gpu.memory_bytes)}, driver {gpu.driver or units.UNKNOWN})"
        for gpu in machine.gpus
    ]
    facts = [
        ("System", machine.system),
        ("CPU", machine.cpu or units.UNKNOWN),
        ("Cores available to the process", str(machine.cores or units.UNKNOWN)),
        ("Memory", units.size(machine.memory_bytes)),
        ("GPU", ", ".join(gpus) or "none"),
        ("Python", machine.python or units.UNKNOWN),
        ("PyTorch", machine.torch or units.UNKNOWN),
        ("Noise: neighbouring blocks as written differ by", units.share(tuned.noise)),
        ("Boosts tried", str(sum(bool(trial.pairs) for trial in tuned.trials))),
        ("Tuning took", units.duration(tuned.wall_s)),
    ]
    return [(name, plain.one_line(value)) for name, value in facts]


def times(value: float | None) -> str:
    """A ratio with a real multiplication sign."""
    text = units.ratio(value)
    return text if text == units.UNKNOWN else text.replace("x", "×")


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element."""
    # ASCII only, so that U+2028 and U+2029 are escaped too.
    text = json.dumps(document.as_json(value), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def digest(script: str) -> str:
    """The hash by which the page's policy allows a script."""
    digest_bytes = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest_bytes).decode('ascii')}"
