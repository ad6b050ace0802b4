"""Observe a program's model calls, and take its model at the end, or earlier.

It wraps `Module.__call__`, as discovery does for its first steps, but to the end: the evaluated
module may not be the trained one. Nested calls are not seen and cost nothing.
"""

from __future__ import annotations

import collections
import difflib
import gc
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flatout_agent import wire
from flatout_agent.attach.replacing import replaced
from flatout_agent.capture.calls import Pool, SeenCall, copied, size_bytes
from flatout_agent.capture.refusal import CannotCapture
from flatout_agent.capture.roots import Root, Roots
from flatout_agent.job import Job
from flatout_agent.speedups import nests
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import places
from flatout_agent.watch.ending import end_process
from flatout_agent.watch.tensors import tensors_in

WITHOUT_EVALUATION = 4
"""A program that is to be ended early first trains at most this many of its short epochs."""
CALLS_IN_TRIAL = 64
BATCHES_AHEAD = 3
"""The number of batches remembered: a loader may be asked for the next batch before the model gets
this one (Accelerate)."""

MOST_SOURCE_BYTES = 4 << 20
"""A larger file counts as data with unknown contents."""


class Taker:
    """Sees the calls of one process; writes one record: ExportSeen or ExportRefused."""

    def __init__(self, job: Job, recorder: Recorder, orders: wire.Orders) -> None:
        assert orders.export is not None
        self.job = job
        self.recorder = recorder
        self.orders = orders.export
        folder = os.path.join(os.path.dirname(orders.records), f"capture-{os.getpid()}")  # noqa: PTH118, PTH120
        self.folder = self.orders.folder or folder
        self.roots = Roots(self.orders)
        self._process = os.getpid()
        self._batches: collections.deque[Any] = collections.deque(maxlen=BATCHES_AHEAD)
        self._unsure: Root | None = None
        """A model called in eval() mode with gradients on, if nothing was called since."""
        self._taken = False
        self._name_is_right = not self.orders.model

    def install(self) -> None:
        """Install before discovery, which wraps this."""
        self._watch_models()
        iterators = torch.utils.data.dataloader._BaseDataLoaderIter
        following = iterators.__next__

        def __next__(iterator: Any) -> Any:  # noqa: N807
            if self._epoch_is_over(iterator):
                raise StopIteration
            batch = following(iterator)
            if not self._taken:
                self._batches.append(batch)
            return batch

        replaced(iterators, "__next__", __next__)
        self.job.after_step(self._step)

    # The program's models ---------------------------------------------------------------------

    def _watch_models(self) -> None:
        module: Any = torch.nn.Module
        original = module.__call__
        compiling = torch.compiler.is_compiling
        taker = self

        # torch's profiler takes the model from a variable `self` of this frame.
        def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # If another wrapper is in front, as torch.fx's while it traces, nothing is changed.
            if compiling() or module.__call__ is not __call__:
                return original(self, *args, **kwargs)
            module.__call__ = original
            try:
                taker.recorder.safely("export", taker._called, self, args, kwargs)
                return original(self, *args, **kwargs)
            finally:
                if module.__call__ is original:
                    module.__call__ = __call__

        module.__call__ = __call__

    def _called(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._taken or self.job.inside_backward() or os.getpid() != self._process:
            return
        if (
            torch._C._get_tracing_state() is not None
        ):  # anything done here would become part of the trace
            return
        gradients = torch.is_grad_enabled()
        trains = model.training and gradients and any(p.requires_grad for p in model.parameters())
        evaluates = not model.training or not gradients
        if not (trains or evaluates):
            return
        root = self.roots.of(model, trains)
        if root is None:
            return
        if trains and self.orders.after_steps is not None:
            # An evaluation has been seen, or none has come after a while.
            evaluated = self.roots.evaluated and self.job.steps > 0
            most = WITHOUT_EVALUATION * max(1, self.orders.after_steps)
            if evaluated or self.job.steps >= most:
                self.take_and_end()
        # Whether it is a cache of keys and values, which generation gives to a transformer.
        if any(
            type(value).__name__.endswith("Cache")
            for value in nests.leaves((args, kwargs), lambda value: nests.members(value) is None)
        ):
            root.generated += 1
            return
        unsure = evaluates and gradients
        if unsure and root.steps_in_evaluation_mode:
            trains, evaluates = True, False
        self._unsure = root if unsure else None
        self._keep(root, args, kwargs, evaluates)
        if self.orders.after_steps is not None and root.seen.evaluation.offered >= CALLS_IN_TRIAL:
            self.take_and_end()

    def _keep(
        self, root: Root, args: tuple[Any, ...], kwargs: dict[str, Any], evaluation: bool
    ) -> None:
        pool = root.seen.pool(evaluation)
        if not pool.wants():
            return
        size = size_bytes((args, kwargs))
        if size > pool.most_bytes:
            return
        if not all(map(_has_values, tensors_in((args, kwargs)))):
            return
        own_args, own_kwargs = copied((args, kwargs))
        target = self._target((args, kwargs), (own_args, own_kwargs))
        pool.add(SeenCall(own_args, own_kwargs, target), size)

    def _target(self, given: Any, copies: Any) -> torch.Tensor | None:
        """The target that the loader gave besides the call's inputs: the last tensor with as many
        rows.
        """
        inputs, plain = list(tensors_in(given)), list(tensors_in(copies))
        for batch in reversed(self._batches):
            leaves = list(tensors_in(batch))
            own = [_is_among(leaf, inputs, plain) for leaf in leaves]
            rows = next((int(tensor.shape[0]) for tensor in plain if tensor.dim()), 0)
            rest = [
                leaf
                for leaf, among in zip(leaves, own, strict=True)
                if not among and leaf.dim() and leaf.shape[0] == rows
            ]
            if any(own) and rest:  # an input is from this batch
                target: torch.Tensor = copied(rest[-1])
                return target
        return None

    # Batches and steps ------------------------------------------------------------------------

    def _epoch_is_over(self, iterator: Any) -> bool:
        """End epochs early in a program that is to be ended early, so its evaluation
        comes sooner.
        """
        if self.orders.after_steps is None:
            return False
        begun = iterator.__dict__.setdefault("_flatout_begun", self.job.steps)
        return bool(self.job.steps - begun >= self.orders.after_steps)

    def _step(self) -> None:
        if not self._name_is_right:
            # End the program at its first step if the requested model cannot exist.
            self._name_is_right = True
            answer = cannot_be(self.orders.model, self.roots)
            if answer is not None and os.getpid() == self._process:
                self._taken = True
                self.recorder.write(answer.record())
                end_process(self.recorder)
        root, self._unsure = self._unsure, None
        if root is not None and not root.steps_in_evaluation_mode:
            root.steps_in_evaluation_mode = True
            seen = root.seen
            for call in seen.evaluation.calls:
                seen.training.add(call, size_bytes((call.args, call.kwargs)))
            seen.evaluation = Pool()
            self.roots.of(root.model, trains=True)

    def take_and_end(self) -> None:
        """Take the model and end the program; does not return."""
        self.take()
        end_process(self.recorder)

    # The end ----------------------------------------------------------------------------------

    def program_ends(self) -> None:
        """Take the model at the interpreter's exit, unless an exception ended the program."""
        if self._taken or int(os.environ.get("RANK") or 0) != 0:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not None:
            self._taken = True
            reason = f"the script ended by {type(error).__name__}: its model is not exported"
            self.recorder.write(wire.ExportRefused(reason, "run it to its end"))
            return
        self.take()

    def take(self) -> None:
        """Write the capture folder and the record of it."""
        self._taken = True
        self._batches.clear()
        began = time.perf_counter()
        try:
            from flatout_agent.capture.capture import Wanted, capture

            choice = self.roots.choose()
            wanted = Wanted(
                self.folder,
                choice.source,
                choice.inside,
                self.orders.weights,
                self.orders.weights_key,
                choice.root.trained,
                choice.notes,
            )
            done = capture(choice.root.model, choice.calls, wanted)
            took = time.perf_counter() - began
            self.recorder.write(
                wire.ExportSeen(
                    done.folder, done.model, done.source, done.samples, took, done.notes
                )
            )
        except CannotCapture as answer:
            self.recorder.write(answer.record())
        except KeyboardInterrupt:
            self.recorder.write(wire.ExportRefused("the export was interrupted"))
        except Exception as error:
            self.recorder.fault("export", error)
            reason = f"the export failed inside flatout: {type(error).__name__}: {error}"
            self.recorder.write(wire.ExportRefused(reason[:600], "report it"))


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether it holds data: not on meta, not inside vmap or grad, not traced."""
    if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return bool(type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__)


def _is_among(leaf: torch.Tensor, inputs: list[torch.Tensor], copies: list[torch.Tensor]) -> bool:
    """Whether an input of the call is this tensor, possibly moved to a device or reshaped."""
    for given, copy in zip(inputs, copies, strict=True):
        if given is leaf:
            return True
        alike = leaf.numel() == copy.numel() and leaf.dtype == copy.dtype
        if alike and torch.equal(leaf.detach().cpu().reshape(-1), copy.reshape(-1)):
            return True
    return False


def cannot_be(name: str, roots: Roots) -> CannotCapture | None:
    """Why there is no such model and never will be, or None if there is one or may be.

    A model may still be created later: an average of the weights, the second of two networks. So a
    name is wrong only if no module has it as class or attribute, and the script's own files do not
    even contain the word.
    """
    word = name.rpartition(".")[2]
    known = {own for root in roots for own in root.names}
    for value in gc.get_objects():
        # Not isinstance: the `__class__` of a lazy proxy runs code.
        if issubclass(type(value), nn.Module):
            known.add(type(value).__name__)
            known.update(value.__dict__.get("_modules") or {})
    if word in known or _is_written(word):
        return None
    refused = roots.not_called(name)
    near = difflib.get_close_matches(word, sorted(known), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    reason = f"{refused.reason}, and nothing in the script has that name: the script was ended"
    return CannotCapture(reason, f"{hint}{refused.cure}")


def _is_written(word: str) -> bool:
    """Whether the word occurs in one of the script's files, or one of them cannot be read."""
    if not hasattr(sys.modules.get("__main__"), "__file__"):
        return True  # python -c, or from stdin
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    return any(_contains(file, pattern) for file in places.own_files())


def _contains(file: str, pattern: re.Pattern[str]) -> bool:
    path = Path(file)
    try:
        if path.stat().st_size > MOST_SOURCE_BYTES:
            return True
        return pattern.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except FileNotFoundError:  # torch.ops claims to be a file
        return False
    except OSError:
        return True
