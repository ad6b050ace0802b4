"""The gradient half of the Guard: the same weights see the same batches; same gradients?

In a trial the first steps run at learning rate 0, so that every one of them is taken at the very
weights that the program began with. The baseline writes down its gradients (a fixed sample of the
entries of each parameter) and what the model was given; a later trial compares. An error only
means something beside the noise that training lives with anyway: the difference between the
gradients of two batches.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from typing import Any

from flatout_agent import wire
from flatout_agent.job import Job
from flatout_agent.watch.tensors import tensors_in

SAMPLED_ENTRIES = 1 << 20
"""Entries compared per step over all parameters."""
LEAST_ENTRIES = 256
NEGLIGIBLE = 1e-3
"""A parameter whose gradient norm is below this share of the largest is not judged on its own:
a bias in front of a batch normalisation has no gradient but rounding."""

Sample = dict[str, Any]


class GradientGuard:
    """Collects one sample per guard step; `finish` compares or writes the reference."""

    def __init__(self, job: Job, orders: wire.TrialOrders, folder: str) -> None:
        self.job = job
        self.orders = orders
        self.folder = folder
        self.samples: dict[tuple[int, int], Sample] = {}
        self.inputs: dict[int, list[tuple[Any, ...]]] = {}
        self._taken: dict[int, int] = {}
        self._rates: dict[int, list[Any]] = {}
        self._states: dict[int, dict[Any, Any]] = {}

    def active(self, optimizer: Any) -> bool:
        """Whether this optimizer is still in its guard steps."""
        taken = self._taken.get(self.job.optimizers.index(optimizer), 0)
        return taken < self.orders.guard_steps and self.job.steps <= self.orders.guard_steps

    def optimizer_starts(self, optimizer: Any) -> None:
        """Hold the weights: learning rate 0 for this step."""
        if not self.active(optimizer):
            return
        self._states.setdefault(id(optimizer), _copied_state(optimizer))
        rates = []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            rates.append(rate.clone() if hasattr(rate, "clone") else rate)
            _set_rate(group, rate, 0.0)
        self._rates[id(optimizer)] = rates

    def optimizer_ends(self, optimizer: Any) -> None:
        """Give the learning rate back and take the sample."""
        rates = self._rates.pop(id(optimizer), None)
        if rates is None:
            return
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            _set_rate(group, group.get("lr"), rate)
        number = self.job.optimizers.index(optimizer)
        step = self._taken.get(number, 0)
        self._taken[number] = step + 1
        self.samples[number, step] = self._sample(optimizer)
        if step + 1 == self.orders.guard_steps:
            _restore_state(optimizer, self._states.pop(id(optimizer)))

    def saw_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what a root model was given in a guard step: shapes and sums."""
        seen = self.inputs.setdefault(self.job.steps, [])
        for tensor in tensors_in(self.job.torch, (args, kwargs)):
            seen.append((list(tensor.shape), float(tensor.detach().double().sum())))

    def _sample(self, optimizer: Any) -> Sample:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        total = sum(p.numel() for p in parameters) or 1
        names = _names(self.job)
        sample: Sample = {"names": [], "scale": [], "gradients": [], "weights": 0.0}
        for position, parameter in enumerate(parameters):
            sample["weights"] += float(_entries(parameter, LEAST_ENTRIES).double().sum())
            if parameter.grad is None:
                continue
            budget = max(LEAST_ENTRIES, SAMPLED_ENTRIES * parameter.numel() // total)
            entries = _entries(parameter.grad, budget)
            sample["names"].append(names.get(id(parameter), f"parameter {position}"))
            sample["scale"].append(math.sqrt(parameter.numel() / max(1, entries.numel())))
            sample["gradients"].append(entries)
        return sample

    def finish(self) -> wire.GuardMeasured:
        """Write the reference (baseline) or compare with it."""
        finite = all(
            bool(g.isfinite().all()) for s in self.samples.values() for g in s["gradients"]
        )
        mine = {"samples": self.samples, "inputs": self.inputs}
        if self.orders.reference is None:
            with open(_path(self.folder), "wb") as file:  # noqa: PTH123
                self.job.torch.save(mine, file)
            return wire.GuardMeasured((), _noise(self.samples), finite=finite)
        with open(_path(self.orders.reference), "rb") as file:  # noqa: PTH123
            reference = self.job.torch.load(file, map_location="cpu", weights_only=False)
        return _compare(mine, reference, finite)


def _copied_state(optimizer: Any) -> dict[Any, Any]:
    return {parameter: copy.deepcopy(state) for parameter, state in optimizer.state.items()}


def _restore_state(optimizer: Any, state: dict[Any, Any]) -> None:
    """Forget what the guard steps left in the optimizer: training begins as it would have."""
    optimizer.state.clear()
    optimizer.state.update(state)


def _path(folder: str) -> str:
    rank = os.environ.get("RANK", "0")
    return os.path.join(folder, f"gradients-{rank}.pt")  # noqa: PTH118


def _set_rate(group: dict[str, Any], present: Any, rate: Any) -> None:
    if hasattr(present, "fill_"):
        present.fill_(rate)  # a tensor that a captured graph may hold: keep the object
    elif "lr" in group:
        group["lr"] = rate


def _names(job: Job) -> dict[int, str]:
    return {id(p): name for model in job.models for name, p in model.named_parameters()}


def _entries(tensor: Any, count: int) -> Any:
    """Evenly spread entries in logical order, whatever the memory layout, as float32 on the CPU."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    flat = tensor.reshape(-1)
    if flat.numel() > count:
        import torch

        positions = torch.arange(count, device=flat.device) * flat.numel() // count
        flat = flat[positions]
    return flat.float().cpu().clone()


def _compare(mine: dict[str, Any], reference: dict[str, Any], finite: bool) -> wire.GuardMeasured:
    noise = _noise(reference["samples"])
    steps, reason = _comparable_steps(mine, reference)
    errors = []
    own_power = power = 0.0
    for step in steps:
        difference = norm = 0.0
        for key in _of_step(reference["samples"], step):
            for ours, theirs in _pairs(mine["samples"][key], reference["samples"][key]):
                difference += float((ours - theirs).double().square().sum())
                norm += float(theirs.double().square().sum())
                own_power += float(ours.double().square().sum())
        errors.append(_ratio(math.sqrt(difference), math.sqrt(norm)))
        power += norm
    name, worst = _worst_tensor(mine["samples"], reference["samples"], steps)
    return wire.GuardMeasured(
        error=tuple(errors),
        noise=noise,
        reason=reason,
        finite=finite,
        worst_tensor=name,
        norm_ratio=_ratio(math.sqrt(own_power), math.sqrt(power)) if steps else None,
        worst_ratio=worst,
    )


def _comparable_steps(mine: dict[str, Any], reference: dict[str, Any]) -> tuple[list[int], str]:
    """Guard steps at which the same weights saw the same batches, and why it is not all of them."""
    theirs = reference["samples"]
    steps: list[int] = []
    for step in sorted({step for _, step in theirs}):
        keys = _of_step(theirs, step)
        if any(key not in mine["samples"] for key in keys):
            return steps, f"step {step + 1} was not reached or left no gradients"
        if any(mine["samples"][key]["names"] != theirs[key]["names"] for key in keys):
            return steps, f"step {step + 1} gave gradients to other parameters"
        if not theirs[keys[0]]["gradients"]:
            return steps, "the optimizer clears the gradients itself"
        if any(not _close(mine["samples"][key]["weights"], theirs[key]["weights"]) for key in keys):
            return steps, f"step {step + 1} saw other weights: this optimizer moves at rate 0"
        if not _same_inputs(mine["inputs"].get(step), reference["inputs"].get(step)):
            return steps, f"step {step + 1} saw another batch"
        steps.append(step)
    return steps, ""


def _same_inputs(ours: list[Any] | None, theirs: list[Any] | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    if len(ours) != len(theirs):
        return False
    pairs = zip(ours, theirs, strict=True)
    return all(list(a[0]) == list(b[0]) and _close(a[1], b[1]) for a, b in pairs)


def _close(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 1e-5 * max(abs(a), abs(b), 1e-12)


def _of_step(samples: dict[tuple[int, int], Sample], step: int) -> list[tuple[int, int]]:
    return sorted(key for key in samples if key[1] == step)


def _pairs(ours: Sample, theirs: Sample) -> Iterator[tuple[Any, Any]]:
    for scale, a, b in zip(theirs["scale"], ours["gradients"], theirs["gradients"], strict=True):
        yield scale * a, scale * b


def _noise(samples: dict[tuple[int, int], Sample]) -> float | None:
    """Mean relative distance between the gradients of two of the batches; None: only one batch."""
    distances = []
    steps = sorted({step for _, step in samples})
    for one in steps:
        for other in steps:
            keys = [(n, one) for n, s in samples if s == one and (n, other) in samples]
            if one == other or not keys:
                continue
            difference = norm = 0.0
            for key in keys:
                twin = samples[key[0], other]
                if twin["names"] != samples[key]["names"]:
                    continue
                for a, b in _pairs(twin, samples[key]):
                    difference += float((a - b).double().square().sum())
                    norm += float(b.double().square().sum())
            if norm:
                distances.append(math.sqrt(difference / norm))
    return sum(distances) / len(distances) if distances else None


def _worst_tensor(
    mine: dict[tuple[int, int], Sample], theirs: dict[tuple[int, int], Sample], steps: list[int]
) -> tuple[str, float | None]:
    """The parameter with the largest error beside its own batch noise."""
    worst_name, worst = "", None
    for number in sorted({key[0] for key in theirs}):
        keys = [(number, step) for step in steps if (number, step) in theirs]
        if len(keys) < 2 or any(theirs[key]["names"] != theirs[keys[0]]["names"] for key in keys):
            continue
        names, scale = theirs[keys[0]]["names"], theirs[keys[0]]["scale"]
        norms = [scale[i] * _mean_norm(theirs, keys, i) for i in range(len(names))]
        for i, name in enumerate(names):
            if norms[i] <= NEGLIGIBLE * max(norms):
                continue
            ratio = _tensor_ratio(mine, theirs, keys, i)
            if worst is None or ratio > worst:
                worst_name, worst = name, ratio
    return worst_name, worst


def _mean_norm(samples: dict[Any, Sample], keys: list[tuple[int, int]], i: int) -> float:
    return sum(float(samples[key]["gradients"][i].double().norm()) for key in keys) / len(keys)


def _tensor_ratio(
    mine: dict[Any, Sample], theirs: dict[Any, Sample], keys: list[tuple[int, int]], i: int
) -> float:
    error = sum(
        float((mine[key]["gradients"][i] - theirs[key]["gradients"][i]).double().norm())
        for key in keys
    ) / len(keys)
    distances = [
        float((theirs[a]["gradients"][i] - theirs[b]["gradients"][i]).double().norm())
        for a in keys
        for b in keys
        if a < b
    ]
    return _ratio(error, sum(distances) / len(distances))


def _ratio(part: float, whole: float) -> float:
    """Part / whole; a large number instead of infinity, which JSON does not have."""
    if not math.isfinite(part):
        return 1e9
    if whole == 0.0:
        return 0.0 if part == 0.0 else 1e9
    return min(part / whole, 1e9)
