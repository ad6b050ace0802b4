"""Diagonal matrices are factorised and solved with as if they were full.

## What it sees

Cholesky factorisations and triangular solves of matrices that hold nothing but zeros beside their
diagonal: a `MultivariateNormal` whose covariance is `torch.diag(variance)`, `diag_embed` or a
multiple of the identity. The values are looked at in one step, and a line is told only where all of
its matrices are diagonal. Told where these operators, with their backward passes, take 4 % of the
step or more.

## Why it matters

Of a diagonal matrix the Cholesky factor is the square root of n numbers, and a solve is n
divisions. As full matrices they take n² memory and n³ operations, forward and backward, for the
same density, samples and divergence.

## Evidence

The lines, the matrices, where they are made, and the time of the operators on them.

## Cure

`Independent(Normal(mean, std), 1)` in place of `MultivariateNormal(mean, torch.diag(std ** 2))`:
the same `log_prob`, `rsample` and `kl_divergence`, element by element. The gain: nine tenths of the
time of the operators on these matrices.

## References

- https://docs.pytorch.org/docs/stable/distributions.html#independent
- https://docs.pytorch.org/docs/stable/distributions.html#multivariatenormal
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Operator, Profile
from flatout_agent.wire import DiagonalSeen

CHECK = Check(code="KERN028", severity=Severity.WARNING, since="0.3.0")
LEAST = 0.04
"""Share of the step in operators on these matrices."""
SPARED = 0.9
SHOWN = 3
"""Lines that are named."""


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for all of them."""
    seen = flow.of(profile)
    rows = seen.diagonals if seen is not None else ()
    matrices = [operator for operator in profile.operators if _on_matrices(operator, rows)]
    took = operators.total(profile, matrices)
    saving = device_time.of_device(
        profile,
        SPARED * took,
        f"{units.share(SPARED)} of {units.milliseconds(took)} in operators on these matrices: on "
        "their diagonals alone the work is by the number of rows smaller",
    )
    if not rows or took < LEAST * profile.anatomy.step_ms or not saving.worth:
        return
    factorising = [row for row in rows if any("cholesky" in name for name in row.operators)]
    first = (factorising or list(rows))[0]
    yield Diagnosis(
        title="Cholesky factors and triangular solves of matrices that are diagonal: "
        f"{units.milliseconds(took)}",
        evidence=f"{_matrices(rows)}; {operators.evidence(profile, matrices)}",
        cure=Cure(
            "Write the distribution element by element: Independent(Normal(...), 1) is "
            "MultivariateNormal with a diagonal covariance, and needs no matrix.",
            savings.lines(
                first.where,
                flow.line_source(profile, first.where),
                "Independent(Normal(mean, variance.sqrt()), 1)  # of torch.distributions",
            ),
        ),
        severity=saving.severity,
        where=first.where,
        saves_ms=saving.ms,
        reason=saving.reason,
        most_ms=took,
    )


def _on_matrices(operator: Operator, rows: Sequence[DiagonalSeen]) -> bool:
    """Whether it takes a matrix of the size on the line of one that is diagonal."""
    sizes = {row.size for row in rows if row.where == str(operator.where)}
    shapes = (shape[-2:] for shape in operators.inputs(operator))
    return bool(sizes) and any(shape == (size, size) for shape in shapes for size in sizes)


def _matrices(rows: Sequence[DiagonalSeen]) -> str:
    parts = []
    for row in rows[:SHOWN]:
        names = " and ".join(name.partition(".")[2] for name in row.operators)
        made = f", made at {row.built_where}" if row.built_where not in (None, row.where) else ""
        parts.append(f"{row.shape} in {names} at {row.where}{made}")
    return "all zeros beside the diagonal: " + "; ".join(parts)
