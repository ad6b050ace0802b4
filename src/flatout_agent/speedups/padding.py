"""Padding at the end of a model's inputs, and calls of the model without it.

An input of words is a tensor of whole numbers [rows, length]. The number that ends most rows, where
it stands at the end of a row, is taken for padding. Whether the model's result depends on it cannot
be seen here: the Guard compares.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from flatout_agent.speedups import forward_state, nests

if TYPE_CHECKING:
    import torch

SHORTEST = 16
"""Inputs of fewer columns are left alone."""
STEPS, LEAST_STEP = 16, 8
"""An input is cut to a multiple of this part of its length, and of so many columns at least, so
that few lengths occur: kernels and allocators prepare each of them."""
PARTS = (2, 4)
"""Rows of about the same length are computed together: in so many parts ..."""
WORTH = 0.8
"""... if that leaves at most this share of the work, and a first comparison took less time: each
part has its own small operations."""
TIMED = 2
"""How often each way is timed."""
FEWEST_ROWS = 4
MASK, LABELS, IGNORED = "attention_mask", "labels", -100
"""Hugging Face's names of masks, whose ones are no padding, and of targets, and the number of the
targets that a loss ignores."""
REFUSED = "the model cannot be called with shorter inputs"
SAME = 2e-2
"""Largest relative error of a loss that is put together from parts: rounding to bfloat16. Of the
ways to do so, the one with the smallest error is taken."""
UNPROVEN = 3
"""The first calls with less: an error in them leaves the program's state as it was."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of a batch, such as one of the source and one of the target."""

    rows: int
    full: tuple[int, ...]
    longest: tuple[torch.Tensor, ...]
    """For each length, how much of each row is no padding."""

    def cut(self, part: torch.Tensor | None = None) -> tuple[int, ...]:
        """The lengths that hold all that is not padding in these rows, or in all.

        Waits for an accelerator if the batch is there.
        """
        return self._cut if part is None else self._cut_of(part)

    @functools.cached_property
    def _cut(self) -> tuple[int, ...]:
        return self._cut_of(slice(None))

    def _cut_of(self, rows: torch.Tensor | slice) -> tuple[int, ...]:
        pairs = zip(self.longest, self.full, strict=True)
        return tuple(_rounded_up(int(longest[rows].max()), full) for longest, full in pairs)

    def saved(self, parts: Sequence[torch.Tensor | None]) -> float:
        """Share of the inputs that need not be computed in these parts."""
        cost = sum(
            (self.rows if part is None else len(part)) * sum(self.cut(part)) for part in parts
        )
        return 1.0 - cost / (self.rows * sum(self.full))

    def parts(self) -> list[torch.Tensor | None]:
        """Rows of about the same length if they cost clearly less than all together, on the CPU.

        [None] if all rows are best computed together.
        """
        best: list[torch.Tensor | None] = [None]
        if self.longest[0].device.type != "cpu":
            return best
        order = self.longest[0].argsort()
        for count in PARTS:
            chunks = list(order.tensor_split(count))
            if len(chunks[-1]) < FEWEST_ROWS:
                break
            if 1.0 - self.saved(chunks) <= WORTH * (1.0 - self.saved(best)):
                best = [*chunks]
        return best


def lengths(args: Sequence[Any], kwargs: dict[str, Any]) -> Lengths | None:
    """The lengths of these inputs, or None if it is not clear which dimensions have one."""
    import torch

    tensors = list(nests.tensors((args, kwargs)))
    words = [t for t in tensors if t.dim() == 2 and t.dtype in (torch.int64, torch.int32)]
    if not words or any(type(tensor) is not torch.Tensor for tensor in tensors):
        return None
    rows = len(words[0])
    masks = [id(value) for name, value in kwargs.items() if name.endswith(MASK)]
    numbers = [value for value in (*args, *kwargs.values()) if isinstance(value, int)]
    found: dict[int, torch.Tensor] = {}
    for full in dict.fromkeys(tensor.shape[1] for tensor in words if len(tensor) == rows):
        if rows < 2 or full < SHORTEST or full == rows or full in numbers:
            continue  # by a number, the program says how long it is
        if any(_dimensions(tensor, rows, full) is None for tensor in tensors):
            continue
        filled = torch.zeros(rows, full, dtype=torch.bool, device=words[0].device)
        for tensor in tensors:
            if tensor.shape == (rows, full):
                used = tensor != 0 if id(tensor) in masks else _used(tensor)
                filled |= used.to(filled.device)
        columns = torch.arange(1, full + 1, device=filled.device)
        found[full] = (filled * columns).amax(1)
    return Lengths(rows, tuple(found), tuple(found.values())) if found else None


def padded(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """The share of these inputs that need not be computed; 0 if all of them must be."""
    found = lengths(args, kwargs)
    return found.saved(found.parts()) if found is not None else 0.0


def _used(tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor [rows, length] holds another number than the one that ends most of its rows.

    Nowhere if all rows are the same: that is a range of positions, or a constant.
    """
    alike = (tensor == tensor[:1]).all()
    return (tensor != tensor[:, -1].mode().values) & ~alike


def _dimensions(tensor: torch.Tensor, rows: int, full: int) -> tuple[int, ...] | None:
    """The dimensions of an input that are this length, or None if that is not clear."""
    shape = tuple(tensor.shape)
    along = tuple(at for at, size in enumerate(shape) if size == full)
    if not along or (along == (1,) and shape[0] in (1, rows)):
        return along
    last = len(shape) - 1
    of_mask = (last - 1, last), (last,)
    if along in of_mask and shape[0] in (1, rows, full) and (last > 1 or shape[0] == full):
        return along
    return None


def _rounded_up(longest: int, full: int) -> int:
    step = max(LEAST_STEP, full // STEPS)
    return min(full, max(1, -(-longest // step)) * step)


Kind = tuple[int | str, ...]
"""Of calls that give outputs of one form: the number of lengths and of arguments, and their
names."""
Form = list[dict[int, tuple[int, int]]]
"""For each output, dimension -> which of the lengths it is, and its size when it was learnt."""


class WithoutPadding:
    """Calls a model with its inputs cut to the longest row, or in parts of rows of about the same
    length, and puts its outputs together in the shapes that they would have.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self.calls = 0
        self.less = 0
        """Calls that were made with less than all inputs."""
        self.refused = ""
        """Why the model cannot be called with less."""
        self._whole = _normalizes_batches(model)
        """The model cannot be called for some of the rows."""
        self._forms: dict[Kind, Form] = {}
        self._weights: dict[Kind, list[str] | None] = {}
        """How each output that is a single number is put together from parts; None if the model
        cannot be called in parts, or is not faster so."""

    def call(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of `call` for these inputs."""
        import torch

        model = self._model()
        if model is None or self.refused or not (model.training and torch.is_grad_enabled()):
            return call(*args, **kwargs)
        self.calls += 1
        try:
            found = lengths(args, kwargs)
        except Exception as error:  # inputs of an unusual kind
            self.refused = f"its inputs cannot be looked at: {error!r}"
            found = None
        if found is None:
            return call(*args, **kwargs)
        kind = (len(found.full), len(args), *kwargs)
        whole = self._whole or self._weights.get(kind, ()) is None
        parts = [None] if whole else found.parts()
        if all(found.cut(part) == found.full for part in parts):
            return call(*args, **kwargs)
        form = self._forms.get(kind)
        unproven = self.less < UNPROVEN or form is None
        restore = forward_state.keep([model]) if unproven else None
        shapes = []
        try:
            if len(parts) > 1 and kind not in self._weights:
                with _evaluating(model):
                    weights = _weights(call, args, kwargs, found, parts)
                    faster = weights is not None and _faster(call, args, kwargs, found, parts)
                    self._weights[kind] = weights if faster else None
                if self._weights[kind] is None:
                    parts = [None]
            if form is None:
                output = call(*args, **kwargs)
                _no_distributions(output)
                shapes = [tuple(leaf.shape) for leaf in nests.tensors(output)]
                del output
            if restore is not None:
                restore()
            outputs = [
                call(*_some(args, found, part), **_some(kwargs, found, part)) for part in parts
            ]
            if form is None:
                form = _form(outputs[0], shapes, found, parts[0])
                self._forms[kind] = form
            weights = self._weights.get(kind) or []
            result = _together(outputs, form, weights, kwargs, found, parts)
        except Exception as error:  # as written it may work; if not, it raises its own error
            self.refused = f"{REFUSED}: {(str(error) or repr(error)).splitlines()[0]}"
        else:
            self.less += 1
            return result
        if restore is not None:
            restore()
        return call(*args, **kwargs)


def _no_distributions(output: Any) -> None:
    """Raise ValueError if the output holds any: they know their shape, so parts make no whole."""
    if next(nests.leaves(output, nests.is_distribution), None) is not None:
        raise ValueError("the model returns distributions")


RULES = ("rows", "labels", "shifted labels", "sum")
"""How a loss of parts becomes that of the whole: a mean over rows, over targets that count, over
those but the first of each row (of a causal model), or a sum."""


def _shares(
    rule: str, kwargs: dict[str, Any], found: Lengths, parts: Sequence[torch.Tensor | None]
) -> list[float]:
    """The weight of each part, or nothing if the rule needs labels and there are none."""
    rows = [part for part in parts if part is not None]
    labels = kwargs.get(LABELS)
    if rule == "sum":
        return [1.0] * len(rows)
    if rule == "rows":
        return [len(part) / found.rows for part in rows]
    if labels is None or labels.dim() != 2 or len(labels) != found.rows:
        return []
    counted = (labels if rule == "labels" else labels[:, 1:]) != IGNORED
    counts = [int(counted[part].sum()) for part in rows]
    return [count / max(1, sum(counts)) for count in counts]


def _weights(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    found: Lengths,
    parts: Sequence[torch.Tensor | None],
) -> list[str] | None:
    """The rule for each output that is a single number, or None if the model cannot be called in
    parts.

    The model must draw no random numbers, so that both ways can be compared.
    """
    whole = list(nests.tensors(call(*args, **kwargs)))
    leaves = [
        list(nests.tensors(call(*_some(args, found, part), **_some(kwargs, found, part))))
        for part in parts
    ]
    if any(len(some) != len(whole) for some in leaves):
        return None
    weights = []
    for leaf, of_all in zip(whole, zip(*leaves, strict=True), strict=True):
        if leaf.dim():
            rows = [len(part) for part in parts if part is not None]
            if len(leaf) != found.rows or [some.shape[:1].numel() for some in of_all] != rows:
                return None
            continue
        if not leaf.is_floating_point():
            return None
        value, *values = (some.detach().item() for some in (leaf, *of_all))
        errors = {}
        for rule in RULES:
            pairs = zip(_shares(rule, kwargs, found, parts), values, strict=False)
            errors[rule] = abs(sum(share * some for share, some in pairs if share) - value)
        best = min(errors, key=errors.__getitem__)
        if not errors[best] <= SAME * abs(value):
            return None
        weights.append(best)
    return weights


def _faster(
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    found: Lengths,
    parts: Sequence[torch.Tensor | None],
) -> bool:
    """Whether the calls of the parts take less time than one that is cut to the longest row."""
    seconds: list[list[float]] = [[], []]
    for _ in range(TIMED):
        for taken, way in zip(seconds, (parts, [None]), strict=True):
            began = perf_counter()
            for part in way:
                call(*_some(args, found, part), **_some(kwargs, found, part))
            taken.append(perf_counter() - began)
    return min(seconds[0]) < min(seconds[1])


def _together(
    outputs: Sequence[Any],
    form: Form,
    weights: Sequence[str],
    kwargs: dict[str, Any],
    found: Lengths,
    parts: Sequence[torch.Tensor | None],
) -> Any:
    """The outputs of the parts as one, with zeros where the full lengths have more."""
    import torch

    cuts = [found.cut(part) for part in parts]
    order = [part for part in parts if part is not None]
    back = torch.cat(order).argsort() if order else None
    rules = iter(weights)
    result: dict[int, torch.Tensor] = {}
    leaves = zip(*(list(nests.tensors(output)) for output in outputs), strict=True)
    for of_all, dimensions in zip(leaves, form, strict=True):
        if back is not None and not of_all[0].dim():
            shares = _shares(next(rules), kwargs, found, parts)
            terms = [s * leaf for s, leaf in zip(shares, of_all, strict=True) if s]
            whole = torch.stack(terms).sum()  # raises if no target counts
        else:
            pairs = zip(of_all, cuts, strict=True)
            long = [_padded(leaf, dimensions, cut, found.full) for leaf, cut in pairs]
            whole = long[0] if back is None else torch.cat(long).index_select(0, back)
        result[id(of_all[0])] = whole
    return nests.change(outputs[0], lambda leaf: result[id(leaf)])


def _some(nest: Any, found: Lengths, part: torch.Tensor | None) -> Any:
    """The inputs of some rows, or of all, without their padding."""

    def some(tensor: torch.Tensor) -> torch.Tensor:
        shorter = tensor
        for full, cut in zip(found.full, found.cut(part), strict=True):
            for along in _dimensions(tensor, found.rows, full) or ():
                shorter = shorter.narrow(along, 0, cut)
        if part is not None and tensor.dim() and len(tensor) == found.rows:
            return shorter.index_select(0, part)
        # The model may use .view().
        return tensor if shorter is tensor else shorter.contiguous()

    return nests.change(nest, some)


def _form(
    output: Any,
    shapes: Sequence[tuple[int, ...]],
    found: Lengths,
    part: torch.Tensor | None,
) -> Form:
    """The form of the outputs.

    shapes: of the outputs for all inputs. Raises ValueError if a shape follows the length in
    another way.
    """
    rows, cut = found.rows if part is None else len(part), found.cut(part)
    form = []
    for leaf, shape in zip(nests.tensors(output), shapes, strict=True):
        dimensions = {}
        for at, (size, here) in enumerate(zip(shape, leaf.shape, strict=True)):
            if at == 0 and size == found.rows:
                if here != rows:
                    raise ValueError(f"an output {shape} became {tuple(leaf.shape)}")
            elif size in found.full and here == cut[found.full.index(size)]:
                dimensions[at] = found.full.index(size), size
            elif here != size:
                raise ValueError(f"an output {shape} became {tuple(leaf.shape)}")
        form.append(dimensions)
    return form


def _padded(
    leaf: torch.Tensor,
    dimensions: dict[int, tuple[int, int]],
    cut: Sequence[int],
    full: Sequence[int],
) -> torch.Tensor:
    import torch

    missing = [0] * leaf.dim()
    for at, (which, size) in dimensions.items():
        if leaf.shape[at] == cut[which]:
            missing[at] = full[which] - cut[which]
        elif leaf.shape[at] != size:
            raise ValueError(f"an output has the shape {tuple(leaf.shape)}")
    if not any(missing):
        return leaf
    return torch.nn.functional.pad(leaf, [n for more in reversed(missing) for n in (0, more)])


def _normalizes_batches(model: torch.nn.Module) -> bool:
    import torch

    kind = torch.nn.modules.batchnorm._BatchNorm
    return any(isinstance(module, kind) for module in model.modules())


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """The model without dropout, as in evaluation."""
    modules = [module for module in model.modules() if module.training]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module in modules:
            module.training = True
