"""The part of the contract that is about a step's data flow; read it as `wire`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnreadSeen:
    """Operators whose result nobody reads: neither a backward pass, nor the host, nor a variable
    that outlives the step.
    """

    what: str
    """ResNet() for a call of a module, probe() for one of a function of the user's; autograd.grad
    for calls of torch.autograd.grad; else the costliest operators: mm, softmax.
    """
    where: str | None = None
    """file:line of the user's code."""
    calls: float = 1.0
    """Per step."""
    s: float = 0.0
    """CPU seconds of a step in these operators; of an accelerator only what launches them."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""
    root: bool = False
    """A whole model, called by the loop."""
    gradients: bool = False
    """Called with gradients on."""
    same_input: bool = False
    """The same module is called on the same tensors elsewhere in the step, and that is read ..."""
    first_where: str | None = None
    """... on this line."""
    module: str = ""
    """The module that the function of the user's calls."""
    forwards: float = 0.0
    """Modules called in it in a step with gradients on, from outside of any other."""


@dataclass(frozen=True)
class ConstantSeen:
    """A tensor that two steps have made anew, equal, from nothing that training changes."""

    where: str
    """The line of the user's that takes longest to make it."""
    lines: tuple[str, ...] = ()
    """All lines that make it."""
    operators: tuple[str, ...] = ()
    """aten.arange, aten.lt."""
    calls: float = 1.0
    """Times that it is made in a step."""
    shape: str = ""
    """Of the largest: 512x512."""
    dtype: str = ""
    bytes: int = 0
    """Made in a step."""
    s: float = 0.0
    """CPU seconds of a step in these operators; of an accelerator only what launches them."""
    compared: bool = True
    """By all its bytes; else by the operators and numbers that make it."""
    called: str = ""
    """The function or module whose call gives nothing else; empty: it is no call of its own."""
    shared: bool = False
    """These operators also run on what changes, on the same lines."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""


@dataclass(frozen=True)
class HostConstantSeen:
    """Tensors that lines of one function make of the host's values, of the same bytes in both
    steps.
    """

    where: str
    """file:line that makes the largest."""
    lines: tuple[str, ...] = ()
    """Lines whose values lead there, as far as the text of the file tells."""
    function: str = ""
    calls: float = 1.0
    """Times that it is made in a step."""
    shape: str = ""
    """Of the largest."""
    dtype: str = ""
    bytes: int = 0
    """Of all that are made in a step."""


@dataclass(frozen=True)
class AgainSeen:
    """What one step computes again: the same operators on the same values."""

    what: str
    """Field() for a module; autograd.grad for calls of torch.autograd.grad."""
    where: str | None = None
    """file:line that calls it."""
    lines: tuple[str, ...] = ()
    """The innermost lines by which the calls differ."""
    calls: float = 2.0
    """In a step, with the first where that is one of them."""
    repeated: float = 1.0
    """Of them those that repeat one."""
    gradients: float = 0.0
    """Calls of torch.autograd.grad that are repeated with a module's."""
    unlearned: float = 0.0
    """Of the repeated calls, training calls of a whole model that no backward pass goes through."""
    s: float = 0.0
    """CPU seconds of a step in what is computed again; of an accelerator only what launches it."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""
    backward_where: str | None = None
    """Of derivatives: file:line of a `backward` that computes all of them, too."""


@dataclass(frozen=True)
class DoubleSeen:
    """Where float64 comes into the step."""

    what: str
    """The operator that makes the first float64 tensor (aten._to_copy, aten.lift_fresh); parameter,
    buffer, batch or tensor where it was there before the step.
    """
    where: str | None = None
    """file:line where it is made, or first used."""
    part: str = ""
    """The batch's field, as in [0] or ["x"]; of what a loader makes, too."""
    operators: int = 0
    """In float64 because of it, or turned back from float64."""
    s: float = 0.0
    made_where: str | None = None
    """file:line that made, before the step, a batch's data or a tensor; None: not clear."""


@dataclass(frozen=True)
class ReturnSeen:
    """A value that is copied from the device to the host, and what comes of it back."""

    left: str | None
    """file:line of the copy to the host."""
    back: str | None
    """file:line of the copy back."""
    calls: float = 1.0
    bytes: int = 0
    """Copied back in a step."""


@dataclass(frozen=True)
class BesideSeen:
    """A line of the user's whose operators neither the loss nor the update of weights needs."""

    where: str
    """file:line"""
    source: str
    """What it works on: weights (alone, or with gradients), gradients, values of the training
    (outputs, batches); accumulated: gradients that are cloned and only added up for the update.
    """
    s: float = 0.0
    """CPU seconds of a step in its operators; of an accelerator only what launches them."""
    operators: tuple[str, ...] = ()
    """aten.clone, aten.mul: the costliest first."""
    steers: bool = False
    """The program keeps a value or reads a number of it, and may use that for the training."""


@dataclass(frozen=True)
class RepeatSeen:
    """Operators that a Python loop calls one by one, though none needs what another one gives."""

    where: str
    """file:line of the loop."""
    source: str = ""
    """Text of that line."""
    lines: tuple[str, ...] = ()
    """Lines that call the operators, the costliest first."""
    operators: tuple[str, ...] = ()
    """aten.convolution, aten.mm, the costliest first."""
    shapes: tuple[str, ...] = ()
    """Of what they take, in that order: 12x1x36x36, 1x1x5x5."""
    calls: float = 0.0
    """Of the costliest operator in a step."""
    left: float = 0.0
    """Calls of it that would be left: each needs the one before."""
    kept: float = 0.0
    """Such calls of all calls, by their time: 0..1."""
    share: float = 1.0
    """Of what these lines take that is in the loop."""
    s: float = 0.0
    """CPU seconds of a step in these operators, without the backward pass."""
    modelling: bool = False
    """Within a module's forward pass."""
    own_weights: bool = False
    """Each turn has weights of its own."""


@dataclass(frozen=True)
class EmbeddingSeen:
    """The weight of an embedding with dense gradients, of which a step touches few rows."""

    name: str
    """encoder.words.weight; empty: not of a model that is known."""
    lines: tuple[str, ...] = ()
    """file:line of the user's that look rows up."""
    rows: int = 0
    width: int = 0
    indices: int = 0
    """Looked up in a step."""
    touched: int = 0
    """Distinct rows among them, at most."""


@dataclass(frozen=True)
class IgnoredSeen:
    """Logits of a linear layer of which a loss leaves most rows out."""

    head_where: str | None
    """file:line that calls the layer."""
    loss_where: str | None
    classes: int = 0
    rows: int = 0
    """Of logits, made in a step."""
    used: int = 0
    """Of them in the loss."""
    ignored: int = 0
    """Targets that the loss is told to ignore; other rows never reach it."""
    s: float = 0.0
    """CPU seconds of a step in operators on all the rows, with their backward pass; of an
    accelerator only what launches them.
    """
    flops: float = 0.0
    """Share of the step's floating-point operations in these."""


@dataclass(frozen=True)
class GradientsSeen:
    """Gradients that nothing uses: of parameters that nothing changes, or of a part that is trained
    by another backward pass.
    """

    what: str
    """Class of the largest module of which all are such; empty: none has."""
    where: str | None = None
    """file:line that calls it, or the model."""
    tensors: int = 0
    """Parameters that nothing changes."""
    parameters: int = 0
    """Numbers in them."""
    after_trained: bool = True
    """Something that is trained lies before it: a backward pass has to go through it."""
    dropped: bool = False
    """It is trained; of this pass the gradients are set to zero or dropped."""
    backward_where: str | None = None
    """file:line of that pass."""
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
    """That they make: without checkpoints at most this would be kept until the backward pass."""
    s: float = 0.0
    """CPU seconds; of an accelerator only what launches them."""
    flops: float = 0.0
    """Share of the step's floating-point operations."""


@dataclass(frozen=True)
class PaddingSeen:
    """An input that is padded beyond the longest row of each batch: batch x length, perhaps with
    features behind the length or before it.
    """

    where: str | None
    """file:line that makes the batch."""
    path: str = ""
    """Among the model's arguments: [0][0] is the first one."""
    shape: str = ""
    """16x160, 8x48x1x24x24."""
    constant: int = 0
    masked: bool = False
    """A mask, or lengths, among the model's inputs leave out the padding."""
    left: bool = False
    length: int = 0
    """Of the input."""
    longest: int = 0
    """Of all rows."""
    padded: float = 0.0
    """Share of the length beyond the longest row, mean of the batches."""
    filled: float = 1.0
    """Share of the input that is no padding."""
    s: float = 0.0
    """CPU seconds of a step in operators that work on the whole length, beyond their dispatch."""
    flops: float = 0.0
    """Their share of the step's floating-point operations."""


@dataclass(frozen=True)
class FlowSeen:
    """The data flow of the counted steps, one or two."""

    steps: int
    operators: int
    """Of a step, without views."""
    operators_s: float
    """CPU seconds of a step in them; of an accelerator only what launches them."""
    unread: tuple[UnreadSeen, ...] = ()
    constants: tuple[ConstantSeen, ...] = ()
    host_constants: tuple[HostConstantSeen, ...] = ()
    """The largest first."""
    again: tuple[AgainSeen, ...] = ()
    """The costliest first."""
    doubles: tuple[DoubleSeen, ...] = ()
    """The costliest first."""
    default_double: bool = False
    """torch.get_default_dtype() is float64."""
    returns: tuple[ReturnSeen, ...] = ()
    repeats: tuple[RepeatSeen, ...] = ()
    """The costliest first."""
    beside: tuple[BesideSeen, ...] = ()
    """The costliest first."""
    training: tuple[str, ...] = ()
    """Lines with operators that the loss or the update of the weights needs."""
    embeddings: tuple[EmbeddingSeen, ...] = ()
    """The largest first."""
    ignored: tuple[IgnoredSeen, ...] = ()
    """The costliest first."""
    gradients: tuple[GradientsSeen, ...] = ()
    """The costliest first."""
    recomputed: RecomputedSeen | None = None
    """None: nothing is computed again."""
    padding: PaddingSeen | None = None
    """None: not seen."""
    batches: float = 0.0
    """That loaders give for a step."""
    training_calls: float = 0.0
    """Of root models, in a step."""
