"""Python between the operators takes a large part of a step on the CPU.

## What it sees

Training on a CPU: a quarter of the step or more passes in calling operators: in torch's Python and
its dispatch, between operators and (1.5 us for each) inside of them, on one core. The script's own
Python (HOST009), other packages (HOST010), operators called one by one outside of the model
(HOST011) and text of tensors (HOST018) are not counted: compiling the model does not cure them. Nor
is the optimizer (KERN010), nor a recurrent layer of torch, which loops over its time steps itself.
If stacks were sampled, an operator counts for 30 us at most: more is not its call, but a machine
that does other work.

## Why it matters

Only operators use several cores. Calling small ones takes as long as computing them, and more cores
do not help: the step is bound by one core.

## Cure

A loop over samples, heads, time steps or elements written as operators on whole tensors; else
`torch.compile`, which calls one function instead of hundreds of operators; larger batches. A loop
outside of any module's forward pass is not compiled with it: call them once for all there, or less
often if the result only informs. The gain: half of the time in Python and in dispatch.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.compile.html
- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import host_lines, loading, savings
from flatout.diagnosing.job.host import launch_gaps, operator_loops
from flatout.nouns import units
from flatout.nouns.anatomy import CALLING, HOST_PARTS, WAITS, Kind
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.place import Place
from flatout.nouns.profile import Profile

CHECK = Check(code="HOST008", severity=Severity.WARNING, since="0.2.0")
LEAST_SHARE = 0.25
DISPATCH_MS = 0.0015
"""Time inside one operator before it computes."""
MOST_CALL_MS = 0.03
"""The most for one operator with torch's Python around it; more means a busy machine."""
MANY = 50
SPARED = 0.5
FORWARD = "forward"
"""The name of a module's own function."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for the step."""
    anatomy = profile.anatomy
    python = anatomy.part(*CALLING)
    elsewhere = (*HOST_PARTS, *WAITS, Kind.OPTIMIZER)
    operators = [part for part in anatomy.parts if part.kind not in elsewhere]
    texts = operator_loops.text_share(profile)
    texts_ms = sum(group.ms for group in host_lines.formatting(profile))
    calls = (1 - texts) * sum(part.launches for part in operators)
    computing = sum(part.ms for part in operators)
    texts_ms -= texts * computing
    computing -= texts * computing
    loop_ms = sum(group.ms for group in operator_loops.repeated(profile))
    updating_ms = operator_loops.update_ms(profile)
    called = 1 - operator_loops.recurrent_share(profile)
    calling = called * _calling_ms(profile, computing, calls) - loop_ms - updating_ms
    calling -= max(0.0, texts_ms)
    saves = savings.within(profile, SPARED * calling)
    if savings.accelerated(profile) or calls < MANY or not savings.worth(profile, saves):
        return
    if calling < LEAST_SHARE * anatomy.step_ms:
        return
    used, share = loading.cores_busy(profile), loading.cores(profile)
    busy = f"; {used:.1f} cores busy" if used is not None else ""
    of_cores = f" of {share}" if busy and share else ""
    busiest = operator_loops.busiest_line(profile)
    yield Diagnosis(
        title=f"calling operators takes {units.share(calling / anatomy.step_ms)} of the step",
        evidence=f"{units.milliseconds(python)} of {units.milliseconds(anatomy.step_ms)} between "
        f"{calls:,.0f} operators of {1000 * computing / calls:,.0f} us on average{busy}{of_cores}"
        + _loop(busiest),
        cure=_cure(profile, busiest),
        severity=savings.severity(profile, saves),
        where=_where(profile, busiest),
        boost=savings.boost(profile, "compile") if _in_model(profile, busiest) else None,
        saves_ms=saves,
        reason=f"half of {units.milliseconds(calling)} in Python and dispatch: what is between "
        f"operators, and {1000 * DISPATCH_MS:.1f} us in each",
    )


def _calling_ms(profile: Profile, computing_ms: float, calls: float) -> float:
    """Milliseconds in calling operators: between (without garbage collections) and inside them."""
    between = profile.anatomy.part(*CALLING)
    inside = min(computing_ms, DISPATCH_MS * calls)
    if profile.host is None:
        return max(0.0, between - launch_gaps.paused_ms(profile)) + inside
    return min(between + inside, MOST_CALL_MS * calls)


def _where(profile: Profile, busiest: tuple[Place, float] | None) -> str | None:
    """The line of the loop, else of the model's call."""
    if busiest is not None:
        return str(busiest[0])
    return profile.seen.model_where if profile.seen is not None else None


def _loop(busiest: tuple[Place, float] | None) -> str:
    """For the evidence: the loop that calls most operators."""
    if busiest is None:
        return ""
    place, calls = busiest
    function = f" in {place.function}()" if place.function else ""
    return f"; {calls:,.0f} of them in a Python loop at {place}{function}: {place.source}"


def _in_model(profile: Profile, busiest: tuple[Place, float] | None) -> bool:
    """Whether compiling the model reaches the loop; True if no loop or no host time is known."""
    if busiest is None or profile.host is None:
        return True
    place = busiest[0]
    forward = host_lines.function(place).rpartition(".")[2] == FORWARD
    return forward or any(
        line.modelling and str(line.where) == str(place) for line in profile.host.lines
    )


def _cure(profile: Profile, busiest: tuple[Place, float] | None) -> Cure:
    compiled = savings.lines("before training", "", "model.compile()")
    if busiest is None:
        return Cure("Compile the model, so that fewer and larger functions are called.", compiled)
    place = busiest[0]
    vectorised = savings.lines(place, place.source, "# on whole tensors")
    if _in_model(profile, busiest):
        return Cure(
            "Vectorise the loop: one operator on the whole batch, all heads, time steps or "
            "elements at once; what does not change, build once before the loop. Else compile the "
            "model.",
            (*vectorised, *compiled),
        )
    trained = any(row.backward and str(row.where) == str(place) for row in profile.operators)
    seldom = "" if trained else "; or less often, every N steps, where the result only informs"
    return Cure(
        "Call them once for all, on the whole batch instead of element by element: this loop is in "
        f"no module{seldom}.",
        vectorised,
    )
