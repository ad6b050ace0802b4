"""The data flow of two consecutive steps: which operator made what, from what, on which line.

The dispatch mode that counts operations passes each operator on to a `Flow`. Values are followed by
the storage that holds them, so views and in-place writes are the same value. No tensor is kept
alive. A weak reference to a storage keeps its address from being reused, so an address names one
storage as long as the flow lasts. `questions` interprets the flow afterwards.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout_agent.attach.replacing import Undo
from flatout_agent.watch.profile.flow import hooks
from flatout_agent.watch.profile.flow.book import StorageBook
from flatout_agent.watch.profile.flow.constants import FlowConstants
from flatout_agent.watch.profile.flow.doubles import FlowDoubles
from flatout_agent.watch.profile.flow.lines import FlowLines
from flatout_agent.watch.profile.flow.notes import FlowNotes, fields
from flatout_agent.watch.profile.flow.records import (
    FlowCall,
    FlowLine,
    FlowNode,
    FlowPass,
    FlowStorage,
    FlowUses,
    Stack,
    tensors,
)
from flatout_agent.watch.profile.flow.schemas import (
    FROM_NOTHING,
    HANDING,
    LIFTING,
    NUMBERS,
    OVERWRITING,
    UNWRITTEN,
    OperatorSchema,
    schema,
)
from flatout_agent.watch.profile.flow.values import FlowValues
from flatout_agent.watch.profile.storages import past_overrides

MOST_OPERATORS = 20_000


class Flow:
    """Follows the operators of one thread, from `install` until `remove`."""

    modelled = True
    """Whether the models are known, and not only the weights of optimizers."""

    def __init__(
        self,
        models: list[torch.nn.Module],
        in_loader: Callable[[], bool],
        weights: Sequence[torch.Tensor] = (),
    ) -> None:
        """in_loader: whether a loader is making its batch. weights: everything trained, as far as
        known.
        """
        self.nodes: list[FlowNode] = []
        self.calls: list[FlowCall] = []
        self.passes: list[FlowPass] = []
        self.given: dict[int, list[int]] = {}
        """Number of an operator -> operators whose value the program already has when it begins."""
        self.backward_lines: Stack = ()
        """The lines that called a backward pass, if it runs on this thread."""
        self.step = 0
        self.steps = 0
        """The number of complete steps."""
        self.overflow = False
        self.unseen = False
        """Whether values come from code that no dispatch mode sees, such as kernels of an extension
        or of Triton."""
        self.error: Exception | None = None
        self.notes = FlowNotes()
        self.read_at: set[FlowLine] = set()
        """Lines on which the program reads values that change."""
        self.doubles = FlowDoubles()
        self.book = StorageBook(models, weights, in_loader, self.doubles)
        self.values = FlowValues(models)
        self.constants = FlowConstants(self.nodes)
        self._in_loader = in_loader
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # each device has its own thread for backward passes
        self._undo: Undo = lambda: None
        self._schemas: dict[Any, OperatorSchema] = {}
        self._lines = FlowLines()
        self._open: list[FlowCall] = []
        self._passes: list[int] = []
        """Numbers of the running backward passes."""

    def install(self) -> None:
        """Also see calls of modules, backward passes, and values that leave torch."""
        self._undo = hooks.install(self)

    def remove(self) -> None:
        """Stop following."""
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

    @property
    def _here(self) -> bool:
        """Whether it follows what this thread does."""
        return self.going and threading.get_ident() == self._thread

    def batch(self, batch: Any) -> None:
        """A loader has given this batch."""
        if self.going:
            self._safely(self._note_batch, batch)

    def _note_batch(self, batch: Any) -> None:
        for path, tensor in fields(batch):
            self.book.batch(path, tensor)

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
        stated = self._schemas.get(func)
        if stated is None:
            stated = self._schemas[func] = schema(func)
        if stated.view and self.book.knows(args):
            return
        uses = FlowUses() if stated.name in LIFTING else self.book.uses(stated, args, kwargs)
        results = tensors(out)
        made, unknown = self.book.made(results)
        changed = [state for _, state, written in uses.tensors if written]
        read = stated.read or unknown or uses.unknown or _value_read(stated, uses, bool(self._open))
        if stated.name in HANDING:
            # The program is given these values.
            for tensor, state, _ in uses.tensors:
                self._gives(state)
                if not state.constant:
                    self.read_at.update(self._stack()[:1])
                if state.constant and state.node >= 0 and not self._open:
                    self.constants.enters(tensor, state, self.step)
        if not (made or changed or read):
            return  # a view
        if len(self.nodes) >= MOST_OPERATORS:
            self.overflow = True
            return
        self.unseen = self.unseen or _takes_unwritten(self.nodes, stated, uses)
        node = self._node(stated, uses, (*made, *changed), s, flops)
        outward = any(state.outside for state in changed)
        node.read = read or (outward and not node.counter and "batch_norm" not in stated.name)
        given = (args, kwargs)
        signature = self.constants.operator(node, stated, uses, given, results)
        wide = self.doubles.widened(node, uses, results)
        for state in node.made:  # they hold its value now
            self.constants.overwritten(state)
            state.node = len(self.nodes)
            state.constant, state.signature, state.wide = node.constant, signature, wide
            state.version += 1
        for state in made:
            state.outside, state.version = False, 0
        self.notes.operator(len(self.nodes), node, results)
        self.values.operator(len(self.nodes), node, args, uses.tensors)
        self.nodes.append(node)

    def _node(
        self,
        stated: OperatorSchema,
        uses: FlowUses,
        made: tuple[FlowStorage, ...],
        s: float,
        flops: float,
    ) -> FlowNode:
        backward = torch._C._current_graph_task_id() != -1
        chain = self._stack() if not (backward and self.backward_lines) else ()
        if backward:
            self.backward_lines, chain = self.backward_lines or chain, ()
        deps, reads, shapes = set(), [], []
        for tensor, state, _ in uses.tensors:
            if state.node >= 0:
                deps.add(state.node)
            reads.append((state.ref.cdata, state.version))
            shapes.append(tensor.shape)
        return FlowNode(
            stated.name,
            self._lines.where(chain),
            s,
            flops,
            self.step,
            tuple(deps),
            tuple(reads),
            made,
            backward,
            self._in_loader(),
            counter=bool(uses.tensors)
            and not any(
                tensor.dim() or tensor.is_floating_point() for tensor, _, _ in uses.tensors
            ),
            chain=chain,
            backward_pass=self._passes[-1] if backward and self._passes else -1,
            shapes=tuple(shapes),
            onto=tuple(state.node for _, state, written in uses.tensors if written)
            if stated.name in OVERWRITING
            else (),
        )

    def _stack(self) -> Stack:
        return self._lines.stack(sys._getframe(1))

    def _gives(self, state: FlowStorage) -> None:
        """The program has its value from the next operator on."""
        if state.node >= 0:
            self.given.setdefault(len(self.nodes), []).append(state.node)

    def call_begins(self, module: torch.nn.Module, args: Any) -> None:
        """A hook: a module is about to be called."""
        if self._here:
            self._safely(self._note_call, module, args)

    def _note_call(self, module: torch.nn.Module, args: Any) -> None:
        chain = self._stack()
        call = FlowCall(
            id(module),
            type(module).__name__,
            self._lines.where(chain),
            not self._open,
            self.step,
            len(self.nodes),
            chain=chain,
        )
        self.notes.called(module, args, call.root)
        self._open.append(call)
        self.calls.append(call)

    def call_ends(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """A hook: its call has ended, with an error perhaps."""
        while self._open and threading.get_ident() == self._thread:
            call = self._open.pop()
            call.end = len(self.nodes)
            if call.module == id(module):
                break

    def pass_begins(self, args: Any, gives: bool) -> Callable[[], None] | None:
        """A backward pass is about to begin. gives: it is torch.autograd.grad's.

        Returns a function to be called when the pass has ended, also with an error.
        """
        if not self._here:
            return None
        graph = len(args) > 3 and bool(args[3])
        item = FlowPass((), self.step, len(self.nodes), gives, graph)
        self._passes.append(len(self.passes))
        self.passes.append(item)
        self._safely(self._note_pass, item, args)

        def ends() -> None:
            self._passes.pop()
            item.end = len(self.nodes)

        return ends

    def _note_pass(self, item: FlowPass, args: Any) -> None:
        item.chain = self._stack()
        roots, inputs = tensors(args[:1]), tensors(args[4:5])
        item.of_weights = bool(inputs) and all(tensor.is_leaf for tensor in inputs)
        if len(roots) == 1 and roots[0].numel() == 1:
            maker = self.book.known(roots[0])
            item.root = maker.node if maker is not None else -1
        for root in roots if not item.gives else ():
            state = self.book.of(root) if root.numel() > 1 else None
            if state is not None and state.node >= 0:
                # The program supplies the first gradient, so no operator reads the output that it
                # belongs to.
                self.nodes[state.node].read = True

    def leaves(self, tensor: torch.Tensor) -> None:
        """A value leaves torch."""
        if self.going:
            self._safely(self._note_reading, tensor)

    def _note_reading(self, tensor: torch.Tensor) -> None:
        state = self.book.of(tensor)
        if state is None:
            return
        if not state.constant:
            self.read_at.update(self._stack()[:1])
        if tensor.device.type != "cpu":
            state.constant = False  # a kernel of the program may write there
        if state.node >= 0:
            self.nodes[state.node].read = True
            self._gives(state)


def _value_read(stated: OperatorSchema, uses: FlowUses, inside: bool) -> bool:
    """Whether the program gets the value; inside a module only numbers count.

    Modules test conditions on their own inputs (`if mask.any()`), which is no use of their result.
    """
    if stated.name not in NUMBERS:
        return False
    return not inside or any(tensor.is_floating_point() for tensor, _, _ in uses.tensors)


def _takes_unwritten(nodes: Sequence[FlowNode], stated: OperatorSchema, uses: FlowUses) -> bool:
    """Whether it reads memory that no operator has written to."""
    if stated.name in FROM_NOTHING:
        return False
    for tensor, state, written in uses.tensors:
        if written or state.node < 0 or not tensor.numel():
            continue
        maker = nodes[state.node]
        by_numpy = maker.loader or (maker.read and tensor.device.type == "cpu")
        if maker.name in UNWRITTEN and not by_numpy:
            return True
    return False
