"""Finds out whether a model's call can be cut into rows, by doing it and comparing.

At the first call of a kind, the model is run on the whole batch and, with uneven parts, on each
rank's rows; random numbers are replaced by constants meanwhile (`quiet`). The outputs, the
gradients of weights and inputs for a random gradient of the output, and the buffers must be the
same except for rounding. The model is then restored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from flatout_agent.ranks import leaves, rows
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.kept import Kept, Left
from flatout_agent.ranks.leaves import Inputs, Output
from flatout_agent.ranks.quiet import LoudOperator, Quiet
from flatout_agent.ranks.refusal import SPARSE, Refused
from flatout_agent.ranks.rows import Split

TOLERANCE = 1e-4
"""Relative error of the output and the buffers."""
GRADIENT_TOLERANCE = 1e-3
"""Relative error of all gradients together: rounding changes more if a value lies on the edge of a
ReLU."""
ONE_TOLERANCE = 2e-2
"""Relative error of one parameter's gradient; wrongly weighted ranks would show as 10 % and
more."""
ROUNDINGS = 10.0
MOST_ROUNDING = 2e-2
"""Relative error of all gradients together. A larger difference than this, and than rounding causes
in the whole batch's gradients, means another gradient."""
COARSE = {torch.float16: 1e-2, torch.bfloat16: 3e-2}
AUTOCAST_TOLERANCE = 1e-2
Within = Callable[[Split], AbstractContextManager[None]]
"""The context of a region's calls: batch normalisation and means over all ranks' rows."""


class Proof(NamedTuple):
    """How a call is cut, or why it is not."""

    cut: bool
    reason: str = ""
    dims: tuple[int | None, ...] = ()
    outputs: tuple[Output | None, ...] = ()
    """How each output is formed, or None for one that is no tensor and the same in all ranks."""
    spec: Any = None
    rows: int | None = None
    error: float = 0.0
    gradient_error: float | None = None
    random: bool = False


class _Run(NamedTuple):
    """The results of one call."""

    leaves: list[Any]
    spec: Any
    inputs: list[torch.Tensor]
    """The arguments that need gradients."""
    random: bool
    arguments: list[Any]


class Prover:
    """Compares the calls of one model."""

    def __init__(
        self, model: torch.nn.Module, call: Callable[..., Any], group: RankGroup, within: Within
    ) -> None:
        self.model, self.call, self.group, self.within = model, call, group, within
        self.kept = Kept(model)
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.grads = torch.is_grad_enabled() and bool(self.parameters)

    def prove(self, inputs: Inputs) -> Proof:
        """Find out how calls with such inputs are cut. All ranks reach the same answer."""
        hooked = next((each for each in self.model.modules() if each._forward_hooks), None)
        if hooked is not None:
            return Proof(False, f"a hook of the script looks at its {type(hooked).__name__}")
        try:
            return self._prove(inputs)
        finally:
            self.kept.put_back()

    def _prove(self, inputs: Inputs) -> Proof:
        try:
            whole = self._run(inputs, None)
        except LoudOperator as operator:
            return Proof(
                False, f"its {operator} draws random numbers in a way that flatout does not know"
            )
        own = {id(tensor) for tensor in [*self.parameters, *whole.arguments]}
        if _foreign(whole.leaves, own):
            return Proof(False, "it uses a tensor that is neither its weight nor an argument")
        left = self.kept.left()
        buffers = self.kept.buffers_now()
        gradients = self._gradients(whole.leaves, whole.inputs, whole.leaves)
        self.kept.put_back()
        reasons = []
        for dims in inputs.hypotheses(self.group.size):
            attempt = self._attempt(inputs, dims, whole, gradients, buffers, left)
            self.kept.put_back()
            if attempt.cut:
                return attempt
            reasons.append(attempt.reason)
        if reasons:
            return Proof(False, reasons[0])
        return Proof(False, f"its inputs have no {self.group.size} rows")

    def _attempt(
        self,
        inputs: Inputs,
        dims: tuple[int | None, ...],
        whole: _Run,
        gradients: list[torch.Tensor | None] | None,
        buffers: list[torch.Tensor],
        left: Left,
    ) -> Proof:
        count = inputs.rows(dims)
        if count is None:
            return Proof(False, "its inputs have batches of different length")
        split = Split.uneven(self.group, count)
        reason = self._dry(inputs, dims, whole, split)
        if not self.group.agreed(not reason):
            return Proof(False, reason or "it fails on another rank's rows")
        with self.within(split):
            part = self._run(inputs, (dims, split))
        name = _kept(left, self.kept.left())
        if not self.group.agreed(not name):
            return Proof(False, f"it keeps a tensor of each call in {name or 'an attribute'}")
        outputs, error, reason = self._outputs(whole, part, split)
        if reason:
            return Proof(False, reason)
        if not self.group.agreed(self._same_buffers(buffers)):
            return Proof(False, "its buffers depend on the whole batch")
        gradient_error = None
        if gradients is not None:
            with self.within(split):
                gradient_error = self._gradient_error(whole, part, outputs, split, gradients)
            if not self.group.agreed(gradient_error <= GRADIENT_TOLERANCE * self._coarseness()):
                bound = min(ROUNDINGS * self._rounding(inputs, gradients), MOST_ROUNDING)
                if not self.group.agreed(gradient_error <= bound):
                    return Proof(False, f"its gradients differ by {gradient_error:.1e}")
        return Proof(True, "", dims, outputs, part.spec, count, error, gradient_error, whole.random)

    def _same_buffers(self, buffers: list[torch.Tensor]) -> bool:
        """Whether the call has left the same buffers as the whole batch, except for rounding.

        A mean that is near 0 compared with its spread has no useful relative error, so the average
        size of the model's buffers also counts.
        """
        squares = sum(float(each.double().square().sum()) for each in buffers)
        usual = (squares / max(1, sum(each.numel() for each in buffers))) ** 0.5
        for now, before in zip(self.kept.buffers_now(), buffers, strict=True):
            away = float((now.double() - before.double()).square().sum()) ** 0.5
            size = float(before.double().square().sum()) ** 0.5
            floor = 1e-2 * usual * before.numel() ** 0.5
            if not away <= self._tolerance(before) * max(size, floor):
                return False
        return True

    def _dry(self, inputs: Inputs, dims: tuple[int | None, ...], whole: _Run, split: Split) -> str:
        """Why this rank's rows alone do not work, or "" if they do; nothing is exchanged.

        An error in one rank while another waits for it would be a hang.
        """
        try:
            part = self._run(inputs, (dims, split))
        except Exception as error:
            return f"it fails on a part of the rows: {type(error).__name__}: {error}"[:300]
        finally:
            self.kept.put_back()
        if part.spec != whole.spec:
            return "it returns something else for a part of the rows"
        for of_whole, of_part in zip(whole.leaves, part.leaves, strict=True):
            if isinstance(of_whole, torch.Tensor) and isinstance(of_part, torch.Tensor):
                if not leaves.candidates(of_whole, of_part, split):
                    return "the shape of what it returns does not follow that of its inputs"
            elif not _equal(of_whole, of_part):
                return "it returns other values for a part of the rows"
        return ""

    def _run(self, inputs: Inputs, cut: tuple[Any, Split] | None) -> _Run:
        """Call the model outside the program's graph. cut: dimensions and split."""
        detached = [_detached(leaf, self.grads) for leaf in inputs.leaves]
        wanted = [
            leaf for leaf in detached if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        apart = Inputs(detached, inputs.spec)
        dims, split = cut or ((None,) * len(detached), None)
        with Quiet() as quiet:
            args, kwargs = apart.cut(dims, split) if split is not None else apart.whole()
            returned, spec = leaves.flat(self.call(*args, **kwargs))
        return _Run(returned, spec, wanted, quiet.random, detached)

    def _outputs(
        self, whole: _Run, part: _Run, split: Split
    ) -> tuple[tuple[Output | None, ...], float, str]:
        forms = [
            leaves.candidates(of_whole, of_part, split)
            if isinstance(of_whole, torch.Tensor)
            else []
            for of_whole, of_part in zip(whole.leaves, part.leaves, strict=True)
        ]
        firsts = [(form[0].how == "rows", form[0].dim, form[0].factor) for form in forms if form]
        if firsts and not self.group.equal(*itertools.chain.from_iterable(firsts)):
            return (), 0.0, "the shape of what it returns differs between the ranks"
        chosen: list[Output | None] = []
        largest = 0.0
        for form, of_whole, of_part in zip(forms, whole.leaves, part.leaves, strict=True):
            if not isinstance(of_whole, torch.Tensor):
                chosen.append(None)
                continue
            errors = []
            for output in form:
                with torch.no_grad():
                    error = difference(output.whole(of_part.detach(), split), of_whole.detach())
                errors.append(error)
                if self.group.agreed(error <= self._tolerance(of_whole)):
                    chosen.append(output._replace(graph=of_whole.requires_grad))
                    largest = max(largest, error)
                    break
            else:
                return (), 0.0, f"its rows depend on each other (difference {min(errors):.1e})"
        return tuple(chosen), largest, ""

    def _gradients(
        self, outputs: Sequence[Any], inputs: list[torch.Tensor], like: Sequence[Any]
    ) -> list[torch.Tensor | None] | None:
        """Gradients of parameters and inputs for a random gradient of each output, or None if there
        are none.
        """
        targets = [*self.parameters, *inputs]
        dice = torch.Generator().manual_seed(0)
        pairs = []
        for output, of_whole in zip(outputs, like, strict=True):
            if isinstance(of_whole, torch.Tensor) and of_whole.is_floating_point():
                gradient = torch.randn(of_whole.shape, generator=dice).to(of_whole)
                if output.requires_grad:
                    pairs.append((output, gradient))
        if not self.grads or not pairs:
            return None
        try:
            with Quiet():
                gradients = torch.autograd.grad(
                    [output for output, _ in pairs],
                    targets,
                    [gradient for _, gradient in pairs],
                    allow_unused=True,
                )
        except RuntimeError as error:
            if "heckpoint" in str(error):  # the reentrant kind allows `backward` alone
                return None
            raise
        if any(each is not None and each.layout is not torch.strided for each in gradients):
            raise Refused(SPARSE)
        return list(gradients)

    def _gradient_error(
        self,
        whole: _Run,
        part: _Run,
        outputs: tuple[Output | None, ...],
        split: Split,
        gradients: list[torch.Tensor | None],
    ) -> float:
        joined = [
            leaf if output is None else output.whole(leaf, split)
            for leaf, output in zip(part.leaves, outputs, strict=True)
        ]
        own = self._gradients(joined, part.inputs, whole.leaves)
        if own is None:
            return float("inf")
        total = sum(float(each.double().square().sum()) for each in gradients if each is not None)
        all_away, largest = 0.0, 0.0
        for number, (mine, true) in enumerate(zip(own, gradients, strict=True)):
            used = not self.group.agreed(mine is None)
            if not used and true is None:
                continue
            like = targets_like(self.parameters, part.inputs, number)
            mine = torch.zeros_like(like) if mine is None else mine
            if number < len(self.parameters):
                mine = rows.mean_gradient(mine, self.group)
            true = torch.zeros_like(mine) if true is None else true
            away = float((mine.double() - true.double()).square().sum()) ** 0.5
            size = float(true.double().square().sum()) ** 0.5
            all_away += away**2
            largest = max(largest, away / max(size, 1e-2 * total**0.5, 1e-30))
        error = math.sqrt(all_away / max(total, 1e-60))
        return error if largest <= ONE_TOLERANCE * self._coarseness() else max(error, largest)

    def _rounding(self, inputs: Inputs, gradients: list[torch.Tensor | None]) -> float:
        """How much the gradients of the whole batch change if each weight is rounded once more.

        Deep networks with normalisation amplify differences from the order of sums.
        """
        before = [parameter.data for parameter in self.parameters]
        dice = torch.Generator().manual_seed(1)
        self.kept.put_back()
        try:
            for parameter in self.parameters:
                signs = torch.randint(0, 2, parameter.shape, generator=dice).to(parameter) * 2 - 1
                unit = torch.finfo(parameter.dtype).eps / 2
                parameter.data = parameter.data + parameter.data.abs() * unit * signs
            moved = self._run(inputs, None)
            again = self._gradients(moved.leaves, moved.inputs, moved.leaves)
        finally:
            for parameter, data in zip(self.parameters, before, strict=True):
                parameter.data = data
            self.kept.put_back()
        away = total = 0.0
        for new, old in zip(again or [], gradients, strict=False):
            if new is not None and old is not None:
                away += float((new.double() - old.double()).square().sum())
                total += float(old.double().square().sum())
        return math.sqrt(away / max(total, 1e-60))

    def _coarseness(self) -> float:
        """How many times as coarsely as float32 this model rounds."""
        return self._tolerance(self.parameters[0]) / TOLERANCE

    def _tolerance(self, tensor: torch.Tensor) -> float:
        coarse = (
            AUTOCAST_TOLERANCE
            if torch.is_autocast_enabled("cpu")
            or (torch.cuda.is_available() and torch.is_autocast_enabled("cuda"))
            else 0.0
        )
        return max(TOLERANCE, coarse, COARSE.get(tensor.dtype, 0.0))


def targets_like(
    parameters: list[torch.nn.Parameter], inputs: list[torch.Tensor], number: int
) -> torch.Tensor:
    """The tensor that gradient `number` belongs to."""
    return parameters[number] if number < len(parameters) else inputs[number - len(parameters)]


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative difference (L2) of floating-point numbers; for others, the share of different
    values.
    """
    if a.shape != b.shape:
        return float("inf")
    if not b.numel():
        return 0.0
    if not (b.is_floating_point() or b.is_complex()):
        share = float((a != b).double().mean())
        return share if share > 1e-3 else 0.0  # ties of an argmax
    wide = torch.complex128 if b.is_complex() else torch.float64
    first, second = a.to(wide).nan_to_num(), b.to(wide).nan_to_num()
    size = float(second.abs().square().sum()) ** 0.5
    away = float((first - second).abs().square().sum()) ** 0.5
    return away / size if size > 0 else (0.0 if away < 1e-12 else float("inf"))


def _kept(whole: Left, part: Left) -> str:
    """The attribute that keeps something of each call, or "" if none does.

    What two calls leave alike and without a gradient depends on neither batch: a mask, a table of
    positions.
    """
    for key in sorted(whole.keys() | part.keys()):
        first, second = whole.get(key, []), part.get(key, [])
        if len(first) != len(second) or not all(map(_alike, first, second)):
            return key[1]
    return ""


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    if a.requires_grad or b.requires_grad or a.layout is not torch.strided:
        return False
    return (a.dtype, a.device, a.layout) == (b.dtype, b.device, b.layout) and torch.equal(a, b)


def _foreign(outputs: list[Any], own: set[int]) -> bool:
    """Whether the output depends on a tensor that is neither a weight nor an argument.

    It may be the output of another region, which would take the gradient from one rank's rows for
    that of all rows.
    """
    nodes = [leaf.grad_fn for leaf in outputs if isinstance(leaf, torch.Tensor)]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in own:
            return True
        seen.add(node)
        nodes.extend(upstream for upstream, _ in node.next_functions)
    return False


def _detached(leaf: Any, grads: bool) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    alone = leaf.detach()
    return alone.requires_grad_() if grads and leaf.requires_grad else alone


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or isinstance(a, torch.Tensor):
        return False
    try:
        return a is b or bool(a == b)
    except Exception:  # of the program's own class
        return False
