"""What `flatout.parallelize` returns: the model on all ranks, and its state as one process's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from flatout_agent.parallelism import Need
from flatout_train.errors import UsageError


class Parallel:
    """A model that is trained by all ranks of the job.

    Call `model` instead of the original, with this rank's rows of the batch; `optimizer` is the one
    that was passed. `plan` is the strategy in use, `why` says how it was chosen, with bytes for
    each part. `needs` has these as numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        plan: str,
        why: str,
        needs: tuple[Need, ...],
        mesh: DeviceMesh | None,
        step: Callable[[Any, Any], Tensor] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.why = why
        self.needs = needs
        self.mesh = mesh
        self._step = step

    @property
    def data_ranks(self) -> int:
        """How many parts a batch is divided into: `num_replicas` of a DistributedSampler."""
        if self.plan == "pp" or not dist.is_initialized():
            return 1
        data = self._data
        return data.size() if data is not None else dist.get_world_size()

    @property
    def data_rank(self) -> int:
        """Which of them is this rank's: `rank` of a DistributedSampler."""
        if self.data_ranks == 1:
            return 0
        data = self._data
        return data.get_local_rank() if data is not None else dist.get_rank()

    def step(self, inputs: Any, targets: Any) -> Tensor:
        """A pipeline's forward and backward of a whole batch; returns the loss, on all ranks.

        `optimizer.step()` and `zero_grad()` are called as usual. Raises UsageError for other plans,
        whose forward and backward are yours.
        """
        if self._step is None:
            raise UsageError(
                f"plan {self.plan} leaves forward and backward to you: call `model` and "
                "`loss.backward()`"
            )
        return self._step(inputs, targets)

    def full_state(self) -> dict[str, Any]:
        """The state of model and optimizer as one process would have it, on the CPU of rank 0.

        `{"model": ..., "optimizer": ...}`; empty on the other ranks. All ranks call it together.
        """
        if self._step is not None:
            return _gathered(self.model)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        if self.optimizer is None:
            model = get_model_state_dict(self.model, options=options)
            return {"model": model} if model else {}
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        return {"model": model, "optimizer": optimizer} if model else {}

    def load_full_state(self, state: dict[str, Any]) -> None:
        """Load the result of `full_state`, or only {"model": state_dict} of one process.

        All ranks call it together; rank 0's argument counts, the others may pass {}.
        """
        if self._step is not None:
            _scattered(self.model, state)
            return
        sharded = self.mesh is not None
        if not sharded:  # each rank has room for all of it
            state = _from_first(state)
        with_optimizer = _from_first(bool(state.get("optimizer")))
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=sharded)
        set_model_state_dict(self.model, dict(state.get("model", {})), options=options)
        if with_optimizer and self.optimizer is not None:
            set_optimizer_state_dict(
                self.model, self.optimizer, dict(state.get("optimizer", {})), options=options
            )

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clip the gradients by their norm over all ranks, whatever the plan; returns that norm."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        squares = [_whole(torch.linalg.vector_norm(gradient)) ** 2 for gradient in gradients]
        total = torch.stack(squares).sum()
        if self._step is not None:
            dist.all_reduce(total)
        norm = total.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(factor)
        return norm

    @property
    def _data(self) -> DeviceMesh | None:
        """The ranks that have different rows, if those of a node have the same."""
        return self.mesh["data"] if self.plan == "tp" and self.mesh is not None else None


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _from_first(value: Any) -> Any:
    """Rank 0's value, on all ranks."""
    if not dist.is_initialized():
        return value
    sent = [value]
    dist.broadcast_object_list(sent, src=0)
    return sent[0]


def _gathered(stage: nn.Module) -> dict[str, Any]:
    """The states of all stages together, on rank 0."""
    own = {name: tensor.cpu() for name, tensor in stage.state_dict().items()}
    parts: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(own, parts if dist.get_rank() == 0 else None)
    if dist.get_rank() != 0:
        return {}
    return {"model": {name: tensor for part in parts for name, tensor in part.items()}}


def _scattered(stage: nn.Module, state: dict[str, Any]) -> None:
    whole = _from_first(state.get("model")) or {}
    stage.load_state_dict({name: whole[name] for name in stage.state_dict()})
