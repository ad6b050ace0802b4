"""The choice of strategy: the first whose estimate fits, reported with the numbers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from flatout_agent import parallelism
from flatout_agent.parallelism import Devices, MemorySeen, Need, Strategy
from flatout_agent.speedups import nests
from flatout_agent.speedups.step_memory import StepMemory
from flatout_agent.speedups.tensor_bytes import TensorBytes
from flatout_train.errors import UsageError
from flatout_train.memory import counters
from flatout_train.sizes import size
from flatout_train.step.splitting import batch_size, split

LossCall = Callable[..., Tensor]
_TWIN = (64, 64)
"""Shape of the parameters with which an optimizer is tried."""
_TWINS = 16


class _Outputs(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Passes the output of every operator to the accounts."""

    def __init__(self, tensors: TensorBytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._tensors = tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in nests.tensors(output):
            self._tensors.see(tensor)
        return output


def choose(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    loss: Callable[..., Tensor] | None,
    places: Devices,
    divisible: bool,
) -> tuple[Strategy, tuple[Need, ...]]:
    """The first strategy that fits, the same on all ranks, and the needs of each.

    divisible: whether the matrix products of the model's blocks can be divided.
    """
    if sample is None:
        raise UsageError(
            'plan="auto" estimates the memory of a step: pass sample=, one rank\'s batch, or name '
            'the strategy: plan="fsdp"'
        )
    seen = estimate(model, optimizer, sample, loss, places.count)
    tried = [
        strategy
        for strategy in parallelism.strategies(seen, places)
        if divisible or strategy is not Strategy.TP
    ]
    needs = tuple(parallelism.need(seen, places, strategy) for strategy in tried)
    chosen = parallelism.choice([need for need in needs if need.strategy is not Strategy.PP])
    if dist.is_initialized() and places.count > 1:  # samples may differ between the ranks
        found = [chosen.strategy.value if chosen is not None else None]
        dist.broadcast_object_list(found, src=0)
        chosen = next((need for need in needs if need.strategy.value == found[0]), None)
    if chosen is None:
        raise UsageError(_too_large(needs))
    return chosen.strategy, needs


def why(strategy: Strategy, needs: tuple[Need, ...]) -> str:
    """One line for each strategy up to the one that fits, with the memory it needs on
    each device.
    """
    lines = []
    for need in needs:
        lines.append(_told(need))
        if need.strategy is strategy:
            break
    return "\n".join(lines)


def memory_of(device: torch.device, processes: int) -> int:
    """Bytes that one process may use: the device's, or on the CPU its part of the
    available memory.
    """
    found = counters.read(device)
    if device.type != "cpu":
        if found.total is None:
            raise UsageError(f"the memory of {device} is not known: pass memory= in bytes")
        return found.total
    available = found.free if found.free is not None else found.total
    if available is None:
        raise UsageError("the available memory is not known here: pass memory= in bytes")
    return available // processes


def _told(need: Need) -> str:
    parts = (
        f"weights {size(need.parameters)}",
        f"gradients {size(need.gradients)}",
        f"optimizer state {size(need.state)}",
        f"activations {size(need.activations)}",
    )
    verdict = "fits into" if need.fits else "does not fit into"
    return (
        f"{need.strategy.value} {verdict} {size(need.memory_bytes)}: at most {size(need.peak)} at "
        f"once, and a margin of {size(need.margin)} ({', '.join(parts)})"
    )


def _too_large(needs: tuple[Need, ...]) -> str:
    told = "\n  ".join(map(_told, needs))
    cure = "use smaller batches or more devices"
    if any(need.strategy is Strategy.PP and need.fits for need in needs):
        cure = 'a pipeline would fit: plan="pp", whose step runs forward and backward by itself'
    return f"no strategy fits into the devices' memory: {cure}\n  {told}"


def estimate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    sample: Any,
    loss: LossCall | None,
    copies: int = 1,
) -> MemorySeen:
    """A step on `sample`, the batch of one device of `copies`, and on half of it.

    Raises UsageError if the model cannot be run on fake tensors, for example because its shapes
    depend on values.
    """
    rows = batch_size(sample)
    batches = [sample]
    if rows >= 2:
        half = split(sample, 2)[0]  # a view would count as the whole
        batches = [nests.change(half, torch.clone), sample]
    device = next(model.parameters()).device.type
    training = [(module, module.training) for module in model.modules()]
    memory = StepMemory(device)
    try:
        model.train()
        _run(model, memory, batches, loss)
    except Exception as error:
        raise UsageError(
            f"the memory of {type(model).__name__} cannot be estimated on this sample: "
            f"{type(error).__name__}: {error}. Check that it can be called with `sample`, or name "
            'the strategy: plan="fsdp"'
        ) from error
    finally:
        memory.close()
        for module, was_training in training:
            module.training = was_training
    seen = memory.seen([] if optimizer is None else [optimizer], rows * copies)
    return _with_optimizer(seen, optimizer, device)


def loss_of(model_call: Callable[..., Any], batch: Any, loss: LossCall | None) -> Tensor:
    """The loss of a batch: `(inputs, targets)` with a loss function, else the model's inputs."""
    inputs, targets = batch if loss is not None else (batch, None)
    if isinstance(inputs, dict):
        output = model_call((), inputs)
    else:
        output = model_call(inputs if isinstance(inputs, tuple) else (inputs,), {})
    if loss is not None:
        return loss(output, targets)
    found = getattr(output, "loss", None)
    if isinstance(found, Tensor):
        return found
    outputs = [tensor for tensor in nests.tensors(output) if tensor.requires_grad]
    return torch.stack([tensor.float().mean() for tensor in outputs]).sum()


def _run(model: nn.Module, memory: StepMemory, batches: list[Any], loss: LossCall | None) -> None:
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    known: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = fakes.from_tensor(tensor)
        return known[id(tensor)]

    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = {name: fake(tensor) for name, tensor in named}
    memory.add_model(model, tensors.items())
    for batch in batches:
        moved = nests.change(batch, fake)

        def call(args: Any, kwargs: Any) -> Any:
            return functional_call(model, tensors, args, kwargs)

        with fakes, _Outputs(memory.tensors):
            for tensor in nests.tensors(moved):
                memory.tensors.see(tensor)
            memory.begin(batch_size(batch))
            memory.call()
            loss_of(call, moved, loss).backward()  # type: ignore[no-untyped-call]  # torch's own
            memory.update_begins()
        memory.end()
        for tensor in tensors.values():
            tensor.grad = None


def _with_optimizer(
    seen: MemorySeen, optimizer: torch.optim.Optimizer | None, device: str
) -> MemorySeen:
    """The same with the optimizer's state and the memory of its step, scaled from
    small parameters.
    """
    if optimizer is None:
        return seen
    groups = optimizer.param_groups
    largest = max((p.nbytes for group in groups for p in group["params"]), default=0)
    state, update, together = _of_optimizer(optimizer, device)
    trained = seen.gradients_bytes
    update_bytes = round(update * (trained if together else min(largest, trained)))
    points = [dataclasses.replace(point, update_bytes=update_bytes) for point in seen.points]
    return dataclasses.replace(seen, state_bytes=round(state * trained), points=tuple(points))


def _of_optimizer(optimizer: torch.optim.Optimizer, device: str) -> tuple[float, float, bool]:
    """State and temporaries in bytes for each byte of parameters, and whether the step takes
    temporaries for all parameters at once.
    """
    twin = copy.copy(optimizer)
    twin.__dict__ = dict(vars(optimizer))
    params = [nn.Parameter(torch.zeros(_TWIN)) for _ in range(_TWINS)]
    group = {**optimizer.param_groups[0], "params": params, "capturable": False}
    if device in ("cuda", "xpu") and group.get("foreach") is None and not group.get("fused"):
        group["foreach"] = True  # torch's own choice there
    twin.param_groups, twin.state = [group], type(optimizer.state)(dict)
    books = TensorBytes("cpu")
    gradients = [torch.zeros_like(parameter) for parameter in params]
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = gradient
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, name, type(getattr(optimizer, name))())
    step = type(optimizer).step  # a scheduler may have put another into the instance
    try:
        step(twin)  # creates its state
        for held in (*params, *gradients, *_held(twin)):
            books.see(held, "state")
        with _Outputs(books):
            step(twin)
    except (RuntimeError, TypeError, AttributeError):  # it asks for a closure, or for more
        return 2.0, 1.0, True
    sizes = [value.nbytes for value in _held(twin) if value.numel() > 1]
    whole = sum(parameter.nbytes for parameter in params)
    together = books.transient_peak > whole / 2
    update = books.transient_peak / (whole if together else whole / _TWINS)
    return sum(sizes) / whole, update, together


def _held(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors of its state."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in values if isinstance(value, Tensor)]
