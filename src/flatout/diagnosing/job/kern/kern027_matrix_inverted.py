"""A matrix is inverted only to multiply by the inverse.

## What it sees

`torch.linalg.inv`, `torch.inverse` or `torch.linalg.pinv` of a matrix of 16 rows or more, whose
result nothing but one or two matrix products takes: natural gradients, Gauss-Newton steps, Kalman
gains, ridge regression. The data flow of a step knows what reads it. Told where these calls take
4 % of the step or more. An inverse for more right-hand sides than half of its rows is not told (a
pseudo-inverse: than its rows): a product is faster than a solve for each of them.

## Why it matters

An inverse solves the system for each column of the identity before it is multiplied: three times
the work of a solve. A pseudo-inverse goes through singular values or eigenvalues, ten to thirty
times the work. The inverse is also less accurate than the solution.

## Evidence

The line, the matrix, the lines that multiply by it, and the time of the inversion.

## Cure

`torch.linalg.solve(A, b)` in place of `inv(A) @ b`. Of a symmetric positive definite matrix (one
with damping, a covariance, A.T @ A + eps): `torch.cholesky_solve(b, torch.linalg.cholesky(A))`. Of
a pseudo-inverse of what is not square or has no full rank: `torch.linalg.lstsq(A, b)`. The gain:
four tenths of the time of an inverse, six tenths of that of a pseudo-inverse.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.linalg.inv.html
- https://docs.pytorch.org/docs/stable/generated/torch.linalg.pinv.html
- https://docs.pytorch.org/docs/stable/generated/torch.cholesky_solve.html
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.job import device_time, flow, operators, savings
from flatout.diagnosing.job.kern import values
from flatout.nouns import units
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.profile import Profile
from flatout_agent.wire import InverseSeen

CHECK = Check(code="KERN027", severity=Severity.WARNING, since="0.3.0")
LEAST = 0.04
"""Share of the step in these calls."""
NARROWEST = 16
"""Rows of a matrix below which nothing is told."""
SPARED, SPARED_PSEUDO = 0.4, 0.6
INVERTS = r"aten::(_?linalg_(inv|inv_ex|pinv|svd|eigh|lu_factor_ex|solve_ex)|inverse|pinverse)"


def check(profile: Profile) -> Iterator[Diagnosis]:
    """One finding for each line that inverts."""
    seen = flow.of(profile)
    for row in seen.inverses if seen is not None else ():
        assert seen is not None
        if min(operators.shape(row.shape)[0][-2:], default=0) < NARROWEST:
            continue
        took = values.recorded_ms(profile, seen, row.where, row.s, INVERTS)
        spared = SPARED_PSEUDO if row.pseudo else SPARED
        saving = device_time.of_device(
            profile,
            spared * took,
            f"{units.share(spared)} of {units.milliseconds(took)}: the rest is taken to be left "
            "for factorising and solving",
        )
        if took >= LEAST * profile.anatomy.step_ms and saving.worth:
            name = "pseudo-inverse" if row.pseudo else "inverse"
            yield Diagnosis(
                title=f"the {name} of a {row.shape} matrix is computed only to multiply by it: "
                f"{units.milliseconds(took)}",
                evidence=f"{units.count(row.calls, f'explicit {name}')} a step at {row.where}; "
                f"nothing but matrix products takes it, at {' and '.join(row.products[:3])}",
                cure=_cure(profile, row),
                severity=saving.severity,
                where=row.where,
                saves_ms=saving.ms,
                reason=saving.reason,
                most_ms=took,
            )


def _cure(profile: Profile, row: InverseSeen) -> Cure:
    source = flow.line_source(profile, row.where)
    positive = "x = torch.cholesky_solve(b, torch.linalg.cholesky(A))  # b: two dimensions or more"
    general = "x = torch.linalg.solve(A, b)"
    least_squares = "torch.linalg.lstsq(A, b).solution"
    if row.pseudo and len(set(operators.shape(row.shape)[0][-2:])) > 1:
        return Cure(
            "Solve the least-squares problem instead.",
            savings.lines(row.where, source, f"x = {least_squares}"),
        )
    if row.pseudo:
        return Cure(
            "Solve the system instead: by Cholesky where the matrix is positive definite (damped), "
            "else by solve; by least squares where it has no full rank.",
            savings.lines(
                row.where,
                source,
                positive if row.hermitian else general,
                f"# without full rank: {least_squares}",
            ),
        )
    return Cure(
        "Solve the system instead; by Cholesky where the matrix is positive definite.",
        savings.lines(row.where, source, general, f"# positive definite: {positive}"),
    )
