"""The whole training step in one call: forward, backward, clipping, optimizer, scheduler, EMA.

Everything is decided when the step is built or on its first call. After that a call does only what
the same loop written by hand does, and reads nothing back from an accelerator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout_train.checkpoint.tracked import unwrapped
from flatout_train.errors import NonfiniteError
from flatout_train.step import loss_call, problems, ranks, step_state
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
) -> TrainStep:
    """The whole training step of `model` as one function of a batch.

    Build it once, `step = flatout.train_step(model, nn.CrossEntropyLoss(), optimizer,
    clip_norm=1.0)`; then `loss = step(batch)` for each batch is the whole loop. TrainStep documents
    the arguments.

    Raises UsageError here or on the first call: it names what is wrong (the parameter, the tensor
    with its shape) and how to fix it. An error of torch has a note with the shapes, dtypes and
    devices of batch and model; `flatout.explain()` has its cure.
    """
    problems.check_kinds(model, loss_fn, optimizer, scheduler)
    options = problems.Options(accumulate, weigh, clip_norm, ema, nonfinite, graph, recompute)
    problems.check_parameters(model, loss_fn, optimizer)
    choices = Choices(precision, compile, layout, graph)
    try:
        choices.follow(plan)
        return TrainStep(model, loss_fn, optimizer, scheduler, options, choices)
    except BaseException:
        choices.undo()
        raise


class TrainStep:
    """One training step: `loss = step(batch)`. Built by `flatout.train_step`.

    The returned loss is 0-d, detached, float32 (float64 if the loss function returns float64), on
    the model's device, and not synchronised: call `.item()` on it rarely, or read all losses with
    `step.metrics()`. Gradients stay in `.grad` until the next step. Everything is chosen once;
    `step.notes` says what was chosen and why.

    Arguments of `train_step`:

    - `model`: a module on its device, in training mode; also inside DistributedDataParallel, or
      sharded with `fully_shard` (FSDP2).
    - `loss_fn`: one of three forms, distinguished by the signature. A function whose first
      parameter is called `model`: `loss_fn(model, batch)`. Any other callable, such as
      `nn.CrossEntropyLoss()`: `loss_fn(model(input), target)`, for batches that are pairs.
      If it is None, `model(**batch)` returns an object or dict with `loss` (Hugging Face). The loss
      is 0-d, and the mean over what `weigh` counts.
    - `optimizer`: a torch.optim.Optimizer that holds all trainable parameters of the model. Not
      LBFGS.
    - `plan`: path of a flatout.toml; it decides whatever is left at "auto" here.
    - `precision`: "auto", "bf16" (autocast), "fp16" (autocast with loss scaling), "tf32" or
      "fp32".
    - `compile`: "auto"; True or "whole" (model and loss as one graph); "blocks" (repeated blocks,
      and the loss: shorter start-up); "tuned" ("auto" with autotuned kernels: longest start-up);
      or False.
    - `layout`: memory format of images: "auto", "channels_last" or "contiguous".
    - `graph`: the whole step as one CUDA graph: "auto", True or False. If it cannot be captured,
      the step runs without, and `step.notes["graph"]` says why. Plain values that model and
      loss read (a factor, a dropout's `p`) may change: a new graph is captured then.
    - `accumulate`: calls per optimizer step, 1 or more (gradient accumulation). The gradient is
      exactly that of all their batches together: the sum of weight times gradient, divided by
      the sum of weights, over all ranks. Gradients are communicated only in the last call.
      `step.flush()` ends an incomplete group. The group's batches stay in memory until then.
    - `weigh`: what the loss is averaged over, and so how much a batch weighs in a group, and a part
      in a batch that is split. "samples": the leading dimension of the batch's first tensor.
      "tokens": the targets that are not -100 (`batch["labels"]`, or the pair's target), counted
      as they are: where the loss ignores more (a model that shifts its labels by one), pass
      a function. A function of the batch returns a number, or a 0-d tensor, which stays on the
      device; its values for the parts of a batch must add up. "sum": the loss is a sum, and
      gradients add up.
    - `clip_norm`: maximum L2 norm of the whole gradient, as in
      `torch.nn.utils.clip_grad_norm_`; never waits for the device. `math.inf` clips nothing
      but records the norms in `step.metrics()`.
    - `scheduler`: `scheduler.step()` is called after each optimizer step, but not after a step
      that is known to be skipped. On an accelerator a skipped step is known too late.
    - `ema`: decay of an exponential moving average of the weights, in (0, 1): `step.ema` is a
      `torch.optim.swa_utils.AveragedModel` of the model without its wrappers.
    - `nonfinite`: what happens if the loss or a gradient is NaN or Inf. "stop": raises
      NonfiniteError; model and optimizer are as before that step. On an accelerator nothing waits:
      the error is raised some steps later; optimizers that can (torch's fused ones) skip the
      step on the device, others have applied it. "skip": the step is skipped and
      counted in `step.metrics().skipped`; this waits for the device at each step if the optimizer
      cannot skip on the device. With fp16, overflowing gradients are part of the search for the
      loss scale and are skipped under both policies, and the scale is halved; "stop" then stops for
      a loss that is not finite, or after 20 skipped steps in a row.
    - `recompute`: activation checkpointing of repeated blocks: "auto" (once not even one sample
      fits), True or False. A batch that does not fit is split and repeated, with the same
      gradient; with several ranks it is not.

    With precision="fp32" and compile=False (on CUDA also graph=False: a recorded step keeps its
    learning rates in float32) the step is bit-identical to the plain loop: neither the memory
    layout nor the optimizer's kernel changes then unless you request it.
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
        self.device = next(p for p in model.parameters() if p.requires_grad).device
        self._options, self._choices, self._loss_fn = options, choices, loss_fn
        self._bare: nn.Module = unwrapped(model)
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
        self._graph_step = self._make_graph_step()

    def _make_update(self) -> Update:
        options, ranked = self._options, self._group.ranks is not None
        parts = (self.model, self.optimizer, self._gradients, self._buffers, self._histories)
        rest = (options.clip_norm, options.nonfinite, ranked)
        on_host = self.device.type == "cpu"
        if self._scaler is not None:
            self._histories.scale = self._scaler.get_scale()
            return ScaledUpdate(*parts, *rest, scaler=self._scaler, on_host=on_host)
        return HostUpdate(*parts, *rest) if on_host else DeviceUpdate(*parts, *rest)

    def _make_graph_step(self) -> WholeStep | None:
        """The step as one graph if it can be captured, else None, with the reason noted."""
        choice = self._choices.graph
        if choice is False:
            self._graph_note = "no: requested"
        elif self.device.type != "cuda":
            on = "CPU" if self.device.type == "cpu" else self.device.type
            self._graph_note = f"no: the model is on the {on}"
        elif self._options.accumulate > 1:
            self._graph_note = "no: with accumulation a step is several calls"
        elif self._group.ranks is not None:
            self._graph_note = "no: the ranks' communication is not recorded"
        elif self._scaler is not None:
            self._graph_note = "no: fp16's loss scaler decides on the host which steps are taken"
        elif self._options.nonfinite != "stop" and not self._update.skips_on_device:
            self._graph_note = "no: the optimizer cannot skip steps on the device"
        else:
            parts = (self.model, self.optimizer, self.device, self.scheduler)
            undo, self._fit.free = self._passes.undo, self._free_graph
            return WholeStep(self._body, *parts, loss_fn=self._loss_fn, undo=undo)
        return None

    def __call__(self, batch: Any) -> Tensor:
        """Forward and backward pass of this batch; an optimizer step every `accumulate` calls.

        Returns the batch's loss: 0-d, detached, on the model's device.
        """
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
        if self._graph_step is not None:
            outputs = self._graph_step.run(batch)
            if outputs is not None:
                return self._after_graph(outputs)
        loss = self._passes.single(batch)
        if self._graph_step is not None and self._passes.splits:
            self._close_graph("no: batches are split to fit into memory")
        try:
            taken = self._take(loss)
        except NonfiniteError:
            problems.check_filled(batch)  # the mean of an empty batch is NaN
            raise
        self._advance(taken)
        return loss

    def _first(self, batch: Any) -> Tensor:
        """The first call, which also checks the batch and what the passes did."""
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
            self._advance(self._take(loss))
        elif group.count == group.every:
            self._end_group()
        return loss

    def _take(self, loss: Tensor) -> bool:
        """The update of an eager step; its learning rates round as in a replay."""
        if self._graph_step is None:
            return self._update.take(loss, None)
        with self._graph_step.as_recorded():
            return self._update.take(loss, None)

    def _end_group(self) -> bool:
        group = self._group
        loss = group.mean_loss()
        # With one batch per rank, the loss was scaled by the rank's share already.
        correction: Weight | None = None
        if group.every > 1:
            correction = group.correction()
        group.clear()
        taken = self._update.take(loss, correction)
        self._advance(taken)
        return taken

    def _advance(self, taken: bool) -> None:
        """The actions after a step."""
        if taken and self.scheduler is not None:
            self.scheduler.step()
        if taken and self.ema is not None:
            self.ema.update_parameters(self._bare)

    def flush(self) -> bool:
        """End an incomplete accumulation group; returns True if an optimizer step was taken.

        Call it when the data ends. The gradient is the mean over the calls made so far. With
        several ranks, all must call it together. Waits for the device, so that no loss or gradient
        that is not finite goes unnoticed: raises NonfiniteError as a call does.
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
        return outputs

    def _after_graph(self, outputs: dict[str, Tensor]) -> Tensor:
        """The host's part of a replayed step; the next replay overwrites its tensors."""
        row = outputs["row"].clone()
        update = self._device_update()
        update.steps += 1
        update.record([row[0], row[1]], row[2:] if len(row) > 2 else None)
        self._advance("left out" not in outputs)
        return row[0]

    def _device_update(self) -> DeviceUpdate:
        assert isinstance(self._update, DeviceUpdate)
        return self._update

    def metrics(self) -> Metrics:
        """Counters, losses and gradient norms so far; never waits for the device."""
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
        """Calls since the last optimizer step: above 0 within an accumulation group."""
        return self._group.count

    @property
    def notes(self) -> dict[str, str]:
        """What was chosen and why, and its state so far: {"precision": "bf16: native", ...}."""
        graph = self._graph_note if self._graph_step is None else self._graph_step.note
        return {
            **self._choices.notes,
            "layout": self._layout.note(),
            "compile": self._compiled.note(),
            "graph": graph,
            "memory": self._fit.note,
            "nonfinite": self._update.note(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on, except random states and the loader's position."""
        return step_state.of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`, which `state_dict()` of a train_step returned.

        Raises UsageError if it does not match this step.
        """
        step_state.into(self, state)

    def close(self) -> None:
        """Restore every setting of the process, the model and the optimizer that was changed."""
        self._close_graph("no: closed")
        self._choices.undo()
        self._fit.close()  # once more: a step that is called after close() starts afresh

    def _free_graph(self) -> bool:
        """Free the recordings if memory runs out, before any batch is split."""
        if self._graph_step is None or not self._graph_step.holds_memory:
            return False
        self._close_graph("no: an eager step did not fit into memory beside the recorded ones")
        return True

    def _close_graph(self, reason: str) -> None:
        if self._graph_step is not None:
            self._graph_step.close()
            self._graph_step, self._graph_note = None, reason
