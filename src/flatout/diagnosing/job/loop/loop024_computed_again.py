"""One step computes again what it has computed before: a module on the same input, or derivatives.

## What it sees

Calls of one module in a step whose operators all work on the same values as those of an earlier
call, in two consecutive steps: the helpers of a physics-informed loss that each call the network
anew, a second forward pass for a metric. Repeated calls of `torch.autograd.grad` for the same
derivatives count too, as do those whose result `backward` also leaves in `.grad`, mostly gradients
computed in advance only to log their norm. These do not count: dropout, batch normalisation that
keeps statistics, weights that changed in between, a discriminator whose input is once detached and
once not, and calls on a whole batch without gradients that are repeated with them part by part, to
save memory. LOOP016 reports calls whose results nobody reads, LOOP017 results that are the same in
each step.

## Why it matters

The same numbers are computed several times. If a backward pass follows, it also goes through each
of them.

## Cure

Call it once and use its output wherever it is needed, `output.detach()` where no gradient is. One
`torch.autograd.grad` gives the derivatives by all columns of an input. After `backward` the
parameters' gradients are in `.grad`, and `clip_grad_norm_` returns their norm. The gain: the time
of the repeated operators, without the backward pass through them.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import AgainSeen

CHECK = Check(code="LOOP024", severity=Severity.WARNING, since="0.2.0")
GRADIENTS = "autograd.grad"
"""AgainSeen.what for calls of torch.autograd.grad."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that calls a module or torch.autograd.grad again."""
    seen = flow.of(profile)
    for row in seen.again if seen is not None else ():
        assert seen is not None
        took, words = flow.unread_ms(profile, seen, row)
        saving = device_time.of_device(profile, took, words)
        if not saving.worth:
            continue
        yield Diagnosis(
            title=_title(row),
            evidence=f"{_repeated(row)}: {words}; the same operators on the same values in two "
            "consecutive steps",
            cure=_cure(profile, row),
            severity=saving.severity,
            where=row.where,
            saves_ms=saving.ms,
            reason=f"{units.milliseconds(took)} go: {saving.reason}",
        )


def _title(row: AgainSeen) -> str:
    if row.backward_where is not None:
        return "torch.autograd.grad computes the gradients that backward computes as well"
    if row.what == GRADIENTS:
        return f"torch.autograd.grad computes the same derivatives {row.calls:.3g} times a step"
    return f"{row.what.removesuffix('()')} is called {row.calls:.3g} times a step on the same input"


def _repeated(row: AgainSeen) -> str:
    if row.backward_where is not None:
        return (
            f"{row.calls:.3g} such calls a step, from {', '.join(row.lines)}, and the pass at "
            f"{row.backward_where} gives the same gradients"
        )
    derivatives = f", and {row.gradients:.3g} of torch.autograd.grad the same derivatives"
    return (
        f"{row.repeated:.3g} of the calls compute again what an earlier one has given"
        f"{derivatives if row.gradients else ''}, from {', '.join(row.lines)}"
    )


def _cure(profile: Profile, row: AgainSeen) -> Cure:
    if row.backward_where is not None:
        return Cure(
            "Read the parameters' .grad after backward (clip_grad_norm_ returns their norm), or "
            "compute this only every N steps.",
            savings.lines(
                row.where,
                "grads = torch.autograd.grad(loss, parameters, retain_graph=True)",
                "grads = [p.grad for p in parameters]  # after loss.backward()",
            ),
        )
    line = flow.line_source(profile, row.where)
    if row.what == GRADIENTS or row.gradients:
        once = (
            "Call it once" if row.what == GRADIENTS else "Call the model once, pass its output on"
        )
        return Cure(
            f"{once}, and compute each derivative once: one torch.autograd.grad gives those by all "
            "columns of the input, which the lines then share.",
            savings.lines(
                row.where,
                line,
                "u = model(x)  # once",
                "du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]  # du[:, 0], du[:, 1]",
            ),
        )
    return Cure(
        "Call it once, and use its output in all places: output.detach() where no gradient is "
        "needed.",
        savings.lines(row.where, line, "output = model(x)  # once"),
    )
