"""Capture one model: from the module and its observed calls to the capture folder."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent.capture import (
    arguments,
    checkpoint,
    flat,
    folder,
    inner,
    metric,
    program,
    refusal,
    rows,
)
from flatout_agent.capture.calls import SeenCall
from flatout_agent.capture.flat import FlatModel
from flatout_agent.capture.folder import CaptureFacts
from flatout_agent.capture.quiet import undisturbed
from flatout_agent.capture.refusal import CannotCapture
from flatout_agent.capture.replica import HALVES, evaluation_copy, unwrapped
from flatout_agent.capture.rows import Tensors
from flatout_agent.speedups import nests

OF = {"evaluation": "the last evaluation", "training": "training batches", "library": "the samples"}
NOT_FIRST = "samples are not counted in the first dimension of all inputs and outputs"


@dataclass(frozen=True)
class Wanted:
    """What to capture, and the folder for it."""

    folder: str
    source: str
    inside: str = ""
    """The name or class of a module inside the called one; empty for the called one itself."""
    weights: str = ""
    weights_key: str = ""
    trained: bool = True
    notes: tuple[str, ...] = field(default=())


def capture(model: nn.Module, calls: Sequence[SeenCall], wanted: Wanted) -> CaptureFacts:
    """Write the capture folder. Raises CannotCapture with the reason; the model stays as it is."""
    if not calls:
        raise CannotCapture("no call of the model was seen whose inputs could be kept")
    with undisturbed():
        copy = evaluation_copy(unwrapped(model))
        notes = list(wanted.notes)
        if any(tensor.dtype in HALVES for tensor in model.parameters()):
            notes.append("weights of half precision were widened to float32")
        if wanted.weights:
            notes += checkpoint.load(copy, wanted.weights, wanted.weights_key)
        copy, own = _inside(copy, _common(list(calls), notes), wanted.inside)
        return _captured(*_answering(copy, own, notes), wanted, notes)


def _run(model: nn.Module, call: SeenCall) -> Any:
    args, kwargs = flat.filled((call.args, call.kwargs), flat.tensors(call))
    return model(*args, **kwargs)


def _common(calls: list[SeenCall], notes: list[str]) -> list[SeenCall]:
    """The calls that one program can serve: the kind with the most rows. Half types are widened."""
    for call in calls:
        for value in flat.odd_objects((call.args, call.kwargs)):
            kind = type(value).__name__
            raise CannotCapture(
                f"the model is called with an object of class {kind}, which holds tensors",
                "give forward the tensors themselves, or a tuple, dict or dataclass of them",
            )
    signatures = [flat.signature(call) for call in calls]
    counts, batched = Counter(signatures), Counter[Any]()
    for call, own in zip(calls, signatures, strict=True):
        # A text that is generated token by token after an evaluation is hundreds of single calls.
        batched[own] += call.rows if call.rows > 1 else 0
    most = max(counts, key=lambda kind: (batched[kind], counts[kind]))
    count = counts[most]
    if count < len(calls):
        notes.append(
            f"{len(calls) - count} of {len(calls)} calls were of another kind and are left out: "
            f"{_difference(most, next(other for other in signatures if other != most))}"
        )
    chosen = [call for call, own in zip(calls, signatures, strict=True) if own == most]
    if not flat.tensors(chosen[0]):
        raise CannotCapture(
            "the model is called without any tensor", "let forward take its inputs as arguments"
        )
    return [_widened(call) for call in chosen]


def _difference(one: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    for own, there in zip(one, other, strict=False):
        if own != there:
            return f"{own[1:]} and {there[1:]}"
    return "more arguments"


def _widened(call: SeenCall) -> SeenCall:
    if not any(tensor.dtype in HALVES for tensor in flat.tensors(call)):
        return call

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in HALVES else tensor

    args, kwargs = nests.change((call.args, call.kwargs), wide, flat.is_tensor)
    return SeenCall(args, kwargs, call.target)


def _inside(model: nn.Module, calls: list[SeenCall], name: str) -> tuple[nn.Module, list[SeenCall]]:
    """The module of this name inside the model, with the calls that it receives there."""
    if not name:
        return model, calls
    child = inner.named(model, name)
    if child is None:
        raise CannotCapture(f"there is no module {name!r} in {type(model).__name__}")
    try:
        own = inner.calls_of(model, child, calls, _run)
    except Exception as error:
        raise refusal.of_call(error, f"a call of {type(model).__name__}") from error
    if not own:
        raise CannotCapture(
            f"{name!r} is not called once in each call of {type(model).__name__}",
            "name another module after --model",
        )
    return child, [replace(call, target=None) for call in own]  # they are the whole model's


def _answering(
    model: nn.Module, calls: list[SeenCall], notes: list[str]
) -> tuple[nn.Module, list[SeenCall], FlatModel]:
    """The model with the calls that a server makes: without labels, with answers in rows.

    If it returns only a loss, the inner module that gives the answers.
    """
    while True:
        calls = [arguments.named(model, call) for call in calls]
        calls = arguments.without_cache(model, calls)
        calls, labels = arguments.without_labels(model, calls, functools.partial(_run, model))
        if labels:
            notes.append(f"left out, since only the loss needs it: {labels}")
        # The model's outputs, and the inputs that it writes into.
        call = calls[0]
        given = flat.tensors(call)
        before = [tensor.clone() for tensor in given]
        try:
            answer = _run(model, call)
        except Exception as error:
            raise refusal.of_call(error, "a call of the model in evaluation on the CPU") from error
        written = frozenset(
            place
            for place, (now, then) in enumerate(zip(given, before, strict=True))
            if not torch.equal(now.nan_to_num(), then.nan_to_num())
        )
        for place in written:
            given[place].copy_(before[place])
        outputs, left_out = flat.choose_outputs(answer)
        if not outputs and not labels and not _is_loss(answer):
            outputs, left_out = flat.choose_outputs(answer, scalars_too=True)
        if outputs:
            notes += left_out
            break
        child = inner.largest(model)
        own = inner.calls_of(model, child, calls, _run) if child is not None else []
        if child is None or not own:
            raise CannotCapture(
                f"{type(model).__name__} returns only a loss",
                "name the module inside that gives the answers: --model NAME",
            )
        notes.append(
            f"{type(model).__name__} returns only a loss: its {type(child).__name__} is exported"
        )
        model, calls = child, own
    flattened = FlatModel(model, flat.template(model, calls[0]))
    flattened.outputs = outputs
    flattened.copied = written
    flattened.has_loss = bool(labels)
    if written:
        names = ", ".join(flattened.input_names[place] for place in sorted(written))
        notes.append(f"forward changes its input in place ({names}): it is given a copy")
    return model, calls, flattened.eval()


def _is_loss(answer: Any) -> bool:
    """Whether it is one number, or a dict with one that is called a loss."""
    found = flat.named_outputs(answer)
    return len(found) == 1 or any("loss" in path.lower() for path in found)


def _captured(
    model: nn.Module,
    calls: list[SeenCall],
    flattened: FlatModel,
    wanted: Wanted,
    notes: list[str],
) -> CaptureFacts:
    samples = [flat.tensors(call) for call in calls]
    _check_repeats(flattened, samples[0])
    # The dimensions that count samples; if there are none, numbers are outputs like any other.
    by_rows = rows.found(samples, lambda inputs: flattened(*inputs))
    if by_rows is None:
        if not flattened.has_loss:
            flattened.outputs, _ = flat.choose_outputs(flattened.answer(*samples[0]), True)
            notes[:] = [note for note in notes if not note.startswith(flat.LEFT_OUT)]
        notes.append(
            "results of samples depend on each other: the batch keeps the size that was seen"
        )
    exported = program.export(flattened, samples, by_rows)
    notes += exported.notes
    dynamic = exported.batch_dynamic and by_rows is not None and by_rows.first
    if by_rows is not None and not dynamic:
        notes.append(NOT_FIRST if exported.batch_dynamic else "the batch size is fixed")
    kept = [samples[place] for place in exported.samples]
    if len(kept) < len(samples):
        notes.append(f"{len(samples) - len(kept)} of {len(samples)} calls had other sizes")
    answers = [
        tuple(
            tensor.detach().clone(memory_format=torch.contiguous_format)
            for tensor in flattened(*inputs)
        )
        for inputs in kept
    ]
    targets = [
        None if (target := calls[place].target) is None else target.detach().cpu()
        for place in exported.samples
    ]
    names = flattened.output_names
    dims = folder.output_dims(answers, by_rows, exported.batch_dynamic)
    measured = None
    if not type(model).__name__.endswith(("CausalLM", "LMHeadModel")):
        # Otherwise the labels are one place further on.
        first = [answer[0] for answer in answers]
        measured = metric.measured(first, targets, names[0], OF[wanted.source])
    captured = CaptureFacts(
        folder=os.path.abspath(wanted.folder),  # noqa: PTH100
        model=type(model).__name__,
        source=wanted.source,
        parameters=inner.size(model),
        inputs=folder.described(flattened.input_names, kept[0], exported.dims),
        outputs=folder.described(names, answers[0], dims),
        batch_sizes=folder.batch_sizes(kept, by_rows),
        batch_dynamic=dynamic,
        weights=wanted.weights or ("trained" if wanted.trained else "as made"),
        metric=measured,
        notes=tuple(dict.fromkeys(notes)),
        samples=len(kept),
    )
    folder.write(captured.folder, exported, kept, answers, targets, captured)
    return captured


def _check_repeats(flattened: FlatModel, sample: Tensors) -> None:
    """Raises CannotCapture if the model answers differently the second time."""
    first, second = flattened(*sample), flattened(*sample)
    if all(
        one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(first, second, strict=False)
    ):
        return
    draws = _Draws()
    with draws:
        flattened(*sample)
    if draws.places:
        where = tuple(dict.fromkeys(draws.places))
        raise CannotCapture(
            f"the model draws random numbers in evaluation ({', '.join(where)}): its results "
            "cannot be compared",
            "let forward draw in training alone (F.dropout needs training=self.training), or take "
            "the numbers as an argument; or name a part of the model that draws none: --model NAME",
            where,
        )
    raise CannotCapture(
        "the model gives another answer to the same input: it keeps state from call to call",
        "give the state to forward as an argument, and return the new one",
    )


class _Draws(TorchDispatchMode):
    """Records where random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            place = refusal.place_now()
            self.places.append(place or str(func))
        return func(*args, **(kwargs or {}))
