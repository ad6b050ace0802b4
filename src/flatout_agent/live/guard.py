"""The Guard compares the same calls at the same weights, as written and under a boost.

docs/guard.md explains the rules. All distances are relative L2 distances of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import repeat

import torch

from flatout_agent.live.calls import RecordedCall, RepeatedCall, again
from flatout_agent.speedups.precision import rounds_to_tf32

REORDERED = 8.0
"""An exact boost may differ from the program by this many times what reordering the program's own
sums changes: a boost reorders in more places."""
LEAST_REORDERED = 2e-6
"""The smallest error of reordering assumed: a few units in the last place of float32."""
ROUNDING = 0.7
"""Largest error of a rounding boost as a share of the noise between batches: half its variance."""
ROUNDED = 4.0
"""A rounding boost may err by this many times what rounding the weights to bfloat16 does: it also
rounds what flows through the model. Measured over 13 nets at 3 stages: 0.1 to 1.7 times, unless
errors were too small to matter (`LEAST_ROUNDED`)."""
WAYS = 4
"""Weights are rounded in so many ways, and the largest effect counts. With ReLUs and few examples
one way often moves no activation across zero, while the boost does: with one, a sound bfloat16 was
refused in 6 % of 560 checks of such nets."""
LEAST_ROUNDED = 0.03
AVERAGES_OUT = 0.1
"""A larger error of a rounding boost passes, too, up to this share of the batch noise (a hundredth
of its variance), if the part of it that two batches have in common is within the limit. So does a
parameter's error beyond its own limit, if it is noise on a gradient that is otherwise the same."""
FEWEST_ENTRIES, SEEN = 64, 0.5
"""With fewer entries, and so much noise that it may change the projection by this share by chance,
noise is not told from a fault."""
BY_CHANCE = 4.0
"""Independent errors correlate by at most this many times the root of 1 / entries."""
LEAST_TENSOR = 0.25
"""The same for one parameter's gradient."""
LEAST_OUTPUT = 0.25
"""The same for all outputs together. As the same gradients come back, a layer's lost bias shows
only here."""
ONE_ROW = 10.0
"""One example's output may err by this many times the error of the median example ..."""
FEWEST_ROWS = 4
LEAST_ROW = 0.05
"""... or by this share of an output's usual length."""
ONE_TENSOR = 1.0
"""The same for the one parameter that differs most, beside its own batch noise."""
NEAR = 8.0
"""For an exact boost, an error up to this many times the limit counts as near it: in the first
steps of a deep network the error may be a hundred times what it is later."""
EXACT_TENSOR = 10.0
"""The same for exact boosts, as a multiple of the limit of all parameters together."""
BIAS = 0.005
"""A rounding boost may lengthen or shorten gradients or outputs by this share, since such errors do
not average out. What errors of that size do by chance (`_by_chance`) is added."""
LEAST_BATCH_NOISE = 0.1
OWN = 1.5
"""A program that draws random numbers differs from itself. A boost that draws other numbers may
differ by this many times as much."""
NEGLIGIBLE = 1e-3
"""A parameter whose gradient is below this share of the largest is not judged on its own."""
ULP = 2.0**-23
UNITS = 32
"""Weights are shifted by this many units in the last place. In a net with many activations near
zero a reordering switches some of them on or off; a shift by one unit may miss all of them by
luck."""
HALF = 2.0**-9
"""Largest error of rounding to bfloat16."""
HALF_TF32 = 2.0**-12
OTHER_SEED = 7919
NOT_COMPARED = "the gradient was not compared: "
"""The beginning of a verdict's reason."""


@dataclass(frozen=True)
class Rounding:
    """The largest effects of rounding the weights in some ways."""

    gradients: float
    outputs: float
    by_tensor: tuple[float, ...]
    """The effect on each gradient."""
    rows: tuple[float, ...]
    """For each output, the effect on the example that it moves most."""
    ways: int = 1
    """Each further way can only raise them."""


@dataclass(frozen=True)
class NoiseFloor:
    """How far the program as written differs from itself, at the same weights."""

    reordered: float
    """Distance after merely reordering its arithmetic."""
    batch_noise: float | None
    """Distance between the gradients of two batches, or None if there was no second batch."""
    redrawn: float | None
    """Distance between two runs that draw different random numbers, or None if it draws none."""
    by_tensor: tuple[float, ...] = ()
    """Batch noise of each gradient, in the order of `RepeatedCall.gradients`."""
    rounding: Rounding | None = None
    """What rounding the weights to 16 bits does, or None if not measured."""

    @property
    def tensor_noise(self) -> tuple[float, ...]:
        """Batch noise of each gradient; under a rounding boost at most what rounding does to it."""
        if self.rounding is None:
            return self.by_tensor
        pairs = zip(self.by_tensor or repeat(1.0), self.rounding.by_tensor)  # noqa: B905
        return tuple(min(noise, max(LEAST_TENSOR, ROUNDED * by)) for noise, by in pairs)


@dataclass(frozen=True)
class Comparison:
    """Gradients and outputs under a boost compared with those as written."""

    error: float
    projection: float
    """<g, g0> / <g0, g0>: 1 unless something is lost or added systematically."""
    outputs: float
    """The same for the outputs."""
    output_error: float
    finite: bool
    worst: tuple[str, float]
    """The parameter that differs most relative to its own noise, and that ratio."""
    entries: int
    row: float = 0.0
    """The largest difference in one example's output, relative to the other examples'."""


@dataclass(frozen=True)
class GuardVerdict:
    """Whether a boost computes the same, and the numbers in one line."""

    passed: bool
    reason: str
    error: float | None = None
    noise_floor: NoiseFloor | None = None
    near: bool = False
    """Only the size of the error failed, near the limit: worth another look some steps later."""
    failed: bool = False
    """It raised an error, which the reason gives."""
    by_draws: bool = False
    """It failed beside what other random numbers do."""
    common: float | None = None
    """Only the size of the error failed, in all or for some parameters, and it may average out: the
    largest error that two batches may have in common."""

    @property
    def summary(self) -> str:
        """The reason, worded to be listed among others."""
        return f"failed: {self.reason}" if self.failed else self.reason


def reference(recorded: RecordedCall) -> RepeatedCall | None:
    """The call repeated as written, or None if it does not give the same again.

    A model that keeps hidden state cannot be compared.
    """
    rerun = again(recorded)
    return rerun if same_again(rerun.outputs, recorded.outputs) else None


def same_again(outputs: list[torch.Tensor], before: list[torch.Tensor]) -> bool:
    """Whether a call repeated the same way gives what it gave before."""
    limit = 1e-3 if all(output.dtype.itemsize >= 4 for output in before) else 5e-2
    return distance(outputs, before)[0] <= limit


def worst(verdicts: Sequence[GuardVerdict]) -> GuardVerdict | None:
    """The first one that has not passed, or that with the largest error."""
    failed = next((verdict for verdict in verdicts if not verdict.passed), None)
    return failed or max(verdicts, key=lambda verdict: verdict.error or 0.0, default=None)


def noise_floor(
    recorded: RecordedCall,
    written: RepeatedCall,
    redraws: bool,
    rounds: bool = False,
    rounded_by: float = 0.0,
    known: NoiseFloor | None = None,
) -> NoiseFloor:
    """Measure how far the program differs from itself.

    rounded_by: the rounding of factors in the call as it is made now; a reordering does no less.
    known: a noise floor of the same program for another purpose.
    """
    if known is None:
        known = _own_noise(recorded, written, rounded_by)
    redrawn, rounding = known.redrawn, known.rounding
    if redraws and redrawn is None and recorded.drew:
        redrawn = distance(again(recorded, OTHER_SEED).gradients, written.gradients)[0]
    if rounds and rounding is None:
        rounding = _of_rounding(recorded, written, 0)
    return replace(
        known, redrawn=redrawn if redraws else None, rounding=rounding if rounds else None
    )


def _of_rounding(recorded: RecordedCall, written: RepeatedCall, way: int) -> Rounding:
    with _weights_off(recorded.model, HALF, way):
        rerun = again(recorded)
    errors = map(_row_errors, rerun.outputs, written.outputs)
    return Rounding(
        distance(rerun.gradients, written.gradients)[0],
        distance(rerun.outputs, written.outputs)[0],
        _by_tensor(rerun, written),
        tuple(0.0 if error is None else float(error.max()) for error in errors),
    )


def _own_noise(recorded: RecordedCall, written: RepeatedCall, rounded_by: float) -> NoiseFloor:
    """The distances that every boost is judged by: of a reordering, and of another batch."""
    unit = max(UNITS * ULP, rounded_by, _rounded_by(recorded))
    with _other_order(recorded.model, unit):
        reordered = distance(again(recorded).gradients, written.gradients)[0] / REORDERED
    noise: float | None = None
    by_tensor: tuple[float, ...] = ()
    other = recorded.second_batch
    twin: RepeatedCall | None = None
    if other is not None:
        with suppress(RuntimeError):  # inputs of another shape may need what is no longer there
            twin = again(other)
    if twin is not None and len(twin.gradients) == len(written.gradients):
        noise = distance(twin.gradients, written.gradients)[0]
        by_tensor = _by_tensor(twin, written)
    return NoiseFloor(max(reordered, LEAST_REORDERED), noise, None, by_tensor)


def _by_tensor(rerun: RepeatedCall, written: RepeatedCall) -> tuple[float, ...]:
    pairs = zip(rerun.gradients, written.gradients, strict=True)
    return tuple(distance([a], [b])[0] for a, b in pairs)


def _rounded_by(recorded: RecordedCall) -> float:
    """The program's own rounding of factors, if it computes in 16 bits or in TF32."""
    weights = [p for p in recorded.model.parameters() if p.is_floating_point()]
    dtypes = {weight.dtype for weight in weights}
    if any(dtype.itemsize < 4 for dtype in (*dtypes, *recorded.autocast.values())):
        return HALF
    on_cuda = any(weight.device.type == "cuda" for weight in weights)
    return HALF_TF32 if on_cuda and torch.float32 in dtypes and rounds_to_tf32() else 0.0


@contextmanager
def _other_order(model: torch.nn.Module, unit: float) -> Iterator[None]:
    """Sums in another order: another number of threads, other algorithms, weights off by one unit.

    The shift imitates any reordering of a layer's output, even if no kernel can be made to use
    another order.
    """
    threads, deterministic = torch.get_num_threads(), torch.backends.cudnn.deterministic
    with _weights_off(model, unit):
        try:
            if next((p.device.type for p in model.parameters()), "cpu") == "cpu":
                torch.set_num_threads(threads - 1 if threads > 1 else 2)
            else:
                torch.backends.cudnn.deterministic = not deterministic
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.deterministic = deterministic


@contextmanager
def _weights_off(model: torch.nn.Module, unit: float, way: int = 0) -> Iterator[None]:
    """Each weight larger or smaller by this share of itself, or by one unit in its last place.

    way: one of `WAYS`, which differ in the signs. The weights are restored bit for bit.
    """
    parameters = [p for p in model.parameters() if p.is_floating_point() and p.numel()]
    before = [p.detach().clone() for p in parameters]
    try:
        for number, parameter in enumerate(parameters):
            share = max(unit, torch.finfo(parameter.dtype).eps)
            factors = torch.full_like(
                parameter.data, 1 + share, memory_format=torch.contiguous_format
            )
            factors.view(-1)[(number // (1 + way // 2) + way) % 2 :: 2] = 1 - share
            parameter.data.mul_(factors)
        yield
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.data.copy_(value)


def compare(
    written: RepeatedCall,
    boosted: RepeatedCall,
    noise: tuple[float, ...] = (),
    rounded_rows: tuple[float, ...] = (),
) -> Comparison:
    """How far `boosted` is from `written`.

    noise: the noise of each gradient. rounded_rows: how far rounding the weights moves an example's
    output.
    """
    error, projection, entries = distance(boosted.gradients, written.gradients)
    output_error, outputs, _ = distance(boosted.outputs, written.outputs)
    finite = all(
        bool(_dense(tensor).isfinite().all())
        for tensor, before in zip(
            [*boosted.outputs, *boosted.gradients],
            [*written.outputs, *written.gradients],
            strict=True,
        )
        if tensor is not None and before is not None and bool(_dense(before).isfinite().all())
    )
    worst = max(_beyond(written, boosted, noise).values(), default=("", 0.0), key=lambda w: w[1])
    by_rounding = rounded_rows or (0.0,) * len(written.outputs)
    rows = [
        _worst_row(a, b, rounded)
        for a, b, rounded in zip(boosted.outputs, written.outputs, by_rounding, strict=True)
    ]
    row = max(rows, default=0.0)
    return Comparison(error, projection, outputs, output_error, finite, worst, entries, row)


def _row_errors(boosted: torch.Tensor, written: torch.Tensor) -> torch.Tensor | None:
    """How far each entry of the first dimension is off, or None if the entries are no examples."""
    boosted, written = _dense(boosted), _dense(written)
    if written.dim() < 1 or len(written) < FEWEST_ROWS or boosted.shape != written.shape:
        return None
    errors: torch.Tensor = (boosted - written).reshape(len(written), -1).norm(dim=1)
    return errors


def _worst_row(boosted: torch.Tensor, written: torch.Tensor, rounded: float) -> float:
    """How far the worst example is off, as a share of what one is allowed.

    rounded: how far rounding the weights moves any example; some nets amplify rounding in some
    examples.
    """
    errors = _row_errors(boosted, written)
    if errors is None:
        return 0.0
    usual = float(_dense(written).reshape(len(written), -1).square().sum(dim=1).mean().sqrt())
    allowed = max(ONE_ROW * float(errors.median()), LEAST_ROW * usual, ROUNDED * rounded)
    return float(errors.max()) / allowed if allowed > 0 else 0.0


def distance(
    tensors: Sequence[torch.Tensor | None], references: Sequence[torch.Tensor | None]
) -> tuple[float, float, int]:
    """(|a - b| / |b|, <a, b> / <b, b>, entries) over all tensors; a missing tensor counts as 0."""
    difference = norm = product = 0.0
    entries = 0
    for pair in zip(tensors, references, strict=True):
        a, b = (None if tensor is None else _dense(tensor) for tensor in pair)
        if a is not None and b is not None and a.shape == b.shape:
            difference += float((a - b).square().sum())
            norm += float(b.square().sum())
            product += float((a * b).sum())
            entries += b.numel()
            continue
        present = a if b is None else b
        if present is not None:
            square = float(present.square().sum())
            difference += square
            norm += 0.0 if b is None else square
    if norm == 0.0:
        return (0.0 if difference == 0.0 else math.inf), 1.0, entries
    return math.sqrt(difference / norm), product / norm, entries


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    return tensor.abs().float() if tensor.is_complex() else tensor.float()


def _beyond(
    written: RepeatedCall, boosted: RepeatedCall, noise: tuple[float, ...], least: float = 0.0
) -> dict[int, tuple[str, float]]:
    """By position, the name of each gradient that differs by more than `least` times its batch
    noise or, if that is missing, its length; and by how many times.
    """
    norms = [0.0 if g is None else float(_dense(g).norm()) for g in written.gradients]
    largest = max(norms, default=0.0)
    found: dict[int, tuple[str, float]] = {}
    for position, norm in enumerate(norms):
        if norm <= NEGLIGIBLE * largest:
            continue
        error = distance([boosted.gradients[position]], [written.gradients[position]])[0]
        beside = max(noise[position], LEAST_BATCH_NOISE) if position < len(noise) else 1.0
        if error / beside > least:
            found[position] = written.names[position], error / beside
    return found


def judge(
    comparison: Comparison, noise_floor: NoiseFloor, risk: str, redraws: bool
) -> GuardVerdict:
    """The verdict. risk: the risk of the boost."""
    if not comparison.finite:
        return GuardVerdict(
            False, "NaN or Inf where the program as written has none", comparison.error, noise_floor
        )
    if noise_floor.redrawn is not None and redraws:
        return _redrawn(comparison, noise_floor)
    return _exact(comparison, noise_floor) if risk == "exact" else _rounded(comparison, noise_floor)


def surely(written: RepeatedCall, boosted: RepeatedCall, risk: str) -> GuardVerdict | None:
    """The verdict if the boost passes whatever the program's own noise is, else None.

    That noise then need not be measured: no noise floor is stricter than this one.
    """
    strictest = NoiseFloor(LEAST_REORDERED, 0.0, None, rounding=Rounding(0.0, 0.0, (), ()))
    comparison = compare(written, boosted, (0.0,) * len(written.gradients))
    if not judge(comparison, strictest, risk, False).passed:
        return None
    return GuardVerdict(True, f"gradient error {percent(comparison.error)}", comparison.error)


def too_far(written: RepeatedCall, boosted: RepeatedCall, noise_floor: NoiseFloor) -> bool:
    """Whether a rounding boost fails whatever rounding the weights does.

    noise_floor: that of boosts that do not round. What rounding does then need not be measured: it
    can only lower the limit.
    """
    error, *_ = distance(boosted.gradients, written.gradients)
    return not error <= _rounding_limit(noise_floor)


def verdict(
    recorded: RecordedCall,
    written: RepeatedCall,
    compared: tuple[RepeatedCall, RepeatedCall],
    noise_floor: NoiseFloor,
    risk: str,
    redraws: bool,
    further: bool = True,
) -> GuardVerdict:
    """Compare a call as written with the one under a boost, and judge the difference.

    written: the call that the noise floor was measured with. further: if it fails by what rounding
    the weights does, measure that in more ways; the noise floor of the verdict has them all.
    """
    while True:
        rounding = noise_floor.rounding
        rows = rounding.rows if rounding is not None else ()
        comparison = compare(*compared, noise_floor.tensor_noise, rows)
        judged = judge(comparison, noise_floor, risk, redraws)
        if judged.passed or not further or rounding is None or rounding.ways >= WAYS:
            return judged
        other = _of_rounding(recorded, written, rounding.ways)
        rounding = Rounding(
            max(rounding.gradients, other.gradients),
            max(rounding.outputs, other.outputs),
            tuple(map(max, rounding.by_tensor, other.by_tensor)),
            tuple(map(max, rounding.rows, other.rows)),
            rounding.ways + 1,
        )
        noise_floor = replace(noise_floor, rounding=rounding)


def of_rounded_weights(
    model: torch.nn.Module, written: list[torch.Tensor], again: Callable[[], list[torch.Tensor]]
) -> float:
    """How far rounding its weights to bfloat16 moves the outputs of a repeated call."""
    with _weights_off(model, HALF):
        return distance(again(), written)[0]


def outputs_verdict(
    written: list[torch.Tensor], boosted: list[torch.Tensor], rounded: float
) -> GuardVerdict:
    """The verdict on a boost that rounds in a model that is not trained, by its outputs alone.

    rounded: how far rounding the model's weights to bfloat16 moves them.
    """
    error, projection, _ = distance(boosted, written)
    summary, limit = f"output error {percent(error)}", max(LEAST_ROUNDED, ROUNDED * rounded)
    if not error <= limit:  # also if it is NaN
        return GuardVerdict(False, f"{summary}: more than {percent(limit)}", error)
    if abs(projection - 1) > BIAS + _by_chance(error, 1):
        reason = f"{summary}; outputs {percent(projection)} as large as they were"
        return GuardVerdict(False, reason, error)
    return GuardVerdict(True, summary, error)


def as_redrawn(recorded: RecordedCall, written: RepeatedCall, verdict: GuardVerdict) -> bool:
    """Whether the error is no larger than other random numbers alone would make it.

    written: the repeated call that the verdict was made with.
    """
    other = distance(again(recorded, OTHER_SEED).gradients, written.gradients)[0]
    return verdict.error is not None and verdict.error <= OWN * other


def _redrawn(comparison: Comparison, noise_floor: NoiseFloor) -> GuardVerdict:
    assert noise_floor.redrawn is not None
    error = comparison.error
    noise = max(noise_floor.batch_noise or 0.0, LEAST_BATCH_NOISE)
    limit = OWN * noise_floor.redrawn
    summary = (
        f"gradient error {percent(error / noise)} of batch noise,"
        f" {percent(noise_floor.redrawn / noise)} between two runs as written"
    )
    if not error <= limit:
        reason = f"{summary}: more than {percent(limit / noise)}"
        return GuardVerdict(False, reason, error, noise_floor, by_draws=True)
    return GuardVerdict(True, summary, error, noise_floor)


def _exact(comparison: Comparison, noise_floor: NoiseFloor) -> GuardVerdict:
    error = comparison.error
    limit = REORDERED * noise_floor.reordered
    summary = f"gradient error {error:.1e}, {noise_floor.reordered:.1e} by reordering alone"
    near = False
    if not (error <= limit and comparison.output_error <= limit):
        output_error = "" if not error <= limit else f", output error {comparison.output_error:.1e}"
        reason = f"{summary}{output_error}: more than {limit:.1e}"
        near = max(error, comparison.output_error) < NEAR * limit
    elif abs(comparison.projection - 1) > BIAS + _by_chance(error, comparison.entries):
        reason = f"{summary}; gradients {percent(comparison.projection)} as long as they were"
    elif comparison.worst[1] > EXACT_TENSOR * limit / LEAST_BATCH_NOISE:
        reason = f"{summary}; {comparison.worst[0]} differs more"
    else:
        return GuardVerdict(True, summary, error, noise_floor)
    return GuardVerdict(False, reason, error, noise_floor, near=near)


def _rounding_limit(noise_floor: NoiseFloor) -> float:
    """The largest error of a rounding boost."""
    limit = ROUNDING * max(noise_floor.batch_noise or 0.0, LEAST_BATCH_NOISE)
    if noise_floor.rounding is not None:
        limit = min(limit, max(LEAST_ROUNDED, ROUNDED * noise_floor.rounding.gradients))
    return max(limit, OWN * REORDERED * noise_floor.reordered)


def _rounded(comparison: Comparison, noise_floor: NoiseFloor) -> GuardVerdict:
    error, limit = comparison.error, _rounding_limit(noise_floor)
    noise = max(noise_floor.batch_noise or 0.0, LEAST_BATCH_NOISE)
    summary = f"gradient error {percent(error / noise)} of batch noise"
    if not error <= limit:
        reason = f"{summary}: more than {percent(limit / noise)}"
        rest = _rest(comparison, noise_floor, limit, summary)
        common = limit if rest.passed or rest.common is not None else None
        common = common if error <= AVERAGES_OUT * noise else None
        return GuardVerdict(False, reason, error, noise_floor, error < 2 * limit, common=common)
    return _rest(comparison, noise_floor, limit, summary)


def _rest(
    comparison: Comparison, noise_floor: NoiseFloor, limit: float, summary: str
) -> GuardVerdict:
    """The verdict on a rounding boost by all but the size of its error."""
    error, common = comparison.error, None
    near = error > 0.1 * limit
    rounded = noise_floor.rounding.outputs if noise_floor.rounding is not None else 0.0
    if abs(comparison.projection - 1) > BIAS + _by_chance(error, comparison.entries):
        reason = f"gradients {percent(comparison.projection)} as long as they were"
    elif abs(comparison.outputs - 1) > BIAS + _by_chance(comparison.output_error, 1):
        reason = f"outputs {percent(comparison.outputs)} as large as they were"
    elif comparison.output_error > max(LEAST_OUTPUT, ROUNDED * rounded):
        reason = f"outputs are off by {percent(comparison.output_error)}"
    elif comparison.row > 1:
        reason, near = "the output of one example differs far more than the others", False
    elif comparison.worst[1] > ONE_TENSOR:
        reason, common = f"{percent(comparison.worst[1])} for {comparison.worst[0]}", limit
    else:
        return GuardVerdict(True, summary, error, noise_floor)
    reason = f"{summary}; {reason}"
    return GuardVerdict(False, reason, error, noise_floor, near=near, common=common)


def averages_out(
    verdict: GuardVerdict,
    first: tuple[RepeatedCall, RepeatedCall],
    second: tuple[RepeatedCall, RepeatedCall],
) -> GuardVerdict:
    """The verdict on an error by what two batches have in common of it.

    first, second: the calls as written and under the boost. What is independent of the batch does
    not average out over the steps.
    """
    assert verdict.error is not None and verdict.common is not None
    assert verdict.noise_floor is not None
    within = verdict.error <= verdict.common  # only some parameters differ by too much
    errors: list[list[torch.Tensor]] = []
    for written, boosted in (first, second):
        error, projection, entries = distance(boosted.gradients, written.gradients)
        # Strictly: to leave one example out gives an error that differs from batch to batch, too.
        allowed = BIAS + (_by_chance(error, entries) if within else 0.0)
        if not error <= 2 * verdict.error or abs(projection - 1) > allowed:
            return verdict
        pairs = zip(boosted.gradients, written.gradients, strict=True)
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        errors.append([_dense(a) - _dense(b) for a, b in both])
    if [each.shape for each in errors[0]] != [each.shape for each in errors[1]]:
        return verdict
    product = sum(float((a * b).sum()) for a, b in zip(*errors, strict=True))
    squares = [sum(float(each.square().sum()) for each in some) for some in errors]
    alike = product / max(math.sqrt(squares[0] * squares[1]), 1e-30)
    if math.sqrt(max(alike, 0.0)) * verdict.error > verdict.common:
        return verdict
    noise = verdict.noise_floor.tensor_noise
    beyond = {p for pair in (first, second) for p in _beyond(*pair, noise, ONE_TENSOR)}
    if beyond and not _only_noise(sorted(beyond), noise, first, second):
        return verdict
    summary = verdict.reason.partition(":")[0].partition(";")[0]
    reason = f"{summary}, which averages out over batches"
    return replace(verdict, passed=True, reason=reason, near=False, common=None)


def _only_noise(
    positions: Sequence[int],
    noise: tuple[float, ...],
    first: tuple[RepeatedCall, RepeatedCall],
    second: tuple[RepeatedCall, RepeatedCall],
) -> bool:
    """Whether noise that differs from batch to batch is all that is wrong with these gradients.

    Where the gradients of the examples nearly cancel, rounding each of them is more than what is
    left: for a bias before a normalisation, say. A lost, scaled or shuffled gradient is not that.
    """
    kept: list[float] = []
    for position in positions:
        errors, largest = [], 0.0
        for written, boosted in (first, second):
            a, b = boosted.gradients[position], written.gradients[position]
            if a is None or b is None or a.shape != b.shape:
                return False
            error, projection, entries = distance([a], [b])
            chance = BY_CHANCE * error / math.sqrt(entries)
            if entries < FEWEST_ENTRIES and chance > SEEN:
                return False
            # A gradient of the same length in another direction is shorter along this one by half
            # the error's square.
            if not abs(projection - 1) <= chance + 0.75 * min(error, SEEN) ** 2:
                return False
            kept.append(projection)
            errors.append((_dense(a) - _dense(b)).flatten())
            largest = max(largest, error)
        one, other = errors
        alike = float(torch.nn.functional.cosine_similarity(one, other, dim=0))
        limit = noise[position] if position < len(noise) else 0.0
        common = math.sqrt(max(alike, 0.0)) * largest
        if not (alike <= BY_CHANCE / math.sqrt(len(one)) or common <= limit):
            return False
    # Much noise would hide that one gradient is lost: on average, it must be seen to be there.
    return sum(kept) / len(kept) >= SEEN


def _by_chance(error: float, entries: int) -> float:
    """How much an error independent of the gradient changes the projection.

    Errors of one example are common to all entries that it touches, so they count as far fewer than
    there are. A quarter of the error is allowed, plus its square.
    """
    return min(0.25 * error, 3 * error / math.sqrt(max(1, min(entries, 100)))) + error**2


def percent(ratio: float) -> str:
    """For people to read."""
    if not math.isfinite(ratio) or ratio >= 1000:
        return "over 100000%"
    if 0.9 < ratio < 1.1:
        return f"{100 * ratio:.1f}%"
    return f"{100 * ratio:.2g}%" if ratio < 0.1 else f"{100 * ratio:.0f}%"
