"""The layer around a model's call that records it once and replays it whenever it matches.

A recording's forward and backward pass share their own memory, and each replay overwrites all of
it. The forward pass overwrites what the previous backward pass left there, including gradients.
Those in `.grad` are copied elsewhere first. While the program holds others, calls run as written,
and later it gets copies of the like.

There is one `GraphedCalls` per model. It acts only between `begin` and `rest`. Its recording
outlasts the rest, until `forget` is called or the model is freed.
"""

from __future__ import annotations

import operator
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import Depth
from flatout_agent.boost import Applied
from flatout_agent.speedups import forward_state, nests, stand_in
from flatout_agent.speedups.graphs import kept_gradients, recordings
from flatout_agent.speedups.graphs.recordings import (
    Capture,
    GradientPlace,
    Graphed,
    Key,
    NotRecordable,
    Recording,
)

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job

SEEN_BEFORE = 2
"""Calls with the same input shapes before recording: libraries have initialized themselves by
then."""
PATIENCE = 8
"""Steps after which no recording is expected any more, as shapes change or nothing is called."""
MOVES, WORTH = 2, 20
"""The model may change this often; after that, each recording must have had this many replays. The
same holds for calls that are made again."""
KINDS = 1000
"""The number of kinds of calls that are counted: a number among the arguments may differ in each
call."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CHANGED = "weights or attributes of the model, or torch's settings, were changed"
KEPT = "the program keeps gradients of earlier steps"
TRANSFORMED = "the program transforms the model's calls (torch.func), or watches their operators"
SECOND_PASS = "the loss goes back through a call more than once"

Entry = tuple[dict[str, Any], str, Any]


def put_on(job: Job, model: torch.nn.Module, capture: Capture) -> Applied:
    """Put the layer around this model's call."""
    calls = of_model(job, model, capture)
    unwrap = job.wrap_call(model, Depth.COMPILE, calls.layer)
    calls.begin()

    def undo() -> None:
        unwrap()
        calls.rest()

    return Applied(undo, calls.engaged, calls.steps_to_ready)


def of_model(job: Job, model: torch.nn.Module, capture: Capture) -> GraphedCalls:
    """The model's kept `GraphedCalls`, if it was to last; else a new one."""
    calls = _known.get(model)
    if calls is None or calls.job is not job or not calls.lasting:
        calls = _known[model] = GraphedCalls(job, model, capture)
    return calls


def of_job(job: Job) -> list[GraphedCalls]:
    """The `GraphedCalls` of all models of this program."""
    return [calls for calls in _known.values() if calls.job is job]


class PendingBackward:
    """A replayed forward pass whose activations are still needed; dies with its autograd graph."""

    def __init__(self) -> None:
        self.over = False


class SecondPass:
    """Makes a replayed call again as written, for a further backward pass through it.

    The recorded backward pass has overwritten what another one needs.
    """

    def __init__(
        self,
        calls: GraphedCalls,
        model: torch.nn.Module,
        call: Graphed,
        leaves: list[Any],
        spec: Any,
        state: list[torch.Tensor],
    ) -> None:
        import torch

        self._calls, self._model, self._call, self._spec = calls, model, call, spec
        # Without the inputs: autograd keeps them, and lets go of them with the graph.
        blank = torch.empty(0)
        self._leaves = [blank if nests.is_tensor(leaf) else leaf for leaf in leaves]
        self._state = [(tensor, tensor.detach().clone()) for tensor in state]
        self._device = calls.weights.device
        self._random = forward_state.random_state_of(self._device)
        kind = self._device.type
        self._autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)

    def __call__(self, inputs: Any, arrived: Any) -> list[Any]:
        """The gradients of inputs and parameters; the model is left as it is."""
        import torch

        from flatout_agent.speedups.graphs import aliases

        whole = recordings.as_tensors(self._model, self._call, self._leaves, self._spec)
        restore = forward_state.keep([self._model])
        try:
            for tensor, before in self._state:
                tensor.data.copy_(before)
            self._random()
            dtype = self._autocast or None
            with torch.autocast(self._device.type, dtype, bool(dtype), cache_enabled=False):
                return aliases.as_written(whole, inputs, arrived)
        finally:
            restore()
            self._calls.went_back_again()


class Weights:
    """The places of a model's weights, and the numbers, words and tensors that stand on its modules
    (a rate of dropout, a layer's own `training`, a mask): a recording goes by all of them.

    They are checked in every call. A walk through a model of 160 tensors takes a millisecond;
    checking what the last walk saw takes a tenth of that.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters: list[torch.nn.Parameter] = []
        self.device: Any = None
        self._model = weakref.ref(model)
        self._number = 0
        self._sizes: list[tuple[dict[str, Any], int]] = []
        self._entries: list[Entry] = []
        """Every parameter and submodule, with the dict and the name that hold it ..."""
        self._own: list[tuple[str, Any]] = []
        """... except those of the model itself: its dict would keep it alive."""
        self._places: list[tuple[Any, int, bool]] = []
        self._hooks: list[dict[int, Any]] = []
        """Those of all modules: a recording runs none, so it is made while there is none."""
        self._on_host: list[tuple[Any, int]] = []
        """Tensors whose values a recording for a device has taken, with their versions."""
        self._marks: list[Any] = []

    def version(self) -> int:
        """A number that stays the same while every weight is the same tensor in the same place."""
        model: Any = self._model()
        same = (
            self._places
            and not any(self._hooks)
            and all(len(owner) == size for owner, size in self._sizes)
            and _stand(self._entries)
            and _stand([(vars(model), name, item) for name, item in self._own])
            and all(
                p.data_ptr() == place and p.requires_grad is requires_grad
                for p, place, requires_grad in self._places
            )
            and all(tensor._version == version for tensor, version in self._on_host)
        )
        if not same:
            self._walk(model)
        return self._number

    def _walk(self, model: torch.nn.Module) -> None:
        modules = list(model.modules())
        owners = [owner for m in modules for owner in (m._parameters, m._modules, m._buffers)]
        self._hooks = [getattr(module, name) for module in modules for name in HOOKS]
        self.parameters = list(model.parameters())
        self.device = next((p.device for p in self.parameters), None)
        plain = [(vars(module), *row) for module in modules for row in _plain(module)]
        others = [*model.buffers(), *(row[2] for row in plain if nests.is_tensor(row[2]))]
        others = [tensor for tensor in others if stand_in.is_dense(tensor)]
        places = [(t, t.data_ptr(), t.requires_grad) for t in (*self.parameters, *others)]
        on_host = [
            (tensor, tensor._version)
            for tensor in others
            if tensor.device.type == "cpu"
            and tensor.device != self.device
            and not tensor.is_inference()
        ]
        marks = [
            *(len(hooks) for hooks in self._hooks),
            *((place, requires_grad) for _, place, requires_grad in places),
            *((name, id(item) if nests.is_tensor(item) else item) for _, name, item in plain),
            *((id(tensor), version) for tensor, version in on_host),
        ]
        if marks != self._marks:
            self._number += 1
        self._sizes = [(owner, len(owner)) for owner in owners]
        self._entries = [(owner, name, item) for owner in owners for name, item in owner.items()]
        self._own = _plain(model)
        self._entries += plain[len(self._own) :]
        self._places, self._on_host, self._marks = places, on_host, marks


def _plain(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Numbers, words and tensors on it; of these none that would keep a pass's graph alive."""
    return [
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, forward_state.SIMPLE)
        or (nests.is_tensor(value) and value.grad_fn is None)
    ]


def _stand(entries: list[Entry]) -> bool:
    """Whether all of these dicts still hold the same objects. A loop: `all` takes twice as long."""
    for owner, name, value in entries:
        current = owner.get(name)
        if current is not value:
            plain = isinstance(value, forward_state.SIMPLE) and type(current) is type(value)
            if not plain or current != value:
                return False
    return True


class GraphedCalls:
    """One model's calls, and their recording. It holds no reference to the model itself."""

    def __init__(self, job: Job, model: torch.nn.Module, capture: Capture) -> None:
        self.job, self.capture = job, capture
        self.weights = Weights(model)
        self.on, self.lasting = False, True
        self.call_counts: dict[Key, int] = {}
        self.recording: Recording | None = None
        self.replayed = self.eager = 0
        self.given_up = ""
        self.why_eager = ""
        self._model = weakref.ref(model)
        self._pending: weakref.ref[PendingBackward] | None = None
        self._version = self._moves = self._began = self._seconds = 0

    # On and off -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record and replay, from the model's next call on."""
        self.on, self._began = True, self.job.steps

    def rest(self) -> None:
        """Run the model as written; the recording stays if it is to last and there is room."""
        self.on, recording = False, self.recording
        if not self.lasting:
            self._drop()
        elif recording and recordings.is_short_of_memory(self.weights.device, recording.grown):
            self.recording = None

    def forget(self) -> None:
        """Let nothing outlast the next rest."""
        self.lasting = False
        if not self.on:
            self._drop()

    def _drop(self) -> None:
        self.recording, model = None, self._model()
        if model is not None and _known.get(model) is self:
            del _known[model]

    def steps_to_ready(self) -> int:
        """For `Applied.steps_to_ready`: calls up to the one that is recorded."""
        waited = self.job.steps - self._began
        if self.given_up or self.recording is not None or waited >= PATIENCE:
            return 0
        return max(1, SEEN_BEFORE + 1 - max(self.call_counts.values(), default=0))

    def engaged(self) -> tuple[bool, str] | None:
        """For `Applied.engaged`."""
        if self.given_up:
            return False, self.given_up
        if self.recording is None:
            if not self.call_counts and not self.why_eager:
                return None
            return False, self.why_eager or "no input shape came up often enough to be recorded"
        if self.replayed <= self.eager:
            return False, f"{self.eager} of {self.replayed + self.eager} calls: {self.why_eager}"
        detail = f"recorded; {self.eager} calls ran as written" if self.eager else "recorded"
        return True, detail

    # Calls ----------------------------------------------------------------------------------------

    def layer(self, call: Graphed) -> Graphed:
        """`call`, replayed if it matches the recording."""
        import torch

        model: Any = self._model()

        def graphed_call(*args: Any, **kwargs: Any) -> Any:
            if self.given_up or not model.training or not torch.is_grad_enabled():
                return call(*args, **kwargs)
            if not stand_in.is_plain():  # tensors under vmap have no memory to look at
                self.why_eager = self.why_eager or TRANSFORMED
                return call(*args, **kwargs)
            leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
            recording = self._matching(call, leaves, spec)
            if recording is not None:
                again = SecondPass(self, model, call, leaves, spec, recording.state)
                return self._replay(recording, [x for x in leaves if nests.is_tensor(x)], again)
            output = call(*args, **kwargs)
            if self.recording is None:
                self._watch(output)
            return output

        return graphed_call

    def _matching(self, call: Graphed, leaves: list[Any], spec: Any) -> Recording | None:
        """The recording of such a call, made here if it is due, or None if it runs as written."""
        version = self.weights.version()
        if version != self._version:
            self._start_over(version)
        if not self._fits(leaves):
            return None
        key = self._key(leaves, spec)
        is_due = self.call_counts.get(key, 0) >= SEEN_BEFORE
        if is_due and self.recording is not None and self.recording.key.settings != key.settings:
            self._give_way()
        if is_due and self.recording is None and not self.given_up:
            self._record(call, leaves, spec, key)
        recording = self.recording
        if recording is not None and recording.key == key and not self._busy(recording):
            return recording
        if len(self.call_counts) >= KINDS:
            self.call_counts = {}
        self.call_counts[key] = self.call_counts.get(key, 0) + 1
        if self.recording is not None and self.recording.key != key:
            self.why_eager = "inputs, autocast or torch's settings differ from the recording"
        self.eager += bool(self.replayed)
        return None

    def _fits(self, leaves: list[Any]) -> bool:
        """Whether these arguments can be recorded: a recording fixes all values on the host."""
        import torch

        for leaf in leaves:
            if not nests.is_tensor(leaf):
                if leaf is not None and not isinstance(leaf, (bool, int, float, str)):
                    kind = type(leaf).__name__
                    self.given_up = f"the model takes a {kind}, which cannot be recorded"
                    return False
            elif type(leaf) not in (torch.Tensor, torch.nn.Parameter) or not stand_in.is_dense(
                leaf
            ):
                self.given_up = "the model takes a sparse, nested or wrapped tensor"
                return False
            elif leaf.device != self.weights.device:
                place = leaf.device.type
                self.why_eager = f"an input is on {place}, and a recording would keep its values"
                self.eager += bool(self.replayed)
                return False
        return True

    def _key(self, leaves: list[Any], spec: Any) -> Key:
        import torch

        inputs = tuple(
            (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
            if nests.is_tensor(leaf)
            else repr(leaf)
            for leaf in leaves
        )
        autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        return Key(inputs, str(spec), autocast, recordings.settings())

    def _busy(self, recording: Recording) -> bool:
        """A replay now would overwrite what a backward pass, or the script, still needs."""
        waiting = self._pending() if self._pending is not None else None
        if waiting is not None and not waiting.over:
            self.why_eager = "the model was called again before its backward pass"
            return True
        self._keep_gradients(recording)
        held = [place for place in recording.places.values() if place.is_held()]
        for place in held:
            place.was_held, self.why_eager = True, KEPT
        return bool(held)

    def _start_over(self, version: int) -> None:
        """The model has changed: a recording would use its former settings and weights."""
        if self._version:
            self.why_eager = CHANGED
        self._version, self.call_counts = version, {}
        if self.recording is not None:
            self._give_way()

    def _give_way(self) -> None:
        """Drop the recording: it is no longer what the program does."""
        self.recording = self._pending = None
        self._moves += 1
        if self._moves > MOVES and self.replayed < self._moves * WORTH:
            self.given_up = f"{CHANGED} again and again"

    def went_back_again(self) -> None:
        """A further backward pass was made as written: give up if most of them are."""
        self._seconds += 1
        if self._seconds > MOVES and self.replayed < self._seconds * WORTH:
            self.recording = self._pending = None
            self.given_up = SECOND_PASS

    def _record(self, call: Graphed, leaves: list[Any], spec: Any, key: Key) -> None:
        model: Any = self._model()
        capture = self.capture
        try:
            self.recording = recordings.record(model, call, leaves, spec, key, capture)
            self._pending = None
            grown = self.recording.grown
            if recordings.takes_too_much(self.weights.device, grown):
                self.recording = None
                self.given_up = f"it takes {grown / 2**30:.1f} GiB, most of what is free"
        except NotRecordable as reason:
            self.given_up = str(reason)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.given_up = f"recording failed: {lines[0]}"

    def _watch(self, output: Any) -> None:
        """Give up on a program that runs backward through a call twice, or through its gradients.

        The first recorded backward pass already writes to the memory of what a second one needs.
        """
        import torch

        passes = set()

        def passed(*_: Any) -> None:
            passes.add(torch._C._current_graph_task_id())
            if len(passes) > 1 or torch.is_grad_enabled():
                self.given_up = SECOND_PASS

        for node in {tensor.grad_fn for tensor in nests.tensors(output)}:
            if node is not None:
                node.register_hook(passed)

    # Replays --------------------------------------------------------------------------------------

    def _replay(self, recording: Recording, tensors: list[torch.Tensor], again: SecondPass) -> Any:
        import torch

        flat = recording.graphed(*tensors, again=again)
        token = PendingBackward()
        node = next((item.grad_fn for item in flat if item.grad_fn is not None), None)
        if node is not None:
            node.register_hook(partial(self._backward_ends, recording, token, len(tensors)))
            self._pending = weakref.ref(token)
        # Copies: the next replay writes to the same places.
        copies = iter([item.clone() for item in flat])
        spec, missing = recording.outputs
        self.replayed += 1
        outputs = [None if gone else next(copies) for gone in missing]
        return torch.utils._pytree.tree_unflatten(outputs, spec)

    def _keep_gradients(self, recording: Recording) -> None:
        """Move gradients that the program keeps in `.grad` away: the recording is about to write
        there.
        """
        if recording.places:
            kept = [p.grad for p in self.weights.parameters if p.grad is not None]
            kept_gradients.move_out([g for g in kept if self._place(g) in recording.places])

    def _backward_ends(
        self, recording: Recording, token: PendingBackward, inputs: int, gradients: Any, _: Any
    ) -> Any:
        """After the recorded backward pass, only gradients that go to `.grad`, and were never kept
        beyond that, stay in place.

        Gradients given to an input, or to torch.autograd.grad(), cannot be tracked from here on.
        """
        token.over = True
        if not recording.places:
            dense = [g for g in gradients if g is not None and self._place(g) is not None]
            recording.places = {g.data_ptr(): GradientPlace(g) for g in dense}
        copied = inputs if self._go_to_grad() else len(gradients)
        kept = {address for address, place in recording.places.items() if place.was_held}
        given = tuple(
            g.clone() if g is not None and (n < copied or self._place(g) in kept) else g
            for n, g in enumerate(gradients)
        )
        return None if all(map(operator.is_, given, gradients)) else given

    def _place(self, tensor: torch.Tensor) -> int | None:
        """Its address, or None if it is sparse and has none."""
        import torch

        return int(tensor.data_ptr()) if tensor.layout is torch.strided else None

    def _go_to_grad(self) -> bool:
        """Whether the backward pass under way leaves the weights' gradients in `.grad`."""
        import torch

        weight = next((p for p in self.weights.parameters if p.requires_grad), None)
        if weight is None:
            return True
        with torch.enable_grad():  # the node that adds to its `.grad`
            view: Any = weight.view_as(weight)
            node = view.grad_fn.next_functions[0][0]
        try:
            return bool(torch._C._will_engine_execute_node(node))
        except RuntimeError:  # torch.autograd.grad() asked for it
            return False


_known: weakref.WeakKeyDictionary[Any, GraphedCalls] = weakref.WeakKeyDictionary()
