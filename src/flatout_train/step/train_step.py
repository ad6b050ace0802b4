"""The whole training step in one call: forward, backward, clipping, optimizer, scheduler, average.

Everything is decided when the step is made or on its first call. A call then only does what the
same loop by hand does, and reads nothing from an accelerator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.errors import NonfiniteError
from flatout_train.step import compiling, loss_call, problems, ranks, step_state
from flatout_train.step.accumulation import Group, Weight
from flatout_train.step.averaging import average_of
from flatout_train.step.buffers import Buffers
from flatout_train.step.choices import Choices
from flatout_train.step.fitting import Fit
from flatout_train.step.gradients import Gradients
from flatout_train.step.graph.whole_step import WholeStep
from flatout_train.step.histories import Histories, Metrics
from flatout_train.step.passes import Passes
from flatout_train.step.update import DeviceUpdate, HostUpdate, ScaledUpdate, Update


def train_step(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer,
    *,
    plan: str | Path | None = None,
    precision: str = "auto",
    compile: str | bool = "auto",
    layout: str = "auto",
    graph: str | bool = "auto",
    accumulate: int = 1,
    weigh: str | Callable[[Any], Any] = "samples",
    clip_norm: float | None = None,
    scheduler: Any = None,
    ema: float | None = None,
    nonfinite: str = "stop",
    recompute: str | bool = "auto",
    logits: str = "stored",
) -> TrainStep:
    """The whole training step of `model` as one function of a batch.

    Made once, `step = flatout.train_step(model, nn.CrossEntropyLoss(), optimizer, clip_norm=1.0)`;
    then `loss = step(batch)` for each batch is the whole loop. TrainStep documents the arguments.

    Raises UsageError, here, on the first call or from an error of torch's: it names what is wrong
    (the parameter, the tensor with its shape, dtype and device) and the cure.
    """
    problems.check_kinds(model, loss_fn, optimizer, scheduler)
    options = problems.Options(accumulate, weigh, clip_norm, ema, nonfinite, graph, recompute)
    problems.check_parameters(model, loss_fn, optimizer)
    choices = Choices(precision, compile, layout, graph, accumulate, logits)
    try:
        choices.follow(plan)
        return TrainStep(model, loss_fn, optimizer, scheduler, options, choices)
    except BaseException:
        choices.undo()
        raise


class TrainStep:
    """One training step: `loss = step(batch)`. Made by `flatout.train_step`.

    The loss is 0-d, detached, float32 (float64 where the loss is), on the model's device, and has
    not been waited for: read it with `.item()` seldom, or all of them with `step.metrics()`.
    Gradients stay in `.grad` until the next step. Everything is chosen once; `step.notes` says what
    and why.

    Arguments of `train_step`:

    - `model`: a module on its device, in training mode; also inside DistributedDataParallel, or
      sharded with `fully_shard` (FSDP2).
    - `loss_fn`: one of three forms, told apart by the signature. A function whose first parameter
      is called `model`: `loss_fn(model, batch)`. Any other callable, such as
      `nn.CrossEntropyLoss()`: `loss_fn(model(input), target)`, for batches that are pairs.
      None: `model(**batch)` returns an object or dict with `loss` (Hugging Face). The loss
      is 0-d, and the mean over what `weigh` counts.
    - `optimizer`: holds the model's trainable parameters, all of them; of torch or like it. Not
      LBFGS.
    - `plan`: a flatout.toml; decides what is left at "auto" here.
    - `precision`: "auto", "bf16", "fp16" (the loss is scaled), "tf32", "fp32" or "fp8".
    - `compile`: "auto", True or "whole" (one graph), "blocks" (those that repeat, and the loss:
      starts faster), "tuned" ("auto" with kernels timed: starts slowest), a mode of torch's, False.
    - `layout`: "auto", "channels_last" or "contiguous".
    - `graph`: the whole step as one CUDA graph: "auto", True or False. Where it cannot be one,
      the step runs without, and `step.notes["graph"]` says why. Plain values that model and
      loss read (a factor, a dropout's `p`) may change: that makes a new recording.
    - `accumulate`: calls that make one optimizer step, 1 or more. The gradient is exactly that of
      all their batches together: sum of weight times gradient, by sum of weights, over all
      ranks. Gradients are communicated in the last call alone. `step.flush()` ends a group
      that is short. The group's batches are kept in memory until then.
    - `weigh`: what the loss is the mean over, so how much a batch weighs in a group, and a part
      in a batch that is split. "samples": the leading dimension of the batch's first tensor.
      "tokens": the targets that are not -100 (`batch["labels"]`, or the pair's target), as they
      stand there: where the loss leaves out more (a model that shifts its labels by one), pass
      a function. A function of the batch: a number, or a 0-d tensor, which stays on the device;
      what it gives for a batch's parts adds up. "sum": the loss is a sum: gradients add up.
    - `clip_norm`: the largest norm of the whole gradient, as in
      `torch.nn.utils.clip_grad_norm_`; never waits for the device. `math.inf` clips nothing
      and has the norms in `step.metrics()`.
    - `scheduler`: `scheduler.step()` is called after each optimizer step, but not after one that
      is known to be skipped. On an accelerator a skipped step is known too late.
    - `ema`: decay of an exponential moving average of the weights, in (0, 1): `step.ema` is a
      `torch.optim.swa_utils.AveragedModel` of the model without its wrappers.
    - `nonfinite`: what happens where the loss or a gradient is NaN or Inf. "stop": NonfiniteError;
      model and optimizer are as before that step. On an accelerator nothing is waited for:
      the error comes some steps later, and the step is left out on the device by optimizers
      that can (torch's fused ones); others have applied it. "skip": the step is left out and
      counted in `step.metrics().skipped`; this waits for the device at each step where the
      optimizer cannot skip on it. "halve": the same, and with fp16 the loss scale is halved.
      With fp16 a gradient that overflows is part of the search for the loss scale, and is
      skipped under each policy; "stop" then stops for a bad loss, or 20 skips in a row.
    - `recompute`: activation checkpointing of repeated blocks: "auto" (where memory runs out and
      it is faster than splitting, measured), True or False. A batch that does not fit is
      split and done again, with the same gradient; with several ranks it is not.
    - `logits`: "stored", or "chunked": cross entropy of a language model's head takes its 2 million
      logits or more, and their gradient, chunk by chunk and stores none. It rounds otherwise. Where
      something else reads the logits they are computed; `step.notes["logits"]` says what does.

    With precision="fp32" and compile=False (on CUDA graph=False too: a recording keeps its rates in
    float32) the step is the plain loop to the last bit: unless asked for, neither the layout nor
    the optimizer's kernel is changed then.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any] | None,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        options: problems.Options,
        choices: Choices,
    ) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.device = next(each for each in model.parameters() if each.requires_grad).device
        self._options, self._choices, self._loss_fn = options, choices, loss_fn
        self._bare = ranks.bare(model)
        self._pair = loss_fn is not None and not loss_call.takes_model(loss_fn)
        choices.begin_settings(model, self.device)
        self._layout = choices.place(model)
        self._place = None if self._layout.name == "contiguous" else self._layout.place
        self.ema = average_of(model, self._bare, options.ema)
        chosen = choices.reduce(model, self.device)
        self._scaler = chosen.scaler
        choices.fuse(optimizer)
        self._group = Group(options.accumulate, options.weigh, ranks.of(model), self.device)
        self._gradients, self._buffers = Gradients(model, optimizer), Buffers(model)
        self._fit = Fit(model, self.device, options.recompute)
        choices.undos.append(self._fit.close)
        self._compiled = choices.compiled(model, loss_call.build(model, loss_fn), self.device)
        self._passes = Passes(
            model,
            self._layout.around(self._compiled.call),
            None if chosen.autocast is None else chosen.context,
            chosen.scaler,
            self._group,
            self._gradients,
            self._buffers,
            self._fit,
        )
        self._histories = Histories(self.device)
        self._update = self._make_update()
        self._graph_note, self._calls, self._checked = "", 0, False
        self._whole = self._make_whole()

    def _make_update(self) -> Update:
        options, ranked = self._options, self._group.ranks is not None
        parts = (self.model, self.optimizer, self._gradients, self._buffers, self._histories)
        rest = (options.clip_norm, options.nonfinite, ranked)
        on_host = self.device.type == "cpu"
        if self._scaler is not None:
            self._histories.scale = self._scaler.get_scale()
            return ScaledUpdate(*parts, *rest, scaler=self._scaler, on_host=on_host)
        return HostUpdate(*parts, *rest) if on_host else DeviceUpdate(*parts, *rest)

    def _make_whole(self) -> WholeStep | None:
        """The step as one graph, where one can be made; else the reason goes to the notes."""
        asked = self._choices.graph
        if asked in (False, "no", "False"):
            self._graph_note = "no: asked for"
        elif self.device.type != "cuda":
            on = "CPU" if self.device.type == "cpu" else self.device.type
            self._graph_note = f"no: the model is on the {on}"
        elif self._options.accumulate > 1:
            self._graph_note = "no: with accumulation a step is several calls"
        elif self._group.ranks is not None:
            self._graph_note = "no: the ranks' communication is not recorded"
        elif self._scaler is not None:
            self._graph_note = "no: fp16's loss scale decides on the host which steps are taken"
        elif self._options.nonfinite != "stop" and not self._update.skips_on_device:
            self._graph_note = "no: the optimizer cannot leave out steps on the device"
        elif self._choices.compile in compiling.GRAPH_MODES:
            self._graph_note = f"no: compile={self._choices.compile!r} records graphs of its own"
        else:
            parts = (self.model, self.optimizer, self.device, self.scheduler)
            undo, self._fit.free = self._passes.undo, self._free_graph
            rest: dict[str, Any] = {"loss_fn": self._loss_fn, "average": lambda: self.ema}
            return WholeStep(self._body, *parts, undo=undo, **rest)
        return None

    def __call__(self, batch: Any) -> Tensor:
        """Forward and backward pass of this batch; every `accumulate` calls an optimizer step."""
        if not self._checked:
            return self._first(batch)
        self._calls += 1
        if self._place is not None:
            batch = self._place(batch)
        if not self._group.alone:
            loss = self._passes.grouped(batch)
            if self._group.count == self._group.every:
                self._end_group()
            return loss
        if self._whole is not None:
            done = self._whole.run(batch)
            if done is not None:
                return self._after_graph(done)
        loss = self._passes.single(batch)
        if self._whole is not None and self._passes.splits:
            self._close_graph("no: batches are split to fit into memory")
        try:
            taken = self._take(loss)
        except NonfiniteError:
            problems.check_filled(batch)  # the mean over nothing is NaN
            raise
        if taken:
            self._advance()
        return loss

    def _first(self, batch: Any) -> Tensor:
        """The first call, with a look at what it brings and does."""
        problems.check_batch(batch, self._pair)
        if not self.model.training:
            warnings.warn(
                "the model is in evaluation mode: dropout is off and BatchNorm does not learn. "
                "Call model.train() before the loop",
                stacklevel=3,
            )
        placed = batch if self._place is None else self._place(batch)
        group = self._group
        loss = self._passes.first(placed)
        self._gradients.settle(group.alone or (group.ranks is None and bool(group.weight)))
        if self._gradients.sparse:  # no fused kernel takes them
            self._choices.unfuse("some gradients are sparse")
            self._update.know_optimizer()
        self._buffers.settle()
        self._calls += 1
        self._checked = True
        if group.alone:
            if self._take(loss):
                self._advance()
        elif group.count == group.every:
            self._end_group()
        return loss

    def _take(self, loss: Tensor) -> bool:
        """The update of a step that is not replayed; its rates round as a replay's would."""
        if self._whole is None:
            return self._update.take(loss, None)
        with self._whole.as_recorded():
            return self._update.take(loss, None)

    def _end_group(self) -> bool:
        group = self._group
        loss = group.mean_loss()
        # With one batch per rank its share of all was in the loss already.
        correction: Weight | None = None
        if group.every > 1:
            correction = group.correction()
        group.clear()
        taken = self._update.take(loss, correction)
        if taken:
            self._advance()
        return taken

    def _advance(self, averaged: bool = False) -> None:
        if self.scheduler is not None:
            self.scheduler.step()
        if self.ema is not None and not averaged:
            self.ema.update_parameters(self._bare)

    def flush(self) -> bool:
        """End a group of accumulation that is short of calls; True: an optimizer step was taken.

        Call it where the data ends. The gradient is the mean over the calls there were. With
        several ranks, all call it together. Waits for the device, so that nothing bad stays unseen:
        raises NonfiniteError as a call does.
        """
        group = self._group
        pending = group.count
        if group.ranks is not None and group.every > 1:
            pending = int(group.ranks.largest(pending, self.device))
        taken = False
        if pending:
            self._passes.synchronise()
            taken = self._end_group()
        self._histories.send()
        self._update.collect(wait=True)
        return taken

    def _body(self, batch: Any) -> dict[str, Tensor]:
        """One whole step on the device, for recording."""
        loss = self._passes.recordable(batch)
        norm, parts, stepped = self._device_update().apply(loss, None)
        wide = torch.promote_types(loss.dtype, norm.dtype)  # a loss is float32 at least
        row = torch.stack([loss.to(wide), norm.to(wide)])
        if parts is not None:
            row = torch.cat([row, parts.to(wide)])
        outputs = {"loss": loss, "grad_norm": norm, "row": row}
        if not stepped:
            outputs["left out"] = row
        elif self.ema is not None and self.ema.move(self._bare):
            outputs["averaged"] = row  # as every replay of this will have done
        return outputs

    def _after_graph(self, done: dict[str, Tensor]) -> Tensor:
        """The host's part of a step that was replayed; its tensors are written to again."""
        row = done["row"].clone()
        update = self._device_update()
        update.steps += 1
        if "averaged" in done and self.ema is not None:
            self.ema.count()
        update.record([row[0], row[1]], row[2:] if len(row) > 2 else None)
        if "left out" not in done:
            self._advance(averaged="averaged" in done)
        return row[0]

    def _device_update(self) -> DeviceUpdate:
        assert isinstance(self._update, DeviceUpdate)
        return self._update

    def metrics(self) -> Metrics:
        """What was counted and measured so far; never waits for the device."""
        histories = self._histories
        histories.send()
        self._update.look()
        return Metrics(
            steps=self._update.steps,
            calls=self._calls,
            skipped=self._update.skipped,
            splits=self._passes.splits,
            loss_scale=histories.scale,
            arrived=histories.arrived,
            losses=tuple(histories.losses),
            grad_norms=tuple(histories.norms),
        )

    @property
    def pending(self) -> int:
        """Calls since the last optimizer step: above 0 within a group of accumulation."""
        return self._group.count

    @property
    def notes(self) -> dict[str, str]:
        """What was chosen and why, and how it went so far: {"precision": "bf16: native", ...}."""
        graph = self._graph_note if self._whole is None else self._whole.note
        return {
            **self._choices.notes,
            "layout": self._layout.note(),
            "compile": self._compiled.note(),
            "logits": self._choices.logits_note(),
            "graph": graph,
            "memory": self._fit.note,
            "nonfinite": self._update.note(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, but random states and the loader's place."""
        return step_state.of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        step_state.into(self, state)

    def close(self) -> None:
        """Give back what was set for the process, the model and the optimizer."""
        self._close_graph("no: closed")
        self._choices.undo()
        self._fit.close()  # once more: a step that goes on after close() begins anew

    def _free_graph(self) -> bool:
        """Where memory ran out beside recordings, they go, rather than that batches are split."""
        if self._whole is None or not self._whole.holds_memory:
            return False
        self._close_graph("no: a step of another kind did not fit into memory beside the recorded")
        return True

    def _close_graph(self, reason: str) -> None:
        if self._whole is not None:
            self._whole.close()
            self._whole, self._graph_note = None, reason
