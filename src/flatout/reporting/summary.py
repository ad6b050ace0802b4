"""The block that closes `flatout tune`: how much faster, the same or not, why, what next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.trial import Trial, Verdict
from flatout.nouns.tuned import Tuned
from flatout.reporting import outcome, plain
from flatout.reporting.outcome import Headline, Learning, TuneOutcome
from flatout.reporting.paragraphs import NARROWEST, Line, show, styled, wrapped

if TYPE_CHECKING:
    from rich.console import Console


Paragraph = tuple[str, str, str]
"""Label, text, and the label's style."""
COPIED = ("plan:", "report:", "next:")
GLUE = "\xa0"
AT_MOST = 5
"""The most lines of one kind of problem; the rest are in the report."""
WIDTH = 80
"""Columns of the usual terminal."""
SCREEN = 12
"""The most lines of it all, where not every reason is asked for."""
SHORTENED = ("may change:", "loss curve:", "kept:")
"""What is cut to one line where one warning would have no place, in this order."""
DROPPED, LEFT_OUT = "tried and dropped:", "left out:"
LISTS = (DROPPED, "kept:")
LEAST_GAIN = 1.005
"""The least that is not printed as 1.00x."""
STYLES = {
    Learning.SAME: "green",
    Learning.STATISTICAL: "yellow",
    Learning.DIFFERENT: "bold red",
    Learning.UNKNOWN: "yellow",
}


def summary(tuned: Tuned, console: Console | None = None, why: bool = False) -> None:
    """Print the summary; on stdout unless another console is given.

    why: give the reason for each boost that is not in the plan, and all figures of the Guard.
    """
    from rich.console import Console

    console = console or Console()
    head = outcome.headline(tuned)
    top, files = _top(tuned, head, console.width), list(_next(tuned, head))
    facts, troubles = list(_facts(tuned, head, why)), list(_troubles(tuned))
    if not why:
        room = SCREEN - len(top) - len(files)
        facts, troubles = _fitted(facts, troubles, tuned, room, console.width)
    for line, style in top:
        show(console, styled(line, style))
    for label, text, style in (*facts, *troubles, *files):
        first, *further = _wrapped(label, text, console.width)
        show(console, styled(first, style, len(label)))
        for line in further:
            show(console, Line(line))


def _top(tuned: Tuned, head: Headline, width: int) -> list[tuple[str, str]]:
    written = _side_line("as written", head.untouched)
    if head.answer is TuneOutcome.NOTHING:
        reason = f"{outcome.why_nothing(tuned)}; no plan was written"
        rows = wrapped(reason, max(width, NARROWEST))
        return [(written, "bold"), *((row, "bold yellow") for row in rows)]
    plan = _side_line("with the plan", head.plan)
    faster = f"{units.ratio(head.speedup)} faster"
    if head.interval:
        source = f"(95% interval {units.ratios(head.interval)}, A/B x {head.pairs})"
    elif head.answer is TuneOutcome.LIVE:
        source = "(measured while it trained)"
    elif tuned.confirmation is not None:
        confirmed = tuned.confirmation
        interval = confirmed.interval
        if interval is None and not confirmed.disturbed:
            source = f"(in one run; one A/B pair: {units.ratio(confirmed.speedup)})"
        else:
            spread = f", {units.ratios(interval)}" if interval is not None else ""
            result = "disturbed by other programs" if confirmed.disturbed else "inconclusive"
            source = f"(in one run; A/B x {confirmed.pairs} {result}{spread})"
    else:
        source = "(not confirmed by A/B runs)"
    full_line = f"{plan}    {faster}  {source}"
    if len(full_line) <= width:
        return [(written, "bold"), (full_line, "bold green")]
    indent = " " * 16
    return [(written, "bold"), (plan, "bold green"), (f"{indent}{faster}  {source}", "bold green")]


def _side_line(label: str, side: outcome.OutcomeSide) -> str:
    if side.step_ms is None:
        return f"{label:<14}{units.UNKNOWN:>10}"
    line = f"{label:<14}{units.milliseconds(side.step_ms):>10}/step"
    if side.samples_per_s is not None:
        line += f"{units.rate(side.samples_per_s):>18}"
    return line


def _facts(tuned: Tuned, head: Headline, why: bool) -> Iterator[Paragraph]:
    guard = outcome.guard_of_plan(tuned)
    if guard is not None or head.answer is not TuneOutcome.NOTHING:
        style = STYLES[outcome.learning(guard)]
        yield "loss curve:", outcome.learning_words(guard, every_figure=why), style
    if tuned.plan is not None:
        rounding = [boost.id for boost in tuned.plan.boosts if boost.risk == "rounding"]
        inexact = {"rounding": ", ".join(rounding)} if rounding else {}
        if tuned.redrawn:
            inexact["other random numbers"] = ", ".join(tuned.redrawn)
        changes = "; ".join(f"{what} ({names})" for what, names in inexact.items())
        yield "may change:", changes or "nothing but the order of sums", "bold"
        kept = []
        for boost in tuned.plan.boosts:
            # A gain that is none is noise: such a boost stayed beside the others as neither.
            gain = "" if boost.gain is None or boost.gain < LEAST_GAIN else units.ratio(boost.gain)
            text = f"{plain.named(boost.id, boost.params)} {gain}".strip()
            # A name stays beside its number: no row breaks at this space.
            kept.append(text.replace(" ", GLUE) if len(text) <= 48 else text)
        yield "kept:", ", ".join(kept), "green"
        if tuned.plan.pays_after_steps:
            steps = units.count(tuned.plan.pays_after_steps, "step")
            cost = units.duration(tuned.plan.compile_s)
            yield "pays off:", f"after {steps}; compiling takes {cost} first", "bold"
    yield from _reasons(tuned) if why else _counts(tuned)


def _fitted(
    facts: list[Paragraph], troubles: list[Paragraph], tuned: Tuned, room: int, width: int
) -> tuple[list[Paragraph], list[Paragraph]]:
    """Both in `room` rows together: as many of the troubles as have a place, the rest counted."""
    room_for_facts = room - min(len(troubles), 1)
    if _rows([*facts, *troubles], width) > room:
        facts = [_cut(item, width) if item[0] == DROPPED else item for item in facts]
    if _rows([*facts, *troubles], width) > room:
        facts = [item for item in facts if item[0] not in (DROPPED, LEFT_OUT)]
        facts += _counts(tuned, by_name=False)
    for label in SHORTENED:
        if _rows(facts, width) > room_for_facts:
            facts = [_cut(item, width) if item[0] == label else item for item in facts]
    return facts, _as_many(troubles, room - _rows(facts, width), width)


def _as_many(troubles: list[Paragraph], room: int, width: int) -> list[Paragraph]:
    """In `room` rows: the first of them, shortened, and how many more there are."""
    if _rows(troubles, width) <= room:
        return troubles
    fitting = troubles[: max(room, 1)]
    rest = len(troubles) - len(fitting)
    shown = [_cut(item, width) for item in fitting[:-1]]
    shown.append(_cut(fitting[-1], width, rest))
    for at, whole in enumerate(fitting[:-1] if rest else fitting):
        longer = [*shown[:at], whole, *shown[at + 1 :]]
        if _rows(longer, width) <= room:
            shown = longer
    return shown


def _rows(paragraphs: list[Paragraph], width: int) -> int:
    return sum(len(_wrapped(label, text, width)) for label, text, _ in paragraphs)


def _cut(item: Paragraph, width: int, rest: int = 0) -> Paragraph:
    """In one row: of a list of names as many as fit, and how many more there are.

    rest: others like it that are left out.
    """
    label, text, style = item
    fits = len(_wrapped(label, text, width)) == 1
    if fits and not rest:
        return item
    if label in LISTS:
        names = text.split(", ")
        for taken in range(len(names) - 1, -1, -1):
            begin, more = ", ".join(names[:taken]), f"{len(names) - taken} more (--why)"
            text = f"{begin} and {more}" if begin else more
            if len(_wrapped(label, text, width)) == 1:
                break
        return label, text, style
    end = f" (and {rest} more: --why)" if rest else " (--why)"
    room = max(width, NARROWEST) - len(label) - 1 - len(end)
    begin = text if fits and len(text) <= room else f"{text[: room - 3].rstrip()}..."
    return label, f"{begin}{end}", style


def _failed(tuned: Tuned) -> list[Trial]:
    return [trial for trial in tuned.trials if trial.verdict is Verdict.FAILED]


def _counts(tuned: Tuned, by_name: bool = True) -> Iterator[Paragraph]:
    """What is not in the plan, without the reasons: they would fill the screen."""
    dropped = [
        f"{trial.tried}{' (learns differently)' if trial.verdict is Verdict.DIFFERENT else ''}"
        for trial in outcome.dropped(tuned)
    ]
    if dropped and by_name:
        yield DROPPED, ", ".join(dropped), "bold"
    failed, untried = _failed(tuned), outcome.untried(tuned)
    late = [str(trial.tried) for trial in untried if trial.why_untried == "no_time"]
    others = len(untried) - len(late)
    for no_time in (f"no time for {', '.join(late)}", f"{len(late)} had no time"):
        words = [
            f"{len(dropped)} tried and dropped" if dropped and not by_name else "",
            f"{len(failed)} failed" if failed else "",
            f"{no_time}{' (a longer --budget)' if by_name else ''}" if late else "",
            f"{others} {'does' if others == 1 else 'do'} not apply" if others else "",
        ]
        text = f"{', '.join(filter(None, words))} (--why)"
        if len(f"left out: {text}") <= WIDTH:  # on one line, they are named
            break
    if any(words):
        yield LEFT_OUT, text, "bold"


def _reasons(tuned: Tuned) -> Iterator[Paragraph]:
    """What is not in the plan, each with its reason."""
    for trial in _failed(tuned):
        whole = "the whole plan" if trial.boosts else "the untouched program"
        name = plain.named(trial.tried or whole, trial.params)
        log = f" (log: {plain.one_line(trial.log)})" if trial.log else ""
        yield "failed:", f"{name}: {plain.last_line(trial.reason)}{log}", "red"
    dropped = [
        f"{trial.tried} ({outcome.why_dropped(trial, tuned.noise)})"
        for trial in outcome.dropped(tuned)
    ]
    if dropped:
        yield DROPPED, ", ".join(dropped), "bold"
    groups = outcome.skipped(tuned)
    if groups:
        groups_text = (f"{', '.join(boosts)} ({reason})" for reason, boosts in groups.items())
        yield "not tried:", "; ".join(groups_text), "bold"


def _troubles(tuned: Tuned) -> Iterator[Paragraph]:
    if tuned.interrupted:
        yield "interrupted:", "boosts not tried by then are missing above", "yellow"
    if tuned.leaked:
        files = ", ".join(plain.one_line(path) for path in tuned.leaked[:AT_MOST])
        rest = len(tuned.leaked) - AT_MOST
        more = f" and {rest} more" if rest > 0 else ""
        yield "warning:", f"files changed while trials ran: {files}{more}", "yellow"
    faults = list(dict.fromkeys(plain.one_line(fault) for fault in tuned.faults))
    for fault in faults[:AT_MOST]:
        yield "warning:", f"error inside flatout: {fault}", "yellow"
    if len(faults) > AT_MOST:
        yield "warning:", f"{len(faults) - AT_MOST} more such errors, in the report", "yellow"
    for note in tuned.notes:
        yield "note:", plain.one_line(note), "bold"


def _next(tuned: Tuned, head: Headline) -> Iterator[Paragraph]:
    if tuned.plan_path and tuned.plan is not None:
        yield "plan:", plain.one_line(tuned.plan_path), "bold"
    if tuned.report_path:
        yield "report:", plain.one_line(tuned.report_path), "bold"
    if head.answer is not TuneOutcome.NOTHING:
        path = tuned.plan_path
        named = ("--plan", path) if path and Path(path) != Path("flatout.toml") else ()
        command = ("flatout", "run", *named, *tuned.command)
        yield "next:", plain.command_line(command), "bold cyan"


def _wrapped(label: str, text: str, width: int) -> list[str]:
    # Paths and commands stay on one line, however long, so that they can be copied.
    if label in COPIED:
        return [f"{label} {text}"]
    rows = wrapped(f"{label} {text}", max(width, NARROWEST), hanging="    ")
    return [row.replace(GLUE, " ") for row in rows]
