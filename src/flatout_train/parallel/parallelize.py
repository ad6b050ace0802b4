"""`flatout.parallelize`: one model on several devices, with a strategy that fits into
their memory.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from flatout_agent.parallelism import Devices, Need, Strategy
from flatout_train import devices
from flatout_train.errors import UsageError
from flatout_train.parallel import choosing, ownership, sharding, tensor_plans
from flatout_train.parallel.result import Parallel
from flatout_train.parallel.tensor_plans import TensorPlan
from flatout_train.step.recomputation import recompute

Plan = Literal[
    "auto", "dp", "dp+recompute", "fsdp", "fsdp+recompute", "hsdp", "hsdp+recompute", "tp", "pp"
]


def parallelize(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    plan: Plan = "auto",
    sample: Any = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    memory: int | None = None,
    tensor_plan: TensorPlan | None = None,
    micro_batches: int | None = None,
    methods: Sequence[str] = (),
) -> Parallel:
    """Train `model` on all ranks of this job, with the first strategy that fits into the devices'
    memory.

        parallel = flatout.parallelize(model, optimizer, sample=batch, loss=loss_function)

    Start it with `torchrun --nproc-per-node 8 train.py`; each rank gets its own rows (`data_rank`).

    Args:
        model: on any device, the same on all ranks; rank 0's weights count.
        optimizer: made from the model's parameters, before its first step.
        plan: "auto" tries "dp", "dp+recompute", "fsdp" (across nodes "hsdp"), the same with
            recomputation, "tp" within a node; "pp" must be asked for.
        sample: one rank's batch, for "auto" and "pp": the inputs, or with `loss` (inputs, targets).
        loss: of the output and the targets, or None for the output's `loss`, or the mean.
        memory: bytes of each device, or None for what it has.
        tensor_plan: for "tp": DTensor's styles by module name, or None for Transformers' own.
        micro_batches: for "pp"; None for as many as ranks.
        methods: methods other than `forward` through which FSDP2's model is called.

    Returns: a Parallel: `model` to call, `plan`, `why` with the numbers, `full_state` to save.

    Raises UsageError if nothing fits, or the model or optimizer cannot be divided that way.
    """
    device = devices.device()
    _join(device)
    if plan == "pp":
        return _pipelined(model, optimizer, sample, loss, device, micro_batches)
    tensor_plan = tensor_plan or tensor_plans.plan_of(model)
    return _divided(model, optimizer, plan, (sample, loss, memory), device, tensor_plan, methods)


def _divided(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    plan: Plan,
    estimate: tuple[Any, Callable[..., Tensor] | None, int | None],
    device: torch.device,
    tensor_plan: TensorPlan | None,
    methods: Sequence[str],
) -> Parallel:
    """Everything but a pipeline. estimate: sample, loss and bytes of each device."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    sample, loss, memory = estimate
    needs: tuple[Need, ...] = ()
    if plan == "auto":
        places = _devices(device, ranks, memory)
        chosen, needs = choosing.choose(model, optimizer, sample, loss, places, bool(tensor_plan))
        why = choosing.why(chosen, needs)
    else:
        chosen, why = _named(plan), f"{plan}: asked for"
    _check_plan(chosen, ranks, tensor_plan)
    if optimizer is not None:
        moves = ranks > 1 and chosen not in (Strategy.DP, Strategy.DP_RECOMPUTE)
        ownership.check(optimizer, model, moves)
    names = ownership.names_of(model)
    if chosen.recomputes:
        recompute(model)
    whole, mesh = _apply(model, optimizer, chosen, device, ranks, tensor_plan, methods)
    if optimizer is not None and whole is model and ranks > 1:
        ownership.point(optimizer, names, model)
    return Parallel(whole, optimizer, chosen.value, why, needs, mesh)


def _apply(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    strategy: Strategy,
    device: torch.device,
    ranks: int,
    tensor_plan: TensorPlan | None,
    methods: Sequence[str],
) -> tuple[nn.Module, DeviceMesh | None]:
    """Apply the strategy; returns the model to call, and the mesh of the ranks."""
    if ranks == 1:
        return model.to(device), None
    if strategy in (Strategy.DP, Strategy.DP_RECOMPUTE):
        return sharding.replicate(model, device), None
    sharding.send_from_first(model, device)
    nodes, per_node = _nodes(ranks)
    if strategy is Strategy.TP:
        assert tensor_plan is not None
        mesh = init_device_mesh(device.type, (nodes, per_node), mesh_dim_names=("data", "tensor"))
        tensor_plans.divide(model, mesh["tensor"], tensor_plan)
        if nodes > 1:
            sharding.shard(model, mesh["data"], methods)
        model.to(device)
        if optimizer is not None:
            tensor_plans.separately(optimizer)
        return model, mesh
    if strategy in (Strategy.HSDP, Strategy.HSDP_RECOMPUTE):
        shape, names = (nodes, per_node), ("replicate", "shard")
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    else:
        mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("shard",))
    sharding.shard(model, mesh, methods)
    model.to(device)
    return model, mesh


def _pipelined(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    loss: Callable[..., Tensor] | None,
    device: torch.device,
    micro_batches: int | None,
) -> Parallel:
    if sample is None or loss is None:
        raise UsageError('plan="pp" needs sample=(inputs, targets) and loss=')
    if not dist.is_initialized() or dist.get_world_size() == 1:
        raise UsageError('plan="pp" needs several ranks: torchrun --nproc-per-node 2 train.py')
    from flatout_train.parallel.pipelining import ModelPipeline

    if optimizer is not None:
        ownership.check(optimizer, model, moves=True)
    if tied := ownership.shared(model):
        names = " and ".join(next(iter(tied.values())))
        raise UsageError(
            f"{names} are one parameter, which two stages of a pipeline cannot share: untie them, "
            'or pass plan="fsdp"'
        )
    sharding.send_from_first(model, device)
    names_before = ownership.names_of(model)
    pipe = ModelPipeline(model, sample, loss, device, micro_batches)
    if optimizer is not None:
        ownership.point(optimizer, names_before, pipe.module)
    why = f"pp: asked for; {dist.get_world_size()} stages, {pipe.micro_batches} micro-batches"
    return Parallel(pipe.module, optimizer, "pp", why, (), None, pipe.step)


def _join(device: torch.device) -> None:
    """Join the other ranks, if a launcher started several and the program has not joined yet."""
    if not dist.is_available() or dist.is_initialized():
        return
    if int(os.environ.get("WORLD_SIZE", "1") or 1) < 2:
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    else:
        dist.init_process_group("gloo" if device.type == "cpu" else None)
        atexit.register(_leave)


def _leave() -> None:
    """Release the groups; otherwise gloo's threads sometimes abort the process once the interpreter
    is gone (https://github.com/pytorch/pytorch/issues/190489).
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _named(plan: str) -> Strategy:
    try:
        return Strategy(plan)
    except ValueError:
        words = ", ".join(["auto", *(strategy.value for strategy in Strategy)])
        raise UsageError(f"plan={plan!r}: pass one of {words}") from None


def _nodes(ranks: int) -> tuple[int, int]:
    """The number of nodes, and of ranks in each, from torchrun's variables."""
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "0") or 0) or ranks
    return (ranks // per_node, per_node) if ranks % per_node == 0 else (1, ranks)


def _check_plan(strategy: Strategy, ranks: int, tensor_plan: TensorPlan | None) -> None:
    if strategy is Strategy.TP and not tensor_plan:
        raise UsageError(
            'plan="tp" needs to know which modules to divide: pass tensor_plan={"layers.*.up": '
            'ColwiseParallel(), "layers.*.down": RowwiseParallel()}'
        )
    hybrid = strategy in (Strategy.HSDP, Strategy.HSDP_RECOMPUTE)
    if hybrid and ranks > 1 and 1 in _nodes(ranks):
        raise UsageError(
            f'plan="{strategy.value}" shards within each node and needs several nodes of several '
            f'ranks each: pass plan="{strategy.value[1:]}"'
        )


def _devices(device: torch.device, ranks: int, memory: int | None) -> Devices:
    """The ranks' devices, assuming the least memory of any for all."""
    nodes, per_node = _nodes(ranks)
    size = memory if memory is not None else choosing.memory_of(device, per_node)
    if ranks > 1:
        least = torch.tensor(size, dtype=torch.int64, device=device)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        size = int(least.item())
    return Devices(per_node, size, nodes)
