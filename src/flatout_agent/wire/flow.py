"""The part of the contract that is about a step's data flow; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnreadSeen:
    """Operators whose result is never read: neither by a backward pass, nor by the host, nor by a
    variable that outlives the step.
    """

    what: str
    """ResNet() for a call of a module, probe() for one of a function of the user's; autograd.grad
    for calls of torch.autograd.grad; else the costliest operators: mm, softmax.
    """
    where: str | None = None
    """file:line of the user's code."""
    calls: float = 1.0
    """Calls per step."""
    s: float = 0.0
    """CPU seconds of a step in these operators; of an accelerator only what launches them."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""
    module: str = ""
    """The module that the user's function calls."""


@dataclass(frozen=True)
class ConstantSeen:
    """A tensor that two steps made again with equal values, from nothing that training changes."""

    where: str
    """The user's line that takes longest to make it."""
    lines: tuple[str, ...] = ()
    """All lines that make it."""
    operators: tuple[str, ...] = ()
    """aten.arange, aten.lt."""
    calls: float = 1.0
    """How often it is made in a step."""
    shape: str = ""
    """Shape of the largest: 512x512."""
    dtype: str = ""
    bytes: int = 0
    """Bytes made in a step."""
    s: float = 0.0
    """CPU seconds of a step in these operators; of an accelerator only what launches them."""
    compared: bool = True
    """Whether all its bytes were compared; otherwise the operators and numbers that make it
    were."""
    called: str = ""
    """The function or module whose call gives only constants; empty if it is no separate call."""
    shared: bool = False
    """Whether these operators also run on changing values on the same lines."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""


@dataclass(frozen=True)
class AgainSeen:
    """Gradients of weights that both torch.autograd.grad and a `backward` of the loss compute."""

    where: str
    """file:line that calls torch.autograd.grad."""
    backward_where: str | None = None
    """file:line of the `backward`."""
    calls: float = 1.0
    """Such calls in a step."""
    s: float = 0.0
    """CPU seconds of a step in these calls; for an accelerator only the launches."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""


@dataclass(frozen=True)
class DoubleSeen:
    """A place where float64 enters the step."""

    what: str
    """The operator that makes the first float64 tensor (aten._to_copy, aten.lift_fresh); parameter,
    buffer, batch or tensor if it existed before the step.
    """
    where: str | None = None
    """file:line where it is made, or first used."""
    part: str = ""
    """The batch's field, such as [0] or ["x"], also for a value made in a loader."""
    operators: int = 0
    """Operators that run in float64 because of it, or convert back from float64."""
    s: float = 0.0


@dataclass(frozen=True)
class BesideSeen:
    """A user's line whose operators are needed neither for the loss nor for the update
    of weights.
    """

    where: str
    """file:line"""
    source: str
    """Its input: weights (alone, or with gradients), gradients, values of the training (outputs,
    batches). accumulated: gradients that are cloned and only added up for the update.
    """
    s: float = 0.0
    """CPU seconds of a step in its operators; of an accelerator only what launches them."""
    operators: tuple[str, ...] = ()
    """aten.clone, aten.mul, costliest first."""
    steers: bool = False
    """Whether the program keeps a value or reads a number from it that it may use for the
    training."""


@dataclass(frozen=True)
class RepeatSeen:
    """Operators that a Python loop calls one by one, although none needs another's result."""

    where: str
    """file:line of the loop."""
    source: str = ""
    """Text of that line."""
    lines: tuple[str, ...] = ()
    """Lines that call the operators, the costliest first."""
    operators: tuple[str, ...] = ()
    """aten.convolution, aten.mm, the costliest first."""
    shapes: tuple[str, ...] = ()
    """Shapes of their inputs, in that order: 12x1x36x36, 1x1x5x5."""
    calls: float = 0.0
    """Calls of the costliest operator in a step."""
    left: float = 0.0
    """Calls of it that would remain, since each needs the one before."""
    kept: float = 0.0
    """Share of such calls in all calls, by time: 0..1."""
    share: float = 1.0
    """Share of these lines' time that is in the loop."""
    s: float = 0.0
    """CPU seconds of a step in these operators, without the backward pass."""
    modelling: bool = False
    """Whether it is within a module's forward pass."""
    own_weights: bool = False
    """Whether each iteration has weights of its own."""


@dataclass(frozen=True)
class EmbeddingSeen:
    """The weight of an embedding with dense gradients, of which a step touches few rows."""

    name: str
    """Name, such as encoder.words.weight; empty if it belongs to no known model."""
    lines: tuple[str, ...] = ()
    """The user's file:line that look up rows."""
    rows: int = 0
    width: int = 0
    indices: int = 0
    """Indices looked up in a step."""
    touched: int = 0
    """The most distinct rows among them."""


@dataclass(frozen=True)
class IgnoredSeen:
    """Logits of a linear layer most of whose rows a loss ignores."""

    head_where: str | None
    """file:line that calls the layer."""
    loss_where: str | None
    classes: int = 0
    rows: int = 0
    """Rows of logits made in a step."""
    used: int = 0
    """Rows of these used in the loss."""
    ignored: int = 0
    """Targets that the loss ignores; the other unused rows never reach it."""
    s: float = 0.0
    """CPU seconds of a step in operators on all the rows, with their backward pass; of an
    accelerator only what launches them.
    """
    flops: float = 0.0
    """Share of the step's floating-point operations in these."""


@dataclass(frozen=True)
class GradientsSeen:
    """Gradients of parameters that nothing changes."""

    what: str
    """Class of the largest module with only such parameters; empty if there is none."""
    where: str | None = None
    """file:line that calls it, or the model."""
    tensors: int = 0
    """Parameters that nothing changes."""
    parameters: int = 0
    """The number of elements in them."""
    after_trained: bool = True
    """Whether something trained lies before it, so a backward pass has to go through it."""
    s: float = 0.0
    """CPU seconds of a step in operators that only these gradients need; of an accelerator only
    what launches them.
    """
    flops: float = 0.0
    """Share of the step's floating-point operations."""


@dataclass(frozen=True)
class RecomputedSeen:
    """Operators that activation checkpointing calls again in the backward pass of a step."""

    where: str | None
    """file:line that calls the checkpoint, or what leads to it."""
    operators: int = 0
    bytes: int = 0
    """Bytes that they make: without checkpoints at most this would be kept until the backward
    pass."""
    s: float = 0.0
    """CPU seconds; of an accelerator only what launches them."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""


@dataclass(frozen=True)
class FlowSeen:
    """The data flow of the counted steps, one or two."""

    steps: int
    operators: int
    """Operators of a step, without views."""
    operators_s: float
    """CPU seconds of a step in them; of an accelerator only what launches them."""
    unread: tuple[UnreadSeen, ...] = ()
    constants: tuple[ConstantSeen, ...] = ()
    again: tuple[AgainSeen, ...] = ()
    """Costliest first."""
    doubles: tuple[DoubleSeen, ...] = ()
    """Costliest first."""
    default_double: bool = False
    """Whether torch.get_default_dtype() is float64."""
    repeats: tuple[RepeatSeen, ...] = ()
    """Costliest first."""
    beside: tuple[BesideSeen, ...] = ()
    """Costliest first."""
    training: tuple[str, ...] = ()
    """Lines with operators that the loss or the update of the weights needs."""
    embeddings: tuple[EmbeddingSeen, ...] = ()
    """Largest first."""
    ignored: tuple[IgnoredSeen, ...] = ()
    """Costliest first."""
    gradients: GradientsSeen | None = None
    """The unused gradients, or None if all are used."""
    recomputed: RecomputedSeen | None = None
    """The recomputation, or None if nothing is recomputed."""
