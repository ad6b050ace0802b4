"""Calls of root models, cut to this rank's rows if that was proved to give the same."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.chain import Depth, model_call
from flatout_agent.attach.replacing import Undo, in_reverse, replaced
from flatout_agent.ranks import batch_norm, leaves, losses
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.kept import random_states
from flatout_agent.ranks.leaves import Inputs
from flatout_agent.ranks.own_numbers import OwnNumbers
from flatout_agent.ranks.proving import Proof, Prover
from flatout_agent.ranks.reducer import Reducer
from flatout_agent.ranks.refusal import Refused
from flatout_agent.ranks.rows import Split

CHECKED_CALLS = 3
"""The first calls of each kind are checked for equal inputs, and one in CHECK_EVERY after them."""
CHECK_EVERY = 100
MOST_NOTES = 100


class Regions:
    """The root models of this process and how their calls are cut."""

    def __init__(self, group: RankGroup, reducer: Reducer, guarded: Callable[..., Any]) -> None:
        self.group, self.reducer = group, reducer
        self.numbers = OwnNumbers(group.rank)
        self.split: Split | None = None
        """The split of the running region, if any."""
        self.region_s = 0.0
        """Seconds spent joining rows so far, including waits."""
        self.seen: dict[Any, wire.RegionSeen] = {}
        """The findings about calls, one for each kind."""
        self._cut: dict[str, bool] = {}
        """Kinds of calls that are cut -> whether they draw random numbers."""
        self._cut_before: Mapping[str, bool] = {}
        """The same for the start that a checkpoint comes from."""
        self._guarded = guarded
        self._busy = False
        self._proofs: weakref.WeakKeyDictionary[torch.nn.Module, dict[Any, Proof]] = (
            weakref.WeakKeyDictionary()
        )
        self._calls: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._inside_backward = getattr(torch._C, "_current_graph_task_id", lambda: -1)

    def install(self) -> Undo:
        """See each call of a module; the outermost that has parameters is a root model."""
        regions = self
        original = torch.nn.Module.__call__
        compiling = torch.compiler.is_compiling

        # torch's profiler takes the model from a variable `self` of this frame.
        def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if not (regions._busy or compiling() or self in regions._proofs):
                regions._meet(self)
            return original(self, *args, **kwargs)

        return in_reverse(
            [
                replaced(torch.nn.Module, "__call__", __call__),
                batch_norm.shared(self.group, lambda: self.split is not None),
                losses.shared(lambda: self.split),
                self._watch_checkpointing(),
                self._watch_functional_calls(),
            ]
        )

    def _watch_checkpointing(self) -> Undo:
        """Cut recomputation in a backward pass as in the forward pass."""
        import torch.utils.checkpoint as checkpointing

        original = checkpointing.checkpoint
        regions = self

        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            split = regions.split

            def as_before(*values: Any, **named: Any) -> Any:
                if split is None or regions.split is not None:
                    return function(*values, **named)
                with regions.within(split):
                    return function(*values, **named)

            return original(as_before, *args, **kwargs)

        return replaced(checkpointing, "checkpoint", checkpoint)

    def _watch_functional_calls(self) -> Undo:
        """Refuse to cut a model that is called with computed weights.

        The gradient of such a weight would come from this rank's rows only.
        """
        from torch.nn.utils import stateless

        original = stateless._functional_call
        regions = self

        def functional_call(*args: Any, **kwargs: Any) -> Any:
            before, regions._busy = regions._busy, True
            try:
                return original(*args, **kwargs)
            finally:
                regions._busy = before

        return replaced(stateless, "_functional_call", functional_call)

    def leave(self) -> None:
        """Stop cutting calls."""
        self._busy = True

    @property
    def cut_kinds(self) -> dict[str, bool]:
        """Kinds of calls that were cut so far, and whether they draw random numbers."""
        return {**self._cut_before, **self._cut}

    def go_on(self, root: int | None, calls: int, cut: Mapping[str, bool]) -> None:
        """Continue like ranks that have cut these kinds, and drawn numbers for this many calls."""
        self.numbers.root, self.numbers.calls, self._cut_before = root, calls, cut

    def _meet(self, model: torch.nn.Module) -> None:
        if self._inside_backward() != -1 or next(iter(model.parameters()), None) is None:
            return
        self._proofs[model] = {}
        reference = weakref.ref(model)

        def layer(call: Callable[..., Any]) -> Callable[..., Any]:
            def in_rows(*args: Any, **kwargs: Any) -> Any:
                model = reference()
                if model is None or self._busy or self._inside_backward() != -1:
                    return call(*args, **kwargs)
                self._busy = True
                try:
                    return self._run(model, call, args, kwargs)
                finally:
                    self._busy = False

            return in_rows

        model_call(model).wrap(Depth.ROWS, layer)

    def _run(self, model: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        inputs = Inputs.of(args, kwargs)
        key = (model.training, torch.is_grad_enabled(), inputs.key())
        proof = self._proofs[model].get(key)
        if proof is None:
            if not self._guarded(inputs.has_rows, self.group.size):
                return call(*args, **kwargs)  # a later batch may have more
            proof = self._guarded(self._prove, model, call, inputs)
            before = self._cut_before.get(_kind(model, key)) if proof.cut else None
            if before is None:
                return self._first(model, call, key, proof, args, kwargs)
            proof = self._settle(model, key, proof._replace(random=before))
        rows = inputs.rows(proof.dims) if proof.cut else None
        if rows is None or rows < self.group.size:
            return call(*args, **kwargs)
        self._guarded(self._check, model, inputs)
        split = Split.even(self.group, rows)
        args, kwargs = self._guarded(inputs.cut, proof.dims, split)
        with self.within(split), self.numbers.drawn() if proof.random else nullcontext():
            returned = call(*args, **kwargs)
        return self._guarded(self._joined, returned, proof, split)

    def _first(
        self,
        model: torch.nn.Module,
        call: Callable[..., Any],
        key: Any,
        proof: Proof,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """The first call of a kind is not cut: it shows whether random numbers are drawn."""
        before = random_states()
        returned = call(*args, **kwargs)
        now = random_states()[: len(before)]
        random = any(not a.equal(b) for (_, a), (_, b) in zip(before, now, strict=True))
        self._settle(model, key, proof._replace(random=random))
        return returned

    def _settle(self, model: torch.nn.Module, key: Any, proof: Proof) -> Proof:
        """Make calls of this kind in this way from now on."""
        self._proofs[model][key] = proof
        if proof.cut:
            self._cut[_kind(model, key)] = proof.random
        self._note(model, proof, key[0] and key[1])
        return proof

    def _prove(self, model: torch.nn.Module, call: Callable[..., Any], inputs: Inputs) -> Proof:
        self._same_inputs(inputs)
        self._same_weights(model)
        self.reducer.add(model.parameters())
        self.reducer.paused = True
        try:
            return Prover(model, call, self.group, self.within).prove(inputs)
        finally:
            self.reducer.paused = False

    def _joined(self, returned: Any, proof: Proof, split: Split) -> Any:
        began = time.perf_counter()
        values, spec = leaves.flat(returned)
        if spec != proof.spec:
            raise Refused("a model returned something other than at its first call")
        whole = [
            value if output is None else output.whole(value, split)
            for value, output in zip(values, proof.outputs, strict=True)
        ]
        self.region_s += time.perf_counter() - began
        return leaves.unflat(whole, spec)

    @contextmanager
    def within(self, split: Split) -> Iterator[None]:
        """Make batch normalisation and means count the rows of all ranks meanwhile."""
        self.split = split
        try:
            yield
        finally:
            self.split = None

    def _check(self, model: torch.nn.Module, inputs: Inputs) -> None:
        calls = self._calls[model] = self._calls.get(model, 0) + 1
        if calls <= CHECKED_CALLS or calls % CHECK_EVERY == 0:
            self._same_inputs(inputs)

    def _same_inputs(self, inputs: Inputs) -> None:
        tensors = [leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor)]
        if not self.group.equal(float(len(tensors))):
            raise Refused("the ranks call a model with different arguments")
        if not self.group.equal(*[value for each in tensors for value in fingerprint(each)]):
            raise Refused(
                "the batches differ between the ranks: the script draws random numbers that no "
                "seed reaches, or reads something that changes",
                "seed its random generators at its start, as in numpy.random.default_rng(0)",
            )

    def _same_weights(self, model: torch.nn.Module) -> None:
        state = [*model.parameters(), *model.buffers()]
        if not self.group.equal(float(len(state))):
            raise Refused("the ranks have built different models")
        if self.group.equal(*[value for tensor in state for value in fingerprint(tensor)]):
            return
        for tensor in state:
            values = tensor.detach().contiguous()
            self.group.broadcast_(values)
            tensor.data.copy_(values)

    def _note(self, model: torch.nn.Module, proof: Proof, training: bool) -> None:
        region = wire.RegionSeen(
            type(model).__name__,
            proof.cut,
            proof.reason,
            proof.rows,
            proof.error if proof.cut else None,
            proof.random,
            proof.gradient_error,
            training,
        )
        key = (region.model, region.cut, region.reason, training)
        if key in self.seen or len(self.seen) < MOST_NOTES:
            self.seen[key] = region


def _kind(model: torch.nn.Module, key: Any) -> str:
    """A key that is the same for the same calls of the same model in another process."""
    weights = [(tuple(each.shape), str(each.dtype)) for each in model.parameters()]
    return hashlib.sha256(repr((type(model).__qualname__, weights, key)).encode()).hexdigest()[:32]


@torch.no_grad()
def fingerprint(tensor: torch.Tensor) -> tuple[float, ...]:
    """Numbers that are equal for equal tensors, and hardly ever for others."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return (float(tensor.numel()),)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    values = tensor.detach().double() if tensor.device.type != "mps" else tensor.detach().float()
    flat = values.reshape(-1)
    return (float(flat.numel()), float(flat.sum()), float(flat[::7].sum()), float(flat[0]))
