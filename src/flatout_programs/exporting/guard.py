"""Whether a build computes what the model computes in eager float32.

Exact and rounding builds are compared value by value, in every call as the script made it and row
by row with batch 1. Quantised ones are judged by the model's purpose: the accuracy on the script's
labels if there are any, else how often its answer stays the same.

`verify(calls, facts, run, precision)` takes the calls, the findings of `prepare` about the model,
and a function from input arrays to output arrays; it needs numpy, but not torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from flatout_programs.exporting.calls import CallFiles

EXACT = 1e-5
"""The relative L2 error that is always allowed for an exact build ..."""
OWN_ERRORS = 20.0
"""... or else this many times the error of eager float32 itself against float64."""
EXACT_MOST = 1e-3
"""The limit, however large the model's own error is."""
ROUNDING = 2e-2
ROW = 4.0
"""A single row may be off by this many times the limit of the whole."""
TIE = 4.0
"""Two classes are a tie if they differ by less than this many times the allowed error of a
value."""
ROUNDING_TOP1 = 0.99
QUANTISED = 0.99
"""MLPerf's rule: 99 % of the reference."""
PROOF_ROWS = 300
Z95 = 1.645
"""One-sided 95 %."""

Run = Callable[[Any], Any]


def limit_of(precision: str, own_error: float | None) -> float:
    """The largest relative L2 error that a build of this precision may have."""
    if precision == "exact":
        return min(EXACT_MOST, max(EXACT, OWN_ERRORS * (own_error or 0.0)))
    return ROUNDING


def verify(calls: CallFiles, facts: dict[str, Any], run: Run, precision: str) -> dict[str, Any]:
    """The verdict, as `flatout.nouns.exported.Guard` has it."""
    if precision == "quantised":
        return Quantised(calls, facts, run).verdict()
    return Valued(calls, facts, run, precision).verdict()


class WrongBuild(Exception):  # noqa: N818 - the guard's answer with its reason, not an error
    """The build is wrong, and why."""


class Valued:
    """The verdict on an exact or a rounding build."""

    def __init__(self, calls: CallFiles, facts: dict[str, Any], run: Run, precision: str) -> None:
        self.calls, self.facts, self.run, self.precision = calls, facts, run, precision
        errors = facts["own_errors"]
        self.limits = [limit_of(precision, error) for error in errors]
        self.error = 0.0
        self.rows = self.same = self.decided = 0
        self.sizes: set[int] = set()

    def verdict(self) -> dict[str, Any]:
        try:
            for group in ("seen", "single"):
                for at in range(self.calls.count(group)):
                    self._call(group, at)
            self._top1()
        except WrongBuild as reason:
            return self._as_dict(False, str(reason))
        return self._as_dict(True, "")

    def _call(self, group: str, at: int) -> None:
        rows = self.calls.rows(group, at)
        where = f"with batch {rows}"
        inputs = self.calls.inputs(group, at)
        kept = [item.copy() for item in inputs]
        outputs = self.run(inputs)
        _untouched(inputs, kept)
        wanted = self.calls.outputs(group, at)
        check_form(outputs, wanted, where)
        self.sizes.add(rows)
        if group == "seen":
            self.rows += rows
        for place, (found, reference) in enumerate(zip(outputs, wanted)):
            self._values(place, found, reference, where)

    def _values(self, place: int, found: Any, reference: Any, where: str) -> None:
        import numpy

        name = self.facts["output_names"][place]
        if reference.dtype.kind not in "fc":
            _same_numbers(found, reference, name, where, self.precision)
            return
        limit = self.limits[place]
        if reference.dtype.kind == "c" and reference.ndim:
            found, reference = (part.view(part.real.dtype) for part in (found, reference))
        found, reference = _finite_parts(found, reference, name, where)
        error = relative(found, reference)
        self.error = max(self.error, error)
        if error > limit:
            raise WrongBuild(f"{where}: {name} off by {error:.1e}, {limit:.1e} is allowed")
        axis = self.facts["output_axes"][place]
        if axis is None or reference.ndim <= axis:
            worst = error
        else:
            worst = _worst_row(*(numpy.moveaxis(part, axis, 0) for part in (found, reference)))
        if worst > ROW * limit:
            raise WrongBuild(
                f"{where}: a row of {name} off by {worst:.1e}, {ROW * limit:.1e} is allowed"
            )
        if place != self.facts["class_output"] or reference.ndim < 2:
            return
        flat, flat_found, margin, spread = classes(found, reference, self.facts["class_axis"])
        decided = margin > TIE * limit * spread
        self.decided += int(decided.sum())
        self.same += int((decided & (flat == flat_found)).sum())

    def _top1(self) -> None:
        if not self.decided:
            return
        share = self.same / self.decided
        least = 1.0 if self.precision == "exact" else ROUNDING_TOP1
        if share < least:
            raise WrongBuild(
                f"the most likely class is another one in {self.decided - self.same} of"
                f" {self.decided} rows"
            )

    def _as_dict(self, passed: bool, reason: str) -> dict[str, Any]:
        return {
            "passed": passed,
            "reason": reason,
            "samples": self.rows,
            "relative_error": self.error if math.isfinite(self.error) else None,
            "limit": max(self.limits, default=EXACT),
            "top1": self.same / self.decided if self.decided else None,
            "batch_sizes": sorted(self.sizes),
        }


def classes(found: Any, reference: Any, axis: int) -> tuple[Any, Any, Any, Any]:
    """Most likely class of the reference and of the build, the reference's margin before the next
    class, and the size of its values; one of each for every row.
    """
    import numpy

    axis = axis if axis >= 0 else reference.ndim + axis
    wide = numpy.moveaxis(reference, axis, -1).reshape(-1, reference.shape[axis])
    wide_found = numpy.moveaxis(found, axis, -1).reshape(-1, found.shape[axis])
    top = numpy.partition(wide, -2, axis=-1)
    spread = numpy.sqrt((wide.astype(numpy.float64) ** 2).mean(axis=-1))
    return wide.argmax(-1), wide_found.argmax(-1), top[:, -1] - top[:, -2], spread


class Quantised:
    """The verdict on a build that is judged by the model's purpose."""

    def __init__(self, calls: CallFiles, facts: dict[str, Any], run: Run) -> None:
        self.calls, self.facts, self.run = calls, facts, run
        self.good: list[float] = []
        """The score of each row of the build ..."""
        self.reference: list[float] = []
        """... and of the same row of the reference."""
        self.right: list[bool] = []
        self.right_reference: list[bool] = []
        self.metric = ""
        self.error = 0.0
        self.sizes: set[int] = set()

    def verdict(self) -> dict[str, Any]:
        try:
            for at in range(self.calls.count("unseen")):
                self._call(at)
            self._single()
        except WrongBuild as reason:
            return self._as_dict(False, str(reason), None, None, None)
        if not self.sizes:
            return self._as_dict(
                False,
                "not proven: too few samples to judge by beside those of the calibration",
                None,
                None,
                None,
            )
        return self._judge()

    def _call(self, at: int) -> None:
        rows = self.calls.rows("unseen", at)
        outputs = self.run(self.calls.inputs("unseen", at))
        wanted = self.calls.outputs("unseen", at)
        check_form(outputs, wanted, f"with batch {rows}")
        self.sizes.add(rows)
        for found, reference, name in zip(outputs, wanted, self.facts["output_names"]):
            if reference.dtype.kind == "f":
                values = _finite_parts(found, reference, name, f"with batch {rows}")
                self.error = max(self.error, relative(*values))
        place = self.facts["class_output"]
        if place is not None:
            self._classes(outputs[place], wanted[place], self.calls.target("unseen", at))
        else:
            self._numbers(outputs, wanted, self.calls.target("unseen", at))

    def _classes(self, found: Any, reference: Any, target: Any) -> None:
        axis = self.facts["class_axis"]
        wanted, answered, _, _ = classes(found, reference, axis)
        labels = None
        if target is not None and target.dtype.kind in "iu" and target.size == wanted.size:
            labels = target.reshape(-1)
        self.metric = "accuracy" if labels is not None else "agreement"
        truth = wanted if labels is None else labels
        kept = truth >= 0  # -100 and the like: rows that the script's loss ignores
        self.right += (answered == truth)[kept].tolist()
        self.right_reference += (wanted == truth)[kept].tolist()

    def _numbers(self, outputs: Any, wanted: Any, target: Any) -> None:
        import numpy

        self.metric = "error"
        for found, reference in zip(outputs, wanted):
            if reference.dtype.kind != "f":
                continue
            found = found.reshape(len(found), -1) if found.ndim > 1 else found.reshape(-1, 1)
            reference = reference.reshape(found.shape)
            scale = numpy.sqrt((reference.astype(numpy.float64) ** 2).mean())
            off = numpy.sqrt(((found - reference).astype(numpy.float64) ** 2).mean(axis=-1))
            self.good += (off / max(float(scale), 1e-30)).tolist()

    def _single(self) -> None:
        """Check that single rows give the same form and finite values as in a batch."""
        for at in range(min(4, self.calls.count("single"))):
            outputs = self.run(self.calls.inputs("single", at))
            wanted = self.calls.outputs("single", at)
            rows = self.calls.rows("single", at)
            check_form(outputs, wanted, f"with batch {rows}")
            self.sizes.add(rows)
            for found, reference, name in zip(outputs, wanted, self.facts["output_names"]):
                if reference.dtype.kind == "f":
                    _finite_parts(found, reference, name, f"with batch {rows}")

    def _judge(self) -> dict[str, Any]:
        count = len(self.right) or len(self.good)
        if self.right:
            value, reference, lower = paired_bound(self.right, self.right_reference)
        else:
            value, reference, lower = error_bound(self.good)
        if lower >= QUANTISED and count >= PROOF_ROWS:
            return self._as_dict(True, "", value, reference, lower)
        if count < PROOF_ROWS:
            reason = f"not proven: {count} rows beside the calibration, {PROOF_ROWS} are needed"
        else:
            reason = (
                f"not proven: with 95 % confidence {self.metric} is at least {100 * lower:.1f} %"
                " of the reference"
            )
        return self._as_dict(False, reason, value, reference, lower)

    def _as_dict(
        self,
        passed: bool,
        reason: str,
        value: float | None,
        reference: float | None,
        lower: float | None,
    ) -> dict[str, Any]:
        return {
            "passed": passed,
            "reason": reason,
            "samples": len(self.right) or len(self.good),
            "relative_error": self.error if math.isfinite(self.error) else None,
            "limit": None,
            "metric": self.metric,
            "value": value,
            "reference": reference,
            "lower": lower,
            "batch_sizes": sorted(self.sizes),
        }


def paired_bound(right: list[bool], right_reference: list[bool]) -> tuple[float, float, float]:
    """Share of right answers of the build and of the reference, and the lower 95 % bound of their
    ratio, from the rows where they differ (Agresti and Min: half a row is added to each kind).
    """
    count = len(right)
    lost = sum(1 for b, r in zip(right, right_reference) if r and not b) + 0.5
    won = sum(1 for b, r in zip(right, right_reference) if b and not r) + 0.5
    total = count + 2
    difference = (won - lost) / total
    spread = math.sqrt(max(0.0, (won + lost) - (won - lost) ** 2 / total)) / total
    reference = sum(right_reference) / count
    lower = 1 + (difference - Z95 * spread) / reference if reference else 0.0
    return sum(right) / count, reference, lower


def error_bound(errors: list[float]) -> tuple[float, float, float]:
    """For outputs that are numbers: 1 minus their relative error, and its bound."""
    mean = sum(errors) / len(errors)
    variance = sum((item - mean) ** 2 for item in errors) / max(1, len(errors) - 1)
    upper = mean + Z95 * math.sqrt(variance / len(errors))
    return 1 - mean, 1.0, 1 - upper


def check_form(outputs: Any, wanted: Any, where: str) -> None:
    """Number, shapes and kinds of the outputs. Raises WrongBuild."""
    if len(outputs) != len(wanted):
        raise WrongBuild(f"{where}: {len(outputs)} outputs instead of {len(wanted)}")
    for at, (found, reference) in enumerate(zip(outputs, wanted)):
        if tuple(found.shape) != tuple(reference.shape):
            raise WrongBuild(
                f"{where}: output {at} has the shape {tuple(found.shape)} instead of"
                f" {tuple(reference.shape)}"
            )
        if found.dtype != reference.dtype:
            raise WrongBuild(f"{where}: output {at} is {found.dtype} instead of {reference.dtype}")


def relative(found: Any, reference: Any) -> float:
    """Relative L2 error."""
    import numpy

    wide = reference.astype(numpy.float64)
    norm = float(numpy.sqrt((wide**2).sum()))
    off = float(numpy.sqrt(((found.astype(numpy.float64) - wide) ** 2).sum()))
    if norm == 0.0:
        return 0.0 if off == 0.0 else math.inf
    return off / norm


def _worst_row(found: Any, reference: Any) -> float:
    import numpy

    wide = reference.reshape(len(reference), -1).astype(numpy.float64)
    off = numpy.sqrt(((found.reshape(len(found), -1) - wide) ** 2).sum(axis=1))
    norms = numpy.sqrt((wide**2).sum(axis=1))
    typical = float(numpy.sqrt((norms**2).mean())) if norms.size else 0.0
    return float((off / numpy.maximum(norms, max(typical, 1e-30))).max()) if norms.size else 0.0


def _finite_parts(found: Any, reference: Any, name: str, where: str) -> tuple[Any, Any]:
    """Both with zeros where the reference itself is not finite, as masks of -inf are
    also values.
    """
    import numpy

    odd = ~numpy.isfinite(reference)
    if odd.any():
        if not numpy.array_equal(found[odd], reference[odd], equal_nan=True):
            raise WrongBuild(f"{where}: {name} is not infinite or NaN where the model is")
        found, reference = numpy.where(odd, 0, found), numpy.where(odd, 0, reference)
    if not numpy.isfinite(found).all():
        raise WrongBuild(f"{where}: {name} has NaN or infinite values")
    return found, reference


def _same_numbers(found: Any, reference: Any, name: str, where: str, precision: str) -> None:
    """Whole numbers and truth values: the same; after rounding in 99 of 100 places."""
    import numpy

    share = float(numpy.equal(found, reference).mean()) if reference.size else 1.0
    if share < (1.0 if precision == "exact" else ROUNDING_TOP1):
        raise WrongBuild(f"{where}: {name} differs in {100 * (1 - share):.1f} % of its values")


def _untouched(inputs: Any, kept: Any) -> None:
    import numpy

    for at, (item, copy) in enumerate(zip(inputs, kept)):
        if not numpy.array_equal(item, copy, equal_nan=item.dtype.kind in "fc"):
            raise WrongBuild(f"it writes into input {at}")
