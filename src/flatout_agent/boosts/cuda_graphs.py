"""Launch the model's whole forward and backward pass as one CUDA graph each.

## What it does

After two calls with inputs of the same shapes, records the model's training call with
`torch.cuda.make_graphed_callables` and from then on replays it: inputs are copied into the recorded
places, outputs are copied out. Recording leaves no trace: buffers (running statistics) and the
random state are put back. A recorded backward pass writes its gradients to the same places each
time: those that the program keeps (accumulation, `zero_grad(set_to_none=False)`, or simply until it
calls `zero_grad()` after the model) are copied elsewhere first. What does not match the recording
runs as written: other shapes, evaluation, and a second call before the backward pass of the first.

## Why it is faster

A small model's step is hundreds of kernels of a few microseconds each, and launching one from
Python takes longer than running it. A graph launches all of them at once.

## When it does nothing

- The model does not run on an NVIDIA or AMD GPU.
- Shapes change, or calls are made before the backward pass of the one before.
- The model is wrapped for several GPUs, has hooks, or looks at values (`.item()`).
- compile is on: its mode `reduce-overhead` does the same.

## What it may change

The same kernels on the same numbers; dropout draws other random numbers. Activations of the
recorded shapes stay allocated.

## How it is undone

The layer around the model's call is removed, and with it the recording.

## References

- https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
- https://docs.pytorch.org/docs/stable/generated/torch.cuda.make_graphed_callables.html
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent import captures, nests
from flatout_agent.boosts import Applied, Boost, Declined, Moment, Risk
from flatout_agent.chain import Depth

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, Params

BOOST = Boost(
    since="0.1.0",
    risk=Risk.EXACT,
    moment=Moment.MODEL,
    conflicts=("compile",),
    retry_after=("bf16-autocast", "fp16-autocast"),
    redraws=True,
    compiles=True,
)
SEEN_BEFORE = 2
"""Calls with the same inputs' shapes before recording: libraries have set themselves up by then."""

Capture = Callable[[Any, Any, tuple[Any, ...]], Callable[..., Any]]


def applies(facts: JobFacts, params: Params) -> str | None:
    """Why it does not apply to this job; None: it does."""
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
    wait = facts.wait_share or 0.0
    full = 1.4 if (facts.step_s or 1.0) < 0.03 else 1.03
    return 1.0 / (wait + (1.0 - wait) / full)


def apply(job: Job, target: Any, params: Params) -> Applied:
    """Record and replay the model's training calls."""
    device = next((p.device.type for p in target.parameters()), "cpu")
    if device != "cuda":
        raise Declined(f"CUDA graphs need a GPU, the model is on {device}")
    reason = _cannot(job.torch, target)
    if reason is not None:
        raise Declined(reason)
    calls = GraphedCalls(job.torch, target, _capture)
    unwrap = job.wrap_call(target, Depth.COMPILE, calls.layer)

    def undo() -> None:
        unwrap()
        calls.forget()

    return Applied(undo, calls.engaged)


def by_hand(facts: JobFacts, params: Params) -> str:
    """The same as plain PyTorch."""
    return (
        "# before training, with one batch of the final shape; no gradient accumulation;\n"
        "# autocast, if any, with cache_enabled=False\n"
        "model = torch.cuda.make_graphed_callables(model, (inputs,))\n"
    )


def _cannot(torch: Any, model: Any) -> str | None:
    wrappers = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
    wrapped = wrappers & {base.__name__ for base in type(model).__mro__}
    if wrapped:
        return f"the model is wrapped in {wrapped.pop()}"
    if isinstance(model, torch.jit.ScriptModule):
        return "the model is a ScriptModule"
    for module in model.modules():
        if type(module).__name__ == "OptimizedModule":
            return "the script compiles the model or a part of it itself"
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        if any(hooks) or module._backward_pre_hooks:
            return "the model has hooks, which a recording would not run"
    if any(parameter._backward_hooks for parameter in model.parameters()):
        return "the script has hooks on its parameters' gradients"
    if any(buffer.requires_grad for buffer in model.buffers()):
        return "the model has buffers that require gradients"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "the model is spread over several devices"
    return None


def _capture(torch: Any, whole: Any, samples: tuple[Any, ...]) -> Callable[..., Any]:
    """`whole`, recorded. Buffers and the random state are afterwards what they were."""
    device = next(whole.parameters()).device
    buffers = [(buffer, buffer.clone()) for buffer in whole.buffers()]
    random, current = torch.cuda.get_rng_state(device), torch.cuda.current_stream(device)
    own, pools = torch.cuda.graph, []

    def recording(graph: Any, pool: Any = None, **settings: Any) -> Any:
        pools.append(pool)
        # The loader's pinning thread goes on allocating meanwhile; the default mode forbids that.
        return own(graph, pool=pool, capture_error_mode="thread_local", **settings)

    torch.cuda.graph = recording
    try:
        if not torch.is_autocast_enabled("cuda"):
            made = torch.cuda.make_graphed_callables(whole, samples, allow_unused_input=True)
        else:
            dtype = torch.get_autocast_dtype("cuda")
            with torch.autocast("cuda", dtype=dtype, cache_enabled=False):
                made = torch.cuda.make_graphed_callables(whole, samples, allow_unused_input=True)
    except BaseException:
        with torch.cuda.device(device):
            captures.clean_up(torch, current, random, list(dict.fromkeys(pools)))
        raise
    finally:
        torch.cuda.graph = own
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.cuda.set_rng_state(random, device)
    graphed: Callable[..., Any] = made.forward
    return graphed


def _is_plain(leaf: Any) -> bool:
    """A tensor, or a constant that cannot change under a recording."""
    return leaf is None or nests.is_tensor(leaf) or isinstance(leaf, (bool, int, float, str))


class Pending:
    """A replayed forward pass whose activations are still needed; dies with its autograd graph."""

    def __init__(self) -> None:
        self.over = False

    def done(self, *_: Any) -> None:
        """The backward pass has run."""
        self.over = True


class Weights:
    """The places of a model's weights, looked at in every call: a walk through a model of 160
    tensors takes a fifth of a millisecond, a look at what was seen on the last one a tenth of that.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._number = 0
        self._sizes: list[tuple[dict[str, Any], int]] = []
        self._entries: list[tuple[dict[str, Any], str, Any]] = []
        """Every parameter and submodule, with the dict and the name under which it stands."""
        self._places: list[tuple[Any, int, bool]] = []

    def version(self) -> int:
        """A number that stays while every weight is the same tensor in the same place."""
        same = (
            self._places
            and all(len(owner) == size for owner, size in self._sizes)
            and all(owner.get(name) is item for owner, name, item in self._entries)
            and all(
                p.data_ptr() == place and p.requires_grad is wanted
                for p, place, wanted in self._places
            )
        )
        if not same:
            self._walk()
        return self._number

    def _walk(self) -> None:
        owners = [
            owner for module in self.model.modules()
            for owner in (module._parameters, module._modules)
        ]  # fmt: skip
        places = [(p, p.data_ptr(), p.requires_grad) for p in self.model.parameters()]
        if [row[1:] for row in places] != [row[1:] for row in self._places]:
            self._number += 1
        self._sizes = [(owner, len(owner)) for owner in owners]
        self._entries = [(owner, name, item) for owner in owners for name, item in owner.items()]
        self._places = places


class GraphedCalls:
    """The layer around one model's call."""

    def __init__(self, torch: Any, model: Any, capture: Capture) -> None:
        self.torch, self.model, self.capture = torch, model, capture
        self.seen: dict[Any, int] = {}
        self.key: Any = None
        self.graphed: Callable[..., Any] | None = None
        self.weights = Weights(model)
        self.output_spec: Any = None
        self.pending: weakref.ref[Pending] | None = None
        self.replayed = self.eager = 0
        self.given_up = ""
        self.why_eager = ""

    def forget(self) -> None:
        """Drop the recording."""
        self.graphed = self.key = None

    def layer(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, replayed where it matches the recording."""
        pytree = self.torch.utils._pytree

        def graphed_call(*args: Any, **kwargs: Any) -> Any:
            usable = not self.given_up and self.model.training and self.torch.is_grad_enabled()
            if not usable:
                return call(*args, **kwargs)
            leaves, spec = pytree.tree_flatten((args, kwargs))
            odd = next((item for item in leaves if not _is_plain(item)), None)
            if odd is not None:
                self.given_up = f"the model takes a {type(odd).__name__}, which cannot be recorded"
                return call(*args, **kwargs)
            key = self._key(leaves, spec)
            if self.graphed is None and self.seen.get(key, 0) >= SEEN_BEFORE and not self._busy():
                self._record(call, leaves, spec, key)
            if self.graphed is None or key != self.key or self._busy():
                self._note_eager(key)
                return call(*args, **kwargs)
            return self._replay([leaf for leaf in leaves if nests.is_tensor(leaf)])

        return graphed_call

    def _key(self, leaves: list[Any], spec: Any) -> Any:
        """All that a recording depends on."""
        torch = self.torch
        inputs = tuple(
            (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
            if nests.is_tensor(leaf)
            else repr(leaf)
            for leaf in leaves
        )
        autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        return inputs, str(spec), self.weights.version(), autocast

    def _busy(self) -> bool:
        """A replay now would overwrite what a backward pass, or the script, still needs."""
        waiting = self.pending() if self.pending is not None else None
        if waiting is not None and not waiting.over:
            self.why_eager = "the model was called again before its backward pass"
            return True
        return False

    def _note_eager(self, key: Any) -> None:
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.graphed is not None:
            self.eager += 1
            if key != self.key:
                self.why_eager = "inputs, weights or autocast differ from the recording"

    def _record(self, call: Callable[..., Any], leaves: list[Any], spec: Any, key: Any) -> None:
        torch = self.torch
        tensors = [leaf for leaf in leaves if nests.is_tensor(leaf)]
        samples = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in tensors)
        try:
            self.graphed = self.capture(torch, self._whole(call, leaves, spec), samples)
            self.key = key
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.given_up = f"recording failed: {lines[0]}"

    def _whole(self, call: Callable[..., Any], leaves: list[Any], spec: Any) -> Any:
        """The call as a module from tensors to tensors, which is what can be recorded."""
        torch, owner = self.torch, self
        pytree = torch.utils._pytree
        slots = [index for index, leaf in enumerate(leaves) if nests.is_tensor(leaf)]
        constants = [None if nests.is_tensor(leaf) else leaf for leaf in leaves]
        base: Any = torch.nn.Module

        class Whole(base):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = owner.model

            def forward(self, *tensors: Any) -> Any:
                filled = list(constants)
                for slot, tensor in zip(slots, tensors, strict=True):
                    filled[slot] = tensor
                args, kwargs = pytree.tree_unflatten(filled, spec)
                outputs, output_spec = pytree.tree_flatten(call(*args, **kwargs))
                if not all(nests.is_tensor(item) or item is None for item in outputs):
                    raise TypeError("the model returns something else than tensors")
                owner.output_spec = output_spec, [item is None for item in outputs]
                return tuple(item for item in outputs if item is not None)

        return Whole()

    def _replay(self, tensors: list[Any]) -> Any:
        assert self.graphed is not None
        flat = self.graphed(*tensors)
        token = Pending()
        node = next((item.grad_fn for item in flat if item.grad_fn is not None), None)
        if node is not None:
            node.register_prehook(self._keep_gradients)
            node.register_hook(token.done)
            self.pending = weakref.ref(token)
        # Copies: the next replay writes to the same places.
        copies = iter([item.clone() for item in flat])
        spec, missing = self.output_spec
        self.replayed += 1
        outputs = [None if gone else next(copies) for gone in missing]
        return self.torch.utils._pytree.tree_unflatten(outputs, spec)

    def _keep_gradients(self, *_: Any) -> None:
        """The recorded backward pass is about to write: what the program keeps must not be there.

        Asked here, not at the model's call: many programs call `zero_grad()` in between.
        """
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def engaged(self) -> tuple[bool, str] | None:
        """For `Applied.engaged`."""
        if self.given_up:
            return False, self.given_up
        if self.graphed is None:
            if not self.seen:
                return None
            return False, self.why_eager or "no input shape came up often enough to be recorded"
        if self.replayed <= self.eager:
            return False, f"{self.eager} of {self.replayed + self.eager} calls: {self.why_eager}"
        detail = f"recorded; {self.eager} calls ran as written" if self.eager else "recorded"
        return True, detail
