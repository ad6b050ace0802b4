"""The data flow of two consecutive steps: which operator made what, from what, on which line.

The dispatch mode that counts operations passes each operator on to a `Flow`. Values are followed
by the storage that holds them: views and what is written in place are the same value. No tensor
is kept alive; a weak reference to a storage keeps its address from being used again, so that an
address names one storage for as long as the flow lasts. What the flow means is read from it
afterwards, by `flow_results`.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flatout_agent.replacing import Undo, in_reverse, replaced
from flatout_agent.watch import places
from flatout_agent.watch.profile.flow_births import MAKERS, FlowBirths
from flatout_agent.watch.profile.flow_notes import FlowNotes, fields
from flatout_agent.watch.profile.flow_numbers import FlowNumbers
from flatout_agent.watch.profile.flow_passes import FlowPasses
from flatout_agent.watch.profile.flow_values import FlowValues
from flatout_agent.watch.profile.storages import (
    past_overrides,
    storage_key,
    storage_of,
    weak_storage,
)

MOST_OPERATORS = 20_000
LEAST_BYTES = 1024
"""Smaller constants are compared only where making them takes LEAST_S, as statistics of a table."""
LEAST_S = 50e-6
MOST_BYTES = 256 << 20
"""Compared by their bytes altogether; what comes after that by how it was made."""
READERS = ("numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "untyped_storage")
"""Methods of tensors by which values leave torch unseen by a dispatch mode."""
FROM_NOTHING = frozenset(
    f"aten.{name}"
    for name in (
        "ones_like", "zeros_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
        "new_empty", "new_empty_strided",
    )
)  # fmt: skip
"""They take shape and dtype from their argument, not its values."""
ENGINE = "_engine_run_backward"
"""Function of torch.autograd that each backward pass goes through."""
UNWRITTEN = frozenset(name for name in FROM_NOTHING if "empty" in name) | {
    f"aten.{name}" for name in ("empty", "empty_strided", "empty_permuted")
}
"""They make memory for others to write to."""
KNOWN = ("aten", "prims", "torchvision")
"""Namespaces whose operators do nothing but what their schema says."""
DOUBLES = (torch.float64, torch.complex128)
WIDE = 64
"""Places at which float64 enters that are told apart."""
OVERWRITING = frozenset(f"aten.{name}" for name in ("copy_", "fill_", "zero_"))
"""What they write to has lost its value, or a part of it: they do not read it."""
COLLECTIVE = "c10d."
"""Operators that write to their arguments, which their schema does not say."""
NUMBERS = frozenset(("aten._local_scalar_dense", "aten.item", "aten.is_nonzero"))
"""They give the program the number in a tensor; all but the first only in inference mode."""
HANDING = NUMBERS | {"aten.equal"}
"""They give the program a value."""
LIFTING = ("aten.lift_fresh",)
"""It gives a tensor made of Python's values to the operators."""
DEEPEST = 24
"""Lines of the user's that are noted of one operator's stack."""


class FlowLine(NamedTuple):
    """A line of a user's file that is being executed."""

    file: str
    """As the code object names it."""
    number: int
    function: str


class FlowValue(NamedTuple):
    """What a storage holds, as its last writer leaves it: see `FlowStorage`."""

    constant: bool
    signature: int
    wide: int
    away: str | None


@dataclass(slots=True)
class FlowStorage:
    """What is known of one storage; its value is that of its last writer."""

    ref: StorageWeakRef
    outside: bool = True
    """It was there before the two steps."""
    node: int = -1
    version: int = 0
    constant: bool = False
    """Its value comes from no tensor that training changes."""
    signature: int = 0
    wide: int = 0
    """Bits of the `FlowEntry`s that made it float64."""
    away: str | None = None
    """Line where its value left the device."""

    @property
    def alive(self) -> bool:
        """Whether something still holds it."""
        return not self.ref.expired()  # type: ignore[no-untyped-call]  # torch's own


@dataclass(slots=True)
class FlowNode:
    """One operator that made or changed a value."""

    name: str
    where: str | None
    s: float
    flops: float
    step: int
    deps: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    """Storages with their versions that were there before."""
    made: tuple[FlowStorage, ...]
    backward: bool
    loader: bool
    read: bool = False
    """Its inputs are read, whatever becomes of its result."""
    counter: bool = False
    """It counts, as batch normalisation does its batches."""
    sources: tuple[int, ...] = ()
    """Of a constant: the operators that made what it is made from."""
    constant: bool = False
    chain: tuple[FlowLine, ...] = ()
    """The user's lines on the stack, the innermost first; empty in a backward pass."""
    shapes: tuple[torch.Size, ...] = ()
    """Of the tensors that it takes."""
    onto: tuple[int, ...] = ()
    """Operators that made what it overwrites."""
    made_s: float = 0.0
    """Of a constant: CPU seconds in it and in its sources."""
    grad_call: int = -1
    """Number of the call of torch.autograd.grad whose backward pass it is part of; -1: of none."""


@dataclass(slots=True)
class FlowCall:
    """One call of a module: the operators from `begin` to before `end`."""

    module: int
    kind: str
    where: str | None
    root: bool
    gradients: bool
    step: int
    begin: int
    end: int = -1
    chain: tuple[FlowLine, ...] = ()
    """The line that calls, and those that led to it."""
    onwards: bool = False
    """Its input needs a gradient: a backward pass goes on through it."""


@dataclass(slots=True)
class FlowConstant:
    """A constant that meets a value of the loop."""

    node: int
    step: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    digest: int
    compared: bool
    """By its bytes, not only by how it was made."""
    changed: bool = False
    """It is written to afterwards."""


@dataclass(slots=True)
class FlowEntry:
    """Where float64 comes into the step."""

    what: str
    """Name of the operator; parameter, buffer, batch or tensor where it was there before."""
    where: str | None
    part: str = ""
    """Of the batch, as in ["x"]."""
    s: float = 0.0
    operators: int = 0
    """Computed in float64 because of it."""


@dataclass(slots=True)
class FlowReturn:
    """A value that left the device and came back."""

    left: str | None
    back: str | None
    bytes: int
    step: int


@dataclass(frozen=True)
class _Facts:
    """What an operator's schema says."""

    name: str
    written: frozenset[int | str]
    random: bool
    read: bool
    view: bool = False
    """It makes no storage, writes to none, and gives nothing to the program."""


@dataclass(slots=True)
class _Uses:
    """The tensors that one operator takes: with their storages, and whether it writes to them."""

    tensors: list[tuple[torch.Tensor, FlowStorage, bool]] = field(default_factory=list)
    unknown: bool = False
    """A tensor without storage is among them."""


class Flow:
    """Follows the operators of one thread, from `install` until `remove`."""

    modelled = True
    """The models are known, and not the weights of optimizers alone."""

    def __init__(
        self,
        models: list[torch.nn.Module],
        in_loader: Callable[[], bool],
        weights: Sequence[torch.Tensor] = (),
    ) -> None:
        """in_loader: whether a loader is making its batch. weights: all that is trained, as far as
        it is known.
        """
        self.nodes: list[FlowNode] = []
        self.calls: list[FlowCall] = []
        self.constants: list[FlowConstant] = []
        self.entries: list[FlowEntry] = []
        self.returns: list[FlowReturn] = []
        self.given: dict[int, list[int]] = {}
        """Number of an operator -> operators whose value the program has when it begins."""
        self.backward_lines: tuple[FlowLine, ...] = ()
        """The user's lines on the stack in a backward pass, where it runs on this thread."""
        self.grad_calls: list[tuple[FlowLine, ...]] = []
        """Of each call of torch.autograd.grad: the user's lines that led to it, as in a chain."""
        self.notes = FlowNotes()
        self.step = 0
        self.steps = 0
        """Steps that are complete."""
        self.overflow = False
        self.unseen = False
        """Values come from code that no dispatch mode sees: kernels of an extension, of Triton."""
        self.error: Exception | None = None
        self._in_loader = in_loader
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # backward passes of several devices have a thread each
        self._undo: Undo = lambda: None
        self._open_books(models, weights)

    def _open_books(self, models: list[torch.nn.Module], weights: Sequence[torch.Tensor]) -> None:
        """Where it keeps what it has seen."""
        self._states: dict[int, FlowStorage] = {}
        self._facts: dict[Any, _Facts] = {}
        self._open: list[FlowCall] = []
        self._passes: list[int] = []
        """The backward passes that run, each with the number of its `grad_calls`; -1: none."""
        self._hashed = 0
        self._entered: dict[int, FlowConstant] = {}
        self._lines: dict[FlowLine, str] = {}
        self._known: dict[tuple[str, int, str], FlowLine] = {}
        self._batch: dict[int, str] = {}
        self._accelerated = any(map(_on_device, models)) or any(
            weight.device.type != "cpu" for weight in weights
        )
        self.owned: dict[int, str] = {}
        self._frozen: set[int] = set()
        """Storages of parameters that nothing trains."""
        self._kept: list[StorageWeakRef] = []
        self._own(models, weights)
        self.values = FlowValues(models)
        self.numbers = FlowNumbers(self.owned)
        self.births = FlowBirths()
        self.passes = FlowPasses()

    def _own(self, models: Iterable[torch.nn.Module], weights: Sequence[torch.Tensor]) -> None:
        """Keeps the addresses from being used again where the program replaces a weight."""
        trained = {id(weight) for weight in weights}
        for weight in weights:
            key = storage_key(weight)
            if key is not None:
                self.owned[key] = "parameter"
                self._kept.append(weak_storage(weight))
        for model in models:
            for kind, tensors in (("parameter", model.parameters()), ("buffer", model.buffers())):
                for tensor in tensors:
                    key = storage_key(tensor)
                    if key is not None:
                        self.owned[key] = kind
                        self._kept.append(weak_storage(tensor))
                        if not (tensor.requires_grad or id(tensor) in trained):
                            self._frozen.add(key)

    def install(self) -> None:
        """Also see calls of modules, and values that leave torch."""
        undos: list[Undo] = [replaced(torch.Tensor, name, self._reader(name)) for name in READERS]
        undos += [replaced(torch, name, self._maker_of(name)) for name in MAKERS]
        hooks = torch.nn.modules.module
        undos.append(hooks.register_module_forward_pre_hook(self._call_begins).remove)
        undos.append(hooks.register_module_forward_hook(self._call_ends, always_call=True).remove)
        engine = getattr(torch.autograd, ENGINE, None)
        if engine is not None:
            undos.append(replaced(torch.autograd, ENGINE, self._engine(engine)))
        self._undo = in_reverse(undos)

    def remove(self) -> None:
        """See no more."""
        self._undo()
        self._undo = lambda: None

    def next_step(self) -> None:
        """One step has ended."""
        self.step += 1
        self.steps += 1

    @property
    def going(self) -> bool:
        """Whether it still follows."""
        return self.error is None and not self.overflow

    def batch(self, batch: Any, loader: Any = None) -> None:
        """A loader has given this."""
        self.notes.batch(loader)
        if self.going:
            self._safely(self._note_batch, batch)

    def _note_batch(self, batch: Any) -> None:
        for path, tensor in fields(batch):
            key = storage_key(tensor)
            if key is None:
                continue
            self._batch[key] = path
            state = self._states.get(key)
            if state is None:
                self._outside(tensor)
                continue
            state.constant = False
            for entry in self._entries_of(state.wide):
                entry.part = entry.part or path

    def inputs(self, args: Any, kwargs: Any) -> None:
        """A model is about to be called in training."""
        if self.going:
            with past_overrides():
                self.notes.inputs(args, kwargs, self.maker)

    def maker(self, tensor: torch.Tensor) -> int:
        """The operator that made its value; -1: none seen here."""
        key = storage_key(tensor)
        state = self._states.get(key) if key is not None else None
        return state.node if state is not None else -1

    def operator(
        self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, s: float, flops: float
    ) -> None:
        """One operator has run."""
        if self.going:
            self._safely(self._operator, func, args, kwargs, out, s, flops)

    def _safely(self, action: Callable[..., None], *args: Any) -> None:
        """An error ends the following, never the program."""
        try:
            with self._lock, past_overrides():
                action(*args)
        except Exception as error:
            self.error = error

    def _operator(
        self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, s: float, flops: float
    ) -> None:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = _facts(func)
        if facts.view and self._knows(args):
            return
        uses = _Uses() if facts.name in LIFTING else self._uses(facts, args, kwargs)
        results = _tensors(out)
        made, unknown = self._made(results)
        changed = [state for _, state, written in uses.tensors if written]
        read = facts.read or unknown or uses.unknown or self._value_read(facts, uses)
        for tensor, state, _ in uses.tensors if facts.name in HANDING else ():
            self._gives(state)
            if not state.constant:
                self.births.leaves(self._chain(sys._getframe(1)))
            if state.constant and state.node >= 0 and not self._open:
                self._enters(tensor, state)
        if not (made or changed or read):
            return  # a view
        if len(self.nodes) >= MOST_OPERATORS:
            self.overflow = True
            return
        self.unseen = self.unseen or self._takes_unwritten(facts, uses)
        node = self._node(facts, uses, (*made, *changed), s, flops)
        outward = any(state.outside for state in changed)
        node.read = read or (outward and not node.counter and "batch_norm" not in facts.name)
        signature = 0
        node.constant = self._is_constant(node, facts, uses)
        if node.constant:
            node.sources = node.deps if facts.name not in FROM_NOTHING else ()
            node.made_s = s + sum(self.nodes[source].made_s for source in node.sources)
            signature = self._signature(facts, uses, args, kwargs, results)
        wide = self._widened(node, uses, results)
        away = self._moved(node, uses, results) if self._accelerated else None
        self._adopt(node, made, FlowValue(node.constant, signature, wide, away))
        self._note(node, facts, (args, kwargs), results, signature, uses)
        self.nodes.append(node)

    def _note(
        self,
        node: FlowNode,
        facts: _Facts,
        given: tuple[Any, dict[str, Any]],
        results: list[torch.Tensor],
        signature: int,
        uses: _Uses,
    ) -> None:
        """What is noted beside the operator that is about to get its number."""
        index = len(self.nodes)
        pure = not (uses.unknown or facts.random) and _tells_all(facts)
        self._number(node, facts, given, results, (pure, signature))
        self.notes.operator(index, node, results)
        self.values.operator(index, node, given[0], uses.tensors)

    def _number(
        self,
        node: FlowNode,
        facts: _Facts,
        given: tuple[Any, dict[str, Any]],
        results: list[torch.Tensor],
        value: tuple[bool, int],
    ) -> None:
        """value: whether the same arguments give the same, and a constant's signature."""
        args, kwargs = given
        pure, signature = value
        if facts.name in UNWRITTEN:
            pure = False
        elif facts.name in LIFTING:
            digested = results[0].device.type == "cpu" and self._hashed < MOST_BYTES
            args, kwargs, pure = (signature,), {}, pure and node.constant and digested
        elif facts.name in FROM_NOTHING:
            like = [(tuple(x.shape), x.dtype, str(x.device)) for x in _tensors(args)]
            args = (*like, *(value for value in args if not _tensors(value)))
        self.numbers.operator(len(self.nodes), node, args, kwargs, pure)

    def _takes_unwritten(self, facts: _Facts, uses: _Uses) -> bool:
        """Whether it takes memory that no operator has written to."""
        if facts.name in FROM_NOTHING:
            return False
        for tensor, state, written in uses.tensors:
            if written or state.node < 0 or not tensor.numel():
                continue
            maker = self.nodes[state.node]
            by_numpy = maker.loader or (maker.read and tensor.device.type == "cpu")
            if maker.name in UNWRITTEN and not by_numpy:
                return True
        return False

    def _adopt(self, node: FlowNode, made: Iterable[FlowStorage], value: FlowValue) -> None:
        """What it has made or changed holds this now; made: of these the storages that are new."""
        for state in node.made:
            if state.node in self._entered:
                self._entered[state.node].changed = True
            state.node = len(self.nodes)
            state.constant, state.signature, state.wide, state.away = value
            state.version += 1
        for state in made:
            state.outside, state.version = False, 0

    def _node(
        self, facts: _Facts, uses: _Uses, made: tuple[FlowStorage, ...], s: float, flops: float
    ) -> FlowNode:
        backward = torch._C._current_graph_task_id() != -1
        chain = self._chain(sys._getframe(1)) if not (backward and self.backward_lines) else ()
        if backward:
            self.backward_lines, chain = self.backward_lines or chain, ()
        deps, reads, shapes = set(), [], []
        for tensor, state, _ in uses.tensors:
            if state.node >= 0:
                deps.add(state.node)
            reads.append((state.ref.cdata, state.version))
            shapes.append(tensor.shape)
        return FlowNode(
            facts.name,
            self._where(chain),
            s,
            flops,
            self.step,
            tuple(deps),
            tuple(reads),
            made,
            backward,
            self._in_loader(),
            counter=_counts(uses),
            chain=chain,
            grad_call=self._passes[-1] if backward and self._passes else -1,
            shapes=tuple(shapes),
            onto=tuple(state.node for _, state, written in uses.tensors if written)
            if facts.name in OVERWRITING
            else (),
        )

    def _chain(self, frame: FrameType | None) -> tuple[FlowLine, ...]:
        """The user's lines from here outwards."""
        lines: list[FlowLine] = []
        frame = places.user_frame(frame)
        while frame is not None and len(lines) < DEEPEST:
            code = frame.f_code
            key = code.co_filename, frame.f_lineno, code.co_name
            line = self._known.get(key)
            if line is None:
                line = self._known[key] = FlowLine(*key)
            lines.append(line)
            frame = places.user_frame(frame.f_back)
        return tuple(lines)

    def _where(self, chain: tuple[FlowLine, ...]) -> str | None:
        """file:line of the innermost of them."""
        if not chain:
            return None
        where = self._lines.get(chain[0])
        if where is None:
            where = self._lines[chain[0]] = f"{places.display(chain[0].file)}:{chain[0].number}"
        return where

    def _uses(self, facts: _Facts, args: Any, kwargs: dict[str, Any]) -> _Uses:
        uses = _Uses()
        for position, value in (*enumerate(args), *kwargs.items()):
            for tensor in _tensors(value):
                state = self._state(tensor)
                if state is None:
                    uses.unknown = True
                else:
                    uses.tensors.append((tensor, state, position in facts.written))
        return uses

    def _knows(self, args: Any) -> bool:
        """Whether a view is one of a known storage, which there is nothing more to note of."""
        for value in args:
            for tensor in _tensors(value):
                key = storage_key(tensor)
                if key is None or key not in self._states:
                    return False
        return True

    def _made(self, results: list[torch.Tensor]) -> tuple[list[FlowStorage], bool]:
        """Storages that are new, and whether something without storage is among the results."""
        made, unknown = [], False
        for tensor in results:
            key = storage_key(tensor)
            if key is None:
                unknown = True
            elif key not in self._states:
                state = FlowStorage(weak_storage(tensor))
                self._states[key] = state
                made.append(state)
        return made, unknown

    def _state(self, tensor: torch.Tensor) -> FlowStorage | None:
        key = storage_key(tensor)
        if key is None:
            return None
        state = self._states.get(key)
        return state if state is not None else self._outside(tensor)

    def _outside(self, tensor: torch.Tensor) -> FlowStorage:
        """A tensor that no operator seen here has made."""
        key = storage_of(tensor)._cdata
        kind = self.owned.get(key)
        part = self._batch.get(key)
        state = self._states[key] = FlowStorage(weak_storage(tensor))
        trained = tensor.requires_grad or (kind == "parameter" and key not in self._frozen)
        state.constant = part is None and not trained and not self._in_loader()
        state.signature = hash((key, "outside"))
        if tensor.dtype in DOUBLES and tensor.dim():
            loaded = part is not None or self._in_loader()
            what = "batch" if loaded else kind or "tensor"
            frame = places.user_frame(sys._getframe(1)) if not loaded else None
            where = places.location(frame) if frame is not None else None
            state.wide = self._entry(FlowEntry(what, where, part or ""))
        return state

    def _entry(self, entry: FlowEntry) -> int:
        """The bit of this entry; 0: there are too many."""
        for number, known in enumerate(self.entries):
            if (known.what, known.where, known.part) == (entry.what, entry.where, entry.part):
                return 1 << number
        if len(self.entries) >= WIDE:
            return 0
        self.entries.append(entry)
        return 1 << (len(self.entries) - 1)

    def _entries_of(self, bits: int) -> list[FlowEntry]:
        return [entry for number, entry in enumerate(self.entries) if bits >> number & 1]

    def _is_constant(self, node: FlowNode, facts: _Facts, uses: _Uses) -> bool:
        """Whether its result is one; constants that meet what is none are noted."""
        if node.backward or node.loader or uses.unknown:
            return False
        if not facts.random and _tells_all(facts):
            if facts.name in FROM_NOTHING:
                return True
            for _, state, _ in uses.tensors:
                if not state.constant:
                    break
            else:
                return True
        for tensor, state, written in uses.tensors:
            if state.constant and not written and state.node >= 0:
                self._enters(tensor, state)
        return False

    def _value_read(self, facts: _Facts, uses: _Uses) -> bool:
        """Whether the program is given the value; within a module only numbers count.

        Modules ask for conditions of their own inputs (`if mask.any()`): no use of their result.
        """
        if facts.name not in NUMBERS:
            return False
        return not self._open or any(tensor.is_floating_point() for tensor, _, _ in uses.tensors)

    def _widened(self, node: FlowNode, uses: _Uses, results: list[torch.Tensor]) -> int:
        """The bits of all that made this float64, and their books."""
        bits = 0
        wide_input = False
        for tensor, state, _ in uses.tensors:
            if tensor.dtype in DOUBLES and tensor.dim():
                wide_input = True
                bits |= state.wide
        wide_output = False
        for tensor in results:
            wide_output = wide_output or (tensor.dtype in DOUBLES and tensor.dim() > 0)
        if wide_output and not wide_input and not node.backward:
            bits = self._entry(FlowEntry(node.name, node.where))
        for entry in self._entries_of(bits) if bits and self.step == 0 else ():
            entry.s += node.s
            entry.operators += 1
        return bits if wide_output else 0

    def _moved(self, node: FlowNode, uses: _Uses, results: list[torch.Tensor]) -> str | None:
        """Where the value left the device, if it is away; a return is noted."""
        if not results or node.backward:
            return None
        on_host = results[0].device.type == "cpu"
        for tensor, state, written in uses.tensors:
            if written:
                continue
            if on_host and (tensor.device.type != "cpu" or state.away):
                return state.away or node.where
            if not on_host and tensor.device.type == "cpu" and state.away and tensor.dim():
                size = tensor.numel() * tensor.element_size()
                self.returns.append(FlowReturn(state.away, node.where, size, self.step))
        return None

    def _signature(
        self,
        facts: _Facts,
        uses: _Uses,
        args: Any,
        kwargs: dict[str, Any],
        results: list[torch.Tensor],
    ) -> int:
        """How a constant was made: equal for equal code on equal values."""
        if facts.name == "aten.lift_fresh":
            tensor = results[0]
            return hash((facts.name, tuple(tensor.shape), tensor.dtype, self._digest(tensor)))
        words = ["" if _tensors(value) else repr(value) for value in (*args, *kwargs.values())]
        known = [self._value(tensor, state, results) for tensor, state, _ in uses.tensors]
        return hash((facts.name, *words, *(known if facts.name not in FROM_NOTHING else ())))

    def _value(
        self, tensor: torch.Tensor, state: FlowStorage, results: list[torch.Tensor]
    ) -> tuple[object, ...]:
        """What tells the value of a constant from another one: slices of one tensor differ.

        The program may write to memory of the host without an operator: where that is copied to a
        device, its bytes count, and what cannot be read equals nothing.
        """
        layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        known = (state.signature, state.version, *layout)
        copied = bool(results) and results[0].device.type != "cpu" == tensor.device.type
        if state.node >= 0 or not copied:
            return known
        digest = self._digest(tensor)
        return (*known, digest if digest is not None else -len(self.nodes))

    def _enters(self, tensor: torch.Tensor, state: FlowStorage) -> None:
        """A constant is used together with what is none; noted once for each time it is made."""
        storage = storage_of(tensor)
        size = int(storage.nbytes())
        known = self.constants[-8:]
        small = size < LEAST_BYTES
        if small and self.nodes[state.node].made_s < LEAST_S:
            return
        if any(constant.node == state.node for constant in known):
            return
        digest = self._digest(tensor)
        layout = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        constant = self._entered[state.node] = FlowConstant(
            state.node,
            self.step,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            size,
            # Few bytes may be equal by chance.
            hash((*layout, digest, state.signature if small or digest is None else None)),
            digest is not None,
        )
        self.constants.append(constant)

    def _digest(self, tensor: torch.Tensor) -> int | None:
        """Of the bytes of its storage; None: too many, or not on the host."""
        storage = storage_of(tensor)
        size = int(storage.nbytes())
        if tensor.device.type != "cpu" or self._hashed + size > MOST_BYTES:
            return None
        address = int(storage.data_ptr())
        if not address:
            return None
        self._hashed += size
        return zlib.crc32((ctypes.c_char * size).from_address(address))

    def _call_begins(self, module: torch.nn.Module, args: Any) -> None:
        if self.going and threading.get_ident() == self._thread:
            self._safely(self._note_call, module, args)

    def _note_call(self, module: torch.nn.Module, args: Any) -> None:
        chain = self._chain(sys._getframe(1))
        call = FlowCall(
            id(module),
            type(module).__name__,
            self._where(chain),
            not self._open,
            torch.is_grad_enabled(),
            self.step,
            len(self.nodes),
            chain=chain,
            onwards=any(tensor.requires_grad for tensor in _tensors(args)),
        )
        self.notes.called(module, args, call.root)
        self._open.append(call)
        self.calls.append(call)

    def _call_ends(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        while self._open and threading.get_ident() == self._thread:
            call = self._open.pop()
            call.end = len(self.nodes)
            if call.module == id(module):
                break

    def _engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In place of the function that runs a backward pass; for torch.autograd.grad, too."""

        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self.going or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            self._passes.append(-1)
            self._safely(self._note_pass, args, not kwargs.get("accumulate_grad", True))
            failed = True
            try:
                result = original(*args, **kwargs)
                failed = False
            finally:
                self._passes.pop()
                self._safely(self.passes.ends, len(self.nodes), failed)
            return result

        return run_backward

    def _note_pass(self, args: Any, gives: bool) -> None:
        """gives: it is torch.autograd.grad's."""
        chain = self._chain(sys._getframe(1))
        if gives:
            self._passes[-1] = len(self.grad_calls)
            self.grad_calls.append(chain)
        else:
            self._note_roots(_tensors(args[:1]))
        self.passes.begins(args, gives, (self.step, len(self.nodes)), chain, self.maker)

    def _note_roots(self, roots: Iterable[torch.Tensor]) -> None:
        """Where the program gives the gradient to begin with, no operator reads what it is of."""
        for root in roots:
            state = self._state(root) if root.numel() > 1 else None
            if state is not None and state.node >= 0:
                self.nodes[state.node].read = True

    def _reader(self, name: str) -> Callable[..., Any]:
        """In place of a method by which a value leaves torch."""
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            if self.going and not sys._getframe(1).f_code.co_filename.startswith(places.AGENT):
                self._safely(self._leaves, tensor)
            return result

        return method

    def _maker_of(self, name: str) -> Callable[..., Any]:
        """In place of a function by which values of the host become a tensor."""
        original = getattr(torch, name)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            ours = self.going and threading.get_ident() == self._thread
            if ours and not (_tensors(args) or self._in_loader()):
                self._safely(self._note_birth, result)
            return result

        return function

    def _note_birth(self, tensor: Any) -> None:
        if self.births.looks_at(tensor):
            chain = self._chain(sys._getframe(1))
            self.births.born(self.step, chain, tensor, self._digest(tensor))

    def _leaves(self, tensor: torch.Tensor) -> None:
        state = self._state(tensor)
        if state is None:
            return
        self.numbers.exposed(tensor)
        if not state.constant:
            self.births.leaves(self._chain(sys._getframe(1)))
        if tensor.device.type != "cpu":
            state.constant = False  # a kernel of the program may write there
        if state.node >= 0:
            self.nodes[state.node].read = True
            self._gives(state)

    def _gives(self, state: FlowStorage) -> None:
        """From the next operator on the program has its value."""
        if state.node >= 0:
            self.given.setdefault(len(self.nodes), []).append(state.node)


def _on_device(model: torch.nn.Module) -> bool:
    return any(parameter.device.type != "cpu" for parameter in model.parameters())


def _facts(func: Any) -> _Facts:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return _Facts(str(func), frozenset(), random=True, read=True)
    packet = str(getattr(func, "_overloadpacket", func))
    written: set[int | str] = set()
    for position, argument in enumerate(schema.arguments):
        if packet.startswith(COLLECTIVE) or (
            argument.alias_info is not None and argument.alias_info.is_write
        ):
            written |= {position, argument.name}
    tags = set(getattr(func, "tags", ()))
    reading = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    read = (bool(tags & reading) and packet != "aten._local_scalar_dense") or (
        _namespace(packet) not in KNOWN
    )
    aliases = [result.alias_info is not None for result in schema.returns]
    return _Facts(
        packet,
        frozenset(written),
        torch.Tag.nondeterministic_seeded in tags,
        read,
        view=bool(aliases) and all(aliases) and not (written or read) and packet not in LIFTING,
    )


def _tells_all(facts: _Facts) -> bool:
    """Whether what it gives comes from its arguments alone, but for chance."""
    return not facts.read or _namespace(facts.name) in KNOWN


def _namespace(name: str) -> str:
    """As in aten, of aten.mm."""
    return name.partition(".")[0]


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an argument or a result: one, or a list of them, or of lists of them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _counts(uses: _Uses) -> bool:
    for tensor, _, _ in uses.tensors:
        if tensor.dim() or tensor.is_floating_point():
            return False
    return bool(uses.tensors)
