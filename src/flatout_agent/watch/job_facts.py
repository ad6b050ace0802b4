"""Gather JobFacts: what the host needs to know about the program to decide which boosts to try."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import statistics
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.chain import compiled_by_user
from flatout_agent.limits import usable_cores, world_size
from flatout_agent.speedups import compute_threads, padding
from flatout_agent.speedups.precision import bf16_inside_float32, matmul_precision, native_bf16
from flatout_agent.speedups.repeated_blocks import shared_blocks
from flatout_agent.speedups.samples import batch_reads
from flatout_agent.speedups.workers import worker_safety
from flatout_agent.speedups.workers.main_guard import main_guard
from flatout_agent.watch.unscaled import UnscaledLosses

MAX_SHAPES = 16
USUAL = 0.9
"""A shape with this share of the calls is told as the only one: the last batch of an epoch is often
smaller, and that should not rule out what is made for one shape."""
PADDING_LOOKS = 4
"""Batches whose padding is looked at: on an accelerator each look waits for it."""


class JobNotes:
    """Collects facts while the untouched program trains; `facts()` returns them together."""

    def __init__(self) -> None:
        self.loaders: list[wire.LoaderFacts] = []
        self.models: list[wire.ModelFacts] = []
        self.frozen: list[wire.ModelFacts] = []
        self.optimizers: list[wire.OptimizerFacts] = []
        self.shapes: dict[int, Counter[str]] = {}
        """Calls of each root model by the shape of their input, of the first `MAX_SHAPES` shapes.
        """
        self.calls: Counter[int] = Counter()
        """All calls of each root model."""
        self.padded: dict[int, list[float]] = {}
        self.random_forward: set[int] = set()
        self.device: torch.device | None = None
        """Where the first model's parameters are."""
        self.on_cuda = False
        self.autocast: str | None = None
        self.losses = UnscaledLosses()
        self.by_hand = False
        self.eval_with_grad = False
        self.close = self.losses.close
        """Stop collecting: torch is restored."""

    def loader(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        """Before any boost touches it."""
        self.loaders.append(loader_facts(loader))

    def model(self, model: torch.nn.Module) -> None:
        """Before any boost touches it."""
        self.models.append(model_facts(model))
        self.device = self.device or next(iter(model.parameters())).device
        device = self.models[-1].device
        self.on_cuda = self.on_cuda or device == "cuda"
        if torch.is_autocast_enabled(device):
            self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    def capturing(self) -> bool:
        """Whether the script records a CUDA graph of its own now.

        Whatever is done on the device would be recorded with it, and to wait for the device or to
        read its random state is an error.
        """
        return self.on_cuda and torch.cuda.is_current_stream_capturing()

    def frozen_model(self, model: torch.nn.Module) -> None:
        """A model that each step calls and does not train."""
        self.frozen.append(model_facts(model))

    def first_call(self, number: int, call: Callable[[], Any]) -> Any:
        """Make one of the first calls of root model `number`, and record whether it draws random
        numbers.
        """
        if number in self.random_forward:
            return call()
        before = self._random_states(number)
        output = call()
        after = self._random_states(number)
        if not all(map(torch.equal, before, after)):
            self.random_forward.add(number)
        return output

    def _random_states(self, number: int) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if self.models[number].device == "cuda":
            states += torch.cuda.get_rng_state_all()
        return states

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """After its first step, under the script's own settings when no boost is on."""
        self.optimizers.append(optimizer_facts(optimizer))

    def inputs(self, model: int, shape: tuple[int, ...]) -> None:
        """Record the shape of the first tensor given to root model number `model`."""
        shapes, name = self.shapes.setdefault(model, Counter()), "x".join(map(str, shape))
        self.calls[model] += 1
        if name in shapes or len(shapes) < MAX_SHAPES:
            shapes[name] += 1

    def _input_shapes(self, model: int) -> tuple[str, ...]:
        shapes = self.shapes.get(model, Counter())
        usual = [name for name, calls in shapes.items() if calls >= USUAL * self.calls[model]]
        return tuple(usual or shapes)

    def padding(self, model: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record how much of the first inputs of root model number `model` is padding."""
        padded = self.padded.setdefault(model, [])
        if len(padded) < PADDING_LOOKS:
            padded.append(padding.padded(args, kwargs))

    def facts(
        self,
        micro_steps: float,
        step_s: float | None,
        wait_share: float | None,
        shares: dict[str, float] | None = None,
        operations: int = 0,
        idle_share: float | None = None,
        noise: float | None = None,
        workers_share: float | None = None,
    ) -> wire.JobFacts:
        """Everything seen so far."""
        models = tuple(
            dataclasses.replace(
                model,
                input_shapes=self._input_shapes(index),
                random_forward=index in self.random_forward,
                padded=statistics.fmean(self.padded.get(index) or [0.0]),
            )
            for index, model in enumerate(self.models)
        )
        device = self.device or torch.device("cpu")
        return wire.JobFacts(
            **machine_facts(device),
            device=device.type,
            loaders=tuple(self.loaders),
            models=models,
            frozen=tuple(self.frozen),
            optimizers=tuple(self.optimizers),
            by_hand=self.by_hand,
            micro_steps=micro_steps,
            autocast=self.autocast,
            scaler=self.losses.enabled,
            eval_with_grad=self.eval_with_grad,
            step_s=step_s,
            wait_share=wait_share,
            workers_share=workers_share,
            shares=shares or {},
            operations=operations,
            idle_share=idle_share,
            noise=noise,
        )


def loader_facts(loader: torch.utils.data.DataLoader[Any]) -> wire.LoaderFacts:
    """The settings that a DataLoader was built with."""
    iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    try:
        batches = len(loader)
    except TypeError:
        batches = None
    context = loader.multiprocessing_context
    return wire.LoaderFacts(
        dataset=type(loader.dataset).__name__,
        iterable=iterable,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        batches=batches,
        num_workers=loader.num_workers,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        start_method=context.get_start_method() if context else worker_safety.start_method(),
        main_guard=main_guard(),
        read_singly=batch_reads.why_not_loader(loader) or "",
    )


def model_facts(model: torch.nn.Module) -> wire.ModelFacts:
    """The structure of a root model."""
    nn = torch.nn
    matmul = (nn.Linear, nn.MultiheadAttention, nn.RNNBase, nn.Conv1d, nn.Conv3d, nn.Bilinear)
    parameters = list(model.parameters())
    first = parameters[0]
    modules = list(model.modules())
    four = [parameter for parameter in parameters if parameter.dim() == 4]
    last = torch.channels_last
    parallel = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
    kind = type(model).__name__
    return wire.ModelFacts(
        kind=kind,
        parameters=sum(parameter.numel() for parameter in parameters),
        dtype=str(first.dtype).removeprefix("torch."),
        device=first.device.type,
        conv2d=sum(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in modules),
        # transformers' Conv1D is a matrix multiplication that is no nn.Linear
        matmul=sum(isinstance(m, matmul) or type(m).__name__ == "Conv1D" for m in modules),
        compiled=compiled_by_user(model) or kind == "OptimizedModule",
        channels_last=bool(four)
        and all(p.is_contiguous(memory_format=last) for p in four)
        and any(not p.is_contiguous() for p in four),
        has_hooks=any(m._forward_hooks or m._forward_pre_hooks for m in modules),
        wrapped=kind if kind in parallel else None,
        searches_unused=bool(getattr(model, "find_unused_parameters", False)),
        embeddings=sum(isinstance(module, nn.Embedding) for module in modules),
        recurrent=sum(isinstance(module, (nn.LSTM, nn.GRU)) for module in modules),
        blocks=sum(map(len, shared_blocks(model))),
    )


def optimizer_facts(optimizer: torch.optim.Optimizer) -> wire.OptimizerFacts:
    """The parameters that an optimizer steps, and how."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    group = optimizer.param_groups[0]
    module = type(optimizer).__module__
    return wire.OptimizerFacts(
        kind=type(optimizer).__name__,
        from_torch=module == "torch.optim" or module.startswith("torch.optim."),
        parameters=sum(parameter.numel() for parameter in parameters),
        tensors=len(parameters),
        dtype=str(parameters[0].dtype).removeprefix("torch.") if parameters else "float32",
        fused=group.get("fused"),
        foreach=group.get("foreach"),
    )


def machine_facts(device: torch.device) -> dict[str, Any]:
    """The part of JobFacts that does not depend on the program.

    The device is the models', which need not be the current one of its type.
    """
    import gc

    cuda = device.type == "cuda"
    return {
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "system": sys.platform,
        "device_name": torch.cuda.get_device_name(device) if cuda else None,
        "capability": torch.cuda.get_device_capability(device) if cuda else None,
        "hip": torch.version.hip is not None,
        "bf16": native_bf16(device).native,
        "bf16_inside_float32": bf16_inside_float32(device.type),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "threads_named": compute_threads.named(),
        "world_size": world_size(),
        "matmul_precision": matmul_precision(),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "deterministic": torch.are_deterministic_algorithms_enabled()
        or bool(torch.backends.cudnn.deterministic),
        "gc_enabled": gc.isenabled(),
        "triton": importlib.util.find_spec("triton") is not None,
        "compiler": has_compiler(device.type),
    }


def has_compiler(device: str) -> bool:
    """Whether torch.compile has what it needs: Triton on a GPU, a C++ compiler on CPU."""
    if device == "cuda":
        return importlib.util.find_spec("triton") is not None
    names = ("cl",) if sys.platform == "win32" else ("g++", "clang++", "c++")
    compiler = os.environ.get("CXX") or next((name for name in names if shutil.which(name)), None)
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")  # noqa: PTH118
    return compiler is not None and os.path.exists(header)  # noqa: PTH110
