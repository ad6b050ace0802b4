"""Find the Job in the running program: root models, optimizers, loaders, loss and steps.

Steps come from PyTorch's global optimizer hooks or, if no optimizer steps, from changes of the
weights (`hand_updates`). A root model is the outermost module whose call gradients will come back
through (`is_of_training`): `Module.__call__` is replaced to see it until two steps have passed, and
again when a new optimizer appears, as in k-fold training. `torch.autograd.backward` shows the loss,
the loader's iterator the wait for data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flatout_agent.apply.booster import Booster
from flatout_agent.attach.chain import bare
from flatout_agent.attach.replacing import in_reverse, replaced
from flatout_agent.boost import Moment
from flatout_agent.discover.hand_updates import HandUpdates
from flatout_agent.job import Job, WeakList
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher
from flatout_agent.watch.training_calls import is_of_training

SEARCH_STEPS = 2
"""The job is known after this many steps."""
LEAD_ABSENT_STEPS = 16
"""Another optimizer leads if the first has not stepped for this many of its steps."""


class Discovery:
    """Hooks into one process's torch and reports what it sees to the booster and the watcher."""

    def __init__(self, job: Job, watcher: Watcher, booster: Booster, recorder: Recorder) -> None:
        self.job = job
        self.watcher = watcher
        self.booster = booster
        self.recorder = recorder
        self.lead: torch.optim.Optimizer | None = None
        self.inside_optimizer = 0
        self.updates: HandUpdates | None = None
        """Looks for changes of the weights, until an optimizer steps."""
        self._absent = 0
        self._searching_until = SEARCH_STEPS
        self._untrained: WeakList[torch.nn.Module] = WeakList()
        """Models that the first step has called without training them."""
        self._stop_search: Callable[[], None] | None = None
        self._unwatch_backward: Callable[[], None] | None = None
        self._unwatch_gradients: Callable[[], None] = lambda: None
        self._removals: list[Callable[[], None]] = []
        self._leaving: Callable[[], None] | None = None
        self._quiet = False
        """The watcher's answer after the last step."""
        # In a plain run the watcher overrides none of these, and each empty call costs time.
        self._reports_starts = _overrides(watcher, "optimizer_starts")
        self._reports_ends = _overrides(watcher, "optimizer_ends")
        self._reports_backward_ends = _overrides(watcher, "backward_ended")
        self._only_counts, self._loss_seen = not watcher.reads_steps, watcher.loss_seen
        self._counter = watcher.counter if self._only_counts else None

    def install(self) -> None:
        """Put all hooks in place."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        before = register_optimizer_step_pre_hook(self._optimizer_starts)
        self._after = register_optimizer_step_post_hook(self._optimizer_ends)
        self._removals = [before.remove, self._watch_loaders(), self._end_updates]
        self._unwatch_backward = self._watch_backward()
        self.updates = HandUpdates(self.job, self._step, self.watcher.start_over)
        self.job.hand_weights = self.updates.weights
        self._unwatch_gradients = self._watch_gradients()
        self._search_models()

    def remove(self) -> None:
        """Remove all hooks from within a step's end, so nothing more is reported.

        torch is iterating over the hooks at a step's end at that moment. So that hook is removed
        when the next backward pass begins, together with the hook of that.
        """
        for remove in (self._stop_search, *self._removals):
            if remove is not None:
                remove()
        self._removals = []
        self._leaving, self._quiet = self._after.remove, False
        if self._unwatch_backward is None:
            self._unwatch_backward = self._watch_backward()

    def remove_between_steps(self) -> None:
        """Remove all hooks at once, and the layers around the calls of models."""
        self.remove()
        self._gone()
        for model in [*self.job.models, *self.job.frozen]:
            bare(model)

    def _gone(self) -> None:
        if self._leaving is not None and self._unwatch_backward is not None:
            self._leaving()
            self._unwatch_backward()
            self._leaving = self._unwatch_backward = None

    # Models -----------------------------------------------------------------------------------

    def _search_models(self) -> None:
        """Wrap `Module.__call__`; nested calls see the original."""
        if self._stop_search is not None:
            return
        module: Any = torch.nn.Module  # its method is replaced
        original = module.__call__
        compiling = torch.compiler.is_compiling
        discovery = self

        # torch's profiler takes the model from a variable `self` of this frame, and crashes where
        # there is none.
        def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # `torch.compile(model)` keeps the model's call at that time, which is this one. It must
            # not be traced, and the model inside is not another one.
            if compiling() or module.__call__ is not __call__:
                return original(self, *args, **kwargs)
            module.__call__ = original
            try:
                discovery.recorder.safely("model", discovery._called, self, args, kwargs)
                return original(self, *args, **kwargs)
            finally:
                if discovery._stop_search is not None:
                    module.__call__ = __call__

        def stop() -> None:
            self._stop_search = None
            module.__call__ = original

        self._stop_search = stop
        module.__call__ = __call__

    def _called(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.job.inside_backward():  # activation checkpointing computes a part again
            return
        known = model in self.job.models
        if not is_of_training(model, args, kwargs, known):
            self._called_untrained(model)
            return
        if not known:
            self.job.models.append(model)
            self.watcher.model_found(model, args, kwargs)
            self.booster.at(Moment.MODEL, model)
        if self.updates is not None:
            self.recorder.safely("updates", self.updates.called, model)
        self.watcher.training_call(model, args, kwargs)

    def _called_untrained(self, model: torch.nn.Module) -> None:
        """A model is called without being trained, as in an evaluation or in each step."""
        if next(iter(model.parameters()), None) is None:
            return  # a loss, or a transformation of samples
        if not self.job.steps:
            if model not in self._untrained:
                self._untrained.append(model)
        elif model in self._untrained and model not in [*self.job.models, *self.job.frozen]:
            self.job.frozen.append(model)
            self.watcher.frozen_found(model)
            self.booster.at(Moment.FROZEN, model)

    # Optimizers and steps ---------------------------------------------------------------------

    def _optimizer_starts(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.inside_optimizer += 1
        if self.updates is not None:
            self._end_updates()
            self.job.by_hand = False
        if optimizer is not self.lead and optimizer not in self.job.optimizers:
            self.recorder.safely("optimizer", self._optimizer_found, optimizer)
        if self._reports_starts and not self._quiet:
            self.recorder.safely("optimizer", self.watcher.optimizer_starts, optimizer)

    def _optimizer_found(self, optimizer: torch.optim.Optimizer) -> None:
        self.job.optimizers.append(optimizer)
        if self.lead is None or (
            self.inside_optimizer == 1 and _same_parameters(self.lead, optimizer)
        ):
            self.lead = optimizer
        elif self._stop_search is None:
            self._searching_until = self.job.steps + SEARCH_STEPS
            self._search_models()
        self.booster.at(Moment.OPTIMIZER, optimizer)

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._leaving is not None:
            return
        self.inside_optimizer -= 1
        if self._reports_ends and not self._quiet:
            self.recorder.safely("optimizer", self.watcher.optimizer_ends, optimizer)
        if optimizer is self.lead:
            self._absent = 0
            try:  # not `safely`, which would be one more call in each step
                if self._quiet and self._only_counts and self._stop_search is None:
                    self.job.steps += 1
                    self.watcher.ended = time.perf_counter()
                    for callback in self.job.step_callbacks:
                        callback()
                    self._quiet = self.watcher.quiet
                else:
                    self._step()
            except Exception as error:
                self.recorder.fault("step", error)
        else:
            self._absent += 1
            if self._absent >= LEAD_ABSENT_STEPS:
                self.lead = optimizer

    def _step(self) -> None:
        self.job.steps += 1
        if self._quiet and self._only_counts:
            self.watcher.ended = time.perf_counter()
        else:
            self.watcher.step()
        for callback in self.job.step_callbacks:
            callback()
        if self._stop_search is not None and self.job.steps >= self._searching_until:
            self._stop_search()
            light = self.watcher.light and self._loss_seen is None
            needed = self.updates is not None or not light
            if not needed and self._unwatch_backward is not None:
                self._unwatch_backward()
                self._unwatch_backward = None
        self._quiet = self.watcher.quiet and self.updates is None and self._leaving is None

    def _end_updates(self) -> None:
        """An optimizer steps, or reporting has ended: stop watching weights."""
        updates, self.updates = self.updates, None
        self._unwatch_gradients()
        if updates is not None:
            self.recorder.safely("updates", updates.end)

    # Loss ---------------------------------------------------------------------------------------

    def _watch_backward(self) -> Callable[[], None]:
        autograd = torch.autograd
        original = autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            quiet, loss_seen = self._quiet, self._loss_seen
            if quiet and loss_seen is None:
                return original(tensors, *args, **kwargs)
            if self.job.inside_backward():  # activation checkpointing has nested backward passes
                return original(tensors, *args, **kwargs)
            if quiet and loss_seen is not None and isinstance(tensors, torch.Tensor):
                loss_seen(tensors)
                return original(tensors, *args, **kwargs)
            # It may be given by its place, the third after the tensors.
            self.job.graph_created = bool(kwargs.get("create_graph", args[2:3] == (True,)))
            self.recorder.safely("backward", self._backward, tensors)
            result = original(tensors, *args, **kwargs)
            if self._reports_backward_ends and not quiet:
                self.recorder.safely("backward", self.watcher.backward_ended)
            if self.updates is not None:
                self.recorder.safely("updates", self.updates.backward_ended)
            return result

        return replaced(autograd, "backward", backward)

    def _watch_gradients(self) -> Callable[[], None]:
        """Wrap `torch.autograd.grad`, which also computes gradients but rarely feeds
        an optimizer.
        """
        original = torch.autograd.grad
        compiling = torch.compiler.is_compiling

        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or self.updates is None or self.job.inside_backward():
                return original(outputs, *args, **kwargs)
            self.recorder.safely("updates", self._gradients_asked, outputs)
            gradients = original(outputs, *args, **kwargs)
            if self.updates is not None:
                self.recorder.safely("updates", self.updates.backward_ended)
            return gradients

        return replaced(torch.autograd, "grad", grad)

    def _gradients_asked(self, outputs: Any) -> None:
        if self.updates is not None:
            self.updates.backward_begins(outputs)

    def _backward(self, tensors: Any) -> None:
        if self._leaving is not None:
            self._gone()
            return
        if self.updates is not None:
            self.updates.backward_begins(tensors)
            if self.updates is not None and self.updates.lost and self._stop_search is None:
                self.updates.find_again()
                self._searching_until = self.job.steps + SEARCH_STEPS
                self._search_models()
        first = tensors if hasattr(tensors, "detach") else next(iter(tensors), None)
        if first is not None:
            self.watcher.backward(first)

    # Loaders ------------------------------------------------------------------------------------

    def _watch_loaders(self) -> Callable[[], None]:
        data = torch.utils.data
        loader_class = data.DataLoader
        iterator_class = data.dataloader._BaseDataLoaderIter
        make_iterator, next_batch = loader_class.__iter__, iterator_class.__next__
        discovery = self

        def __iter__(loader: torch.utils.data.DataLoader[Any]) -> Iterator[Any]:  # noqa: N807
            discovery.recorder.safely("loader", discovery._iterated, loader)
            discovery.recorder.safely("loader", discovery.watcher.epoch_begins, loader)
            counter = discovery._counter
            if counter is None or counter.training_loader is not loader:
                discovery._quiet = False
            iterator = make_iterator(loader)
            discovery.recorder.safely("loader", discovery.job.iterating, loader, iterator)
            return discovery.job.batches(loader, iterator)

        def __next__(iterator: Any) -> Any:  # noqa: N807
            begin = time.perf_counter()
            batch = next_batch(iterator)
            try:
                waited = time.perf_counter() - begin
                made_by = getattr(iterator, "_flatout_loader", None)  # None: made before we came
                loader = made_by() if made_by is not None else None
                if loader is None:
                    return batch
                counter = discovery._counter if discovery._quiet else None
                if counter is not None and counter.counts(loader, batch, waited):
                    return batch
                return discovery.watcher.batch(loader, batch, waited)
            except Exception as error:
                discovery.recorder.fault("batch", error)
                return batch

        return in_reverse(
            [
                replaced(loader_class, "__iter__", __iter__),
                replaced(iterator_class, "__next__", __next__),
            ]
        )

    def _iterated(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        if loader in self.job.loaders:
            return
        self.job.loaders.append(loader)
        self.watcher.loader_found(loader)
        self.booster.at(Moment.LOADER, loader)


def _overrides(watcher: Watcher, method: str) -> bool:
    """Whether the watcher has a method of its own for this."""
    return getattr(type(watcher), method, None) is not getattr(Watcher, method)


def _same_parameters(old: torch.optim.Optimizer, new: torch.optim.Optimizer) -> bool:
    """Whether both train the same parameters, as when the program has rebuilt its optimizer."""
    before, after = (optimizer.param_groups[0]["params"] for optimizer in (old, new))
    return bool(before and after and before[0] is after[0])
