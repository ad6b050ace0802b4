"""Launch the model's whole forward and backward pass as one CUDA graph each.

## What it does

After two calls with inputs of the same shapes, records the model's training call and from then on
replays it: inputs are copied into the recorded buffers, outputs are copied out. It is recorded over
aliases of the weights (other parameters in the same memory), since the program's own may still be
referenced by the loss of its last step. Values that the forward pass makes on the host and copies
to the device are kept there if they are the same in several passes. Recording leaves no trace:
buffers (running statistics), the model's attributes and the random state of device and host are put
back.
The recorded forward and backward pass share one memory and write to the same places each time:
gradients that the program keeps there (accumulation, `zero_grad(set_to_none=False)`, or simply
until it calls `zero_grad()` after the model) are copied elsewhere before that. Calls that do not
match the recording run as written: other shapes, evaluation, a second call before the backward pass
of the first, and calls while the program holds earlier gradients that have left `.grad`. If weights
move, a number or tensor on the model is replaced (a dropout rate, a mask), or torch's settings
change which kernels run (TF32, determinism, those of attention), the call is recorded again.

## Why it is faster

A small model's step is hundreds of kernels of a few microseconds each, and launching one from
Python takes longer than running it. A graph launches all of them at once.

## When it does nothing

- The model does not run on an NVIDIA or AMD GPU.
- Shapes change, or a call is made before the backward pass of the previous one.
- The program holds the gradients of an early step for good, without copying them.
- The model is wrapped for several GPUs, has hooks, sparse inputs or sparse gradients, looks at
  values (`.item()`), writes to its inputs, recomputes activations (`torch.utils.checkpoint`) or
  packs them (`saved_tensors_hooks`), or uses a weight that belongs to no module of its own.
- The recording would take more than half of the free memory.
- Work on the host would be recorded once and not repeated: an input is on the CPU, the forward pass
  draws numbers there (`random.random()`, a LayerDrop) or changes the model's attributes.
- The backward pass runs through a call twice (`retain_graph=True`), or through its gradients. If
  the first only begins later and comes rarely, the call is made again as written for it.
- The script replays the model or a part of it as a CUDA graph itself.
- compile is on: its mode `reduce-overhead` does the same.

## What it may change

The same kernels on the same numbers; dropout draws other random numbers. Activations of the
recorded shapes stay allocated. The cache for generation that Transformers models return in training
as well (`past_key_values`) is None.

## How it is undone

The layer around the model's call is removed. While boosts are tried, the recording is kept for its
next turn if the device has room for it beside the program; once the boost is decided against, it is
dropped.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.make_graphed_callables.html
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from flatout_agent.attach.chain import is_recorded
from flatout_agent.boost import Applied, Boost, Declined, Moment, Risk
from flatout_agent.boosts import speedup_of_launches, speedup_of_work
from flatout_agent.speedups.graphs import captures, graphed_calls
from flatout_agent.speedups.graphs.recordings import Graphed, NotRecordable

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.MODEL,
    conflicts=("compile",),
    redraws=True,
    compiles=True,
    records=True,
)


Result = TypeVar("Result")
LAUNCHES = 5.0
"""A replayed pass is launched this many times as fast; the rest of the step as before."""


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job, or None if it does."""
    if facts.device != "cuda":
        return f"CUDA graphs need a GPU, the model is on {facts.device}"
    for model in facts.models:
        if model.compiled:
            return "the script compiles the model itself"
        if model.wrapped is not None:
            return f"the model is wrapped in {model.wrapped}"
        if model.has_hooks:
            return "the model has hooks, which a recording would not run"
        if len(model.input_shapes) > 1:
            return f"{len(model.input_shapes)} input shapes were seen, a recording holds for one"
    return None


def promise(facts: JobFacts, params: Params) -> float:
    """Likely speed-up, for the order of trials."""
    measured = speedup_of_launches(facts, LAUNCHES)
    if measured is not None:
        return measured
    return speedup_of_work(facts, 1.4 if (facts.step_s or 1.0) < 0.03 else 1.03)


def apply(job: Job, target: torch.nn.Module, params: Params) -> Applied:
    """Record and replay the model's training calls."""
    device = next((p.device.type for p in target.parameters()), "cpu")
    if device != "cuda":
        raise Declined(f"CUDA graphs need a GPU, the model is on {device}")
    reason = _cannot(target)
    if reason is not None:
        raise Declined(reason)
    return graphed_calls.put_on(job, target, _capture)


def forget(job: Job) -> None:
    """Release the recordings that outlasted `undo`."""
    for calls in graphed_calls.of_job(job):
        calls.forget()


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "# before training, with one batch of the final shape; no gradient accumulation;\n"
        "# autocast, if any, with cache_enabled=False\n"
        "model = torch.cuda.make_graphed_callables(model, (inputs,))\n"
    )


def _cannot(model: torch.nn.Module) -> str | None:
    import torch

    wrappers = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
    wrapped = wrappers & {base.__name__ for base in type(model).__mro__}
    if wrapped:
        return f"the model is wrapped in {wrapped.pop()}"
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return "the model is a ScriptModule, or has one"
        if type(module).__name__ == "OptimizedModule":
            return "the script compiles the model or a part of it itself"
        if is_recorded(module):
            return "the script replays the model or a part of it as a CUDA graph itself"
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        if any(hooks) or module._backward_pre_hooks:
            return "the model has hooks, which a recording would not run"
        if getattr(module, "sparse", False) is True:
            return "the model has sparse gradients"
    if any(parameter._backward_hooks for parameter in model.parameters()):
        return "the script has hooks on its parameters' gradients"
    if any(buffer.requires_grad for buffer in model.buffers()):
        return "the model has buffers that require gradients"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "the model is spread over several devices"
    return None


def _capture(whole: Any, samples: tuple[Any, ...]) -> Graphed:
    """`whole`, recorded; if that fails, stream and allocator are left as they were."""
    import torch

    from flatout_agent.speedups.graphs import aliases

    reason = _cannot(whole)  # it may have changed since the boost was applied
    if reason is not None:
        raise NotRecordable(reason)
    device = next(iter(whole.parameters())).device
    with torch.cuda.device(device):  # the current device is used by all of this
        random, current = torch.cuda.get_rng_state(device), torch.cuda.current_stream(device)
        graphs = _Graphs(device)
        try:
            with _as_autocast():
                return aliases.record(whole, samples, graphs)
        except BaseException:
            graph = graphs.begun[-1] if graphs.begun else None
            captures.clean_up(current, random, graphs.pools, graph)
            raise


class _Graphs:
    """Records as CUDA graphs, all on one stream and in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        import torch

        # Torch's own stream for recordings belongs to the device on which it was first made. And a
        # freed graph also frees its stream's workspaces, so no other recording may be on it.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pools: list[Any] = []
        self.begun: list[torch.cuda.CUDAGraph] = []

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        import torch

        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:  # after an error, too: what the passes have changed is put back on the current one
            current.wait_stream(self._stream)

    def record(self, work: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        import torch

        if not self.pools:
            self.pools.append(torch.cuda.graph_pool_handle())
        graph = torch.cuda.CUDAGraph()
        # The loader's pinning thread goes on allocating; the default mode forbids that.
        settings: Any = {"stream": self._stream, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(graph, pool=self.pools[0], **settings):
            self.begun.append(graph)
            result = work()
        return result, graph.replay


@contextlib.contextmanager
def _as_autocast() -> Iterator[None]:
    """The autocast region that is open, if any, without its weight cache: a recording would keep
    cached weights for good.
    """
    import torch

    if not torch.is_autocast_enabled("cuda"):
        yield
        return
    dtype = torch.get_autocast_dtype("cuda")
    with torch.autocast("cuda", dtype=dtype, cache_enabled=False):
        yield
