"""Passes recorded over aliases of the parameters, on a tape instead of a GPU."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from flatout_agent.boosts import cuda_graphs
from flatout_agent.job import Job
from flatout_agent.speedups.graphs import aliases, graphed_calls, recordings
from flatout_agent.speedups.graphs.host_values import HostValues
from flatout_agent.speedups.graphs.recordings import NotRecordable
from guarded import Made
from replayed import Capture, Tapes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested_tensor.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning"),
]
STEPS = 50


# Five models -------------------------------------------------------------------------------------


class Table(nn.Module):
    """A table's columns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Words(nn.Module):
    """An LSTM whose output layer is its embedding, which it looks up in bfloat16 or not."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(11, 8), nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.words(x.abs().mul(5).long().remainder(11)))
        return self.head(hidden)[:, -1, :3]


class Pictures(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, 4)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.stem(x[:, None, None].expand(-1, 1, 8, 8))))
        return self.head((x + self.body(x)).mean((2, 3)))


class Attending(nn.Module):
    """A Transformer's encoder; its outputs are a dict, one of them of integers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        mask = torch.tensor(0.0, device=x.device).expand(8, 8)
        logits = self.head(self.encoder(x[:, :, None].expand(-1, -1, 8), mask=mask).mean(1))
        return {"logits": logits, "best": logits.argmax(1)}


class Waves(nn.Module):
    """A network of sines: weights that are no layer's, used several times."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(1.5))
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(self.rate * layer(x))
        return self.head(x)


MODELS = [Table, Words, Pictures, Attending, Waves]


class Recomputing(nn.Module):
    """Runs a part of itself again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(checkpoint(self.second, self.first(x), use_reentrant=self.reentrant))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 3))


# Programs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A program, and what is said of its recording in the end."""

    make: Callable[[], nn.Module]
    calls: int = 1
    """Calls before each backward pass."""
    accumulate: int = 1
    bf16: bool = False
    engages: bool = True
    said: str = "recorded"


AGAIN = "the model was called again before its backward pass"
CASES = {
    **{make.__name__: Case(make) for make in MODELS},
    **{f"{make.__name__}, accumulating": Case(make, accumulate=3) for make in MODELS},
    "two calls before backward": Case(Attending, 2, engages=False, said=AGAIN),
    "dropout": Case(dropping),
    "autocast": Case(Table, bf16=True),
    "checkpoint": Case(lambda: Recomputing(False), engages=False, said=aliases.RECOMPUTES),
    "reentrant": Case(lambda: Recomputing(True), engages=False, said=aliases.RECOMPUTES),
}


def train(case: Case, device: str, capture: Any = None) -> tuple[list[float], nn.Module, Any]:
    """Losses of some steps, recorded by `capture` or as written.

    The program holds its last loss, as most do, scales it, evaluates between steps, and clears the
    gradients in turn by None and by zeros.
    """
    torch.manual_seed(0)
    model, job = case.make().to(device), Job()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    engaged: Any = lambda: None  # noqa: E731
    if capture is not None:
        engaged = graphed_calls.put_on(job, model, capture).engaged
    cached = capture is None or device != "cpu"  # on tapes there is no region of the recording's
    losses, generator = [], torch.Generator().manual_seed(1)
    held: Any = None

    def loss_of_a_batch() -> tuple[torch.Tensor, Any]:
        x = torch.randn(6, 8, generator=generator).to(device)
        y = torch.randint(3, (6,), generator=generator).to(device)
        with torch.autocast(device, torch.bfloat16, case.bf16, cache_enabled=cached):
            output = model(x)
            logits = output["logits"] if isinstance(output, dict) else output
            return functional.cross_entropy(logits, y), output

    for step in range(STEPS):
        for _ in range(case.accumulate):
            held = [loss_of_a_batch() for _ in range(case.calls)]
            loss = torch.stack([loss for loss, _ in held]).sum()
            scaler.scale(loss / case.accumulate).backward()
            losses.append(loss.item())
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if step % 10 == 5:
            model.eval()
            with torch.no_grad():
                model(torch.ones(6, 8, device=device))
            model.train()
    assert held is not None
    return losses, model, engaged()


def trains_alike(case: Case, device: str, capture: Any, limit: float) -> Any:
    """Both models. limit: how far losses may differ."""
    expected, plain, _ = train(case, device)
    losses, model, engaged = train(case, device, capture)
    assert engaged[0] is case.engages, engaged
    assert engaged[1].endswith(case.said)
    assert losses == pytest.approx(expected, rel=limit, abs=limit)
    assert len(set(losses)) > STEPS / 2
    return model.state_dict(), plain.state_dict()


FEW = ("Table", "two calls before backward", "dropout", "autocast", "checkpoint")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_trains_as_without_a_recording(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # The tape's device is the host, where a recording may not draw numbers.
    monkeypatch.setattr(recordings._Host, "compare", lambda before, after: None)
    case = CASES[name]
    limit = 1e-5 if case.bf16 else 0.0
    model, plain = trains_alike(case, "cpu", Capture(), limit)
    torch.testing.assert_close(model, plain, rtol=100 * limit, atol=100 * limit)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_trains_as_without_a_recording_on_the_gpu(name: str) -> None:
    trains_alike(CASES[name], "cuda", cuda_graphs._capture, 0.02)


# One recording -----------------------------------------------------------------------------------


def recorded(module: nn.Module, *samples: torch.Tensor) -> Callable[..., Any]:
    return partial(aliases.record(module, samples, Tapes()), again=None)


class Whole(nn.Module):
    """A module from tensors to a tuple of tensors."""

    def __init__(self, model: nn.Module, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.model(*tensors) if self.call is None else self.call(*tensors)
        return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("make", MODELS[:3])
def test_the_parameters_are_the_programs_own_afterwards(make: Callable[[], nn.Module]) -> None:
    model = make()
    before = dict(model.named_parameters(remove_duplicate=False))
    recorded(Whole(model), torch.randn(6, 8))
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(before) == list(after)
    assert all(after[name] is parameter for name, parameter in before.items())
    if isinstance(model, Words):
        assert all(weight is before[f"lstm.{name}"] for weight, name in zip(
            model.lstm._flat_weights, model.lstm._flat_weights_names, strict=True))  # fmt: skip
        assert model.head.weight is model.words.weight


@pytest.mark.slow
def test_what_came_from_the_host_lives_as_long_as_the_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    def noted(device: torch.device) -> HostValues:
        values = HostValues(device)
        made.append(weakref.ref(values))
        return values

    monkeypatch.setattr(aliases, "HostValues", noted)
    replay = recorded(Whole(Table()), torch.randn(6, 8))
    gc.collect()
    assert made[0]() is not None
    gc.disable()  # a recording's memory is needed when it is dropped, and some collect by hand
    try:
        del replay
        assert made[0]() is None
    finally:
        gc.enable()


def test_a_number_from_the_host_is_the_same_in_each_replay() -> None:
    def adds(model: Any, x: torch.Tensor) -> Any:
        total = torch.tensor(1.0, device=x.device)
        total += x.detach().mean()
        return model.layer(x) * total

    model = Made(adds, layer=nn.Linear(8, 3))
    replay = recorded(Whole(model), torch.randn(6, 8))
    for _ in range(3):
        x = torch.randn(6, 8)
        assert torch.equal(replay(x)[0], model(x))


def test_weights_with_the_same_gradient_do_not_share_its_memory() -> None:
    one, two, three = (nn.Parameter(torch.ones(3)) for _ in range(3))
    model = Made(lambda m, x: x + m.one + m.two + m.three, one=one, two=two, three=three)
    replay = recorded(Whole(model), torch.zeros(3))
    replay(torch.zeros(3))[0].sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)
    for parameter in model.parameters():
        assert parameter.grad.norm() == pytest.approx(0.5 / 3**0.5, rel=1e-3)


def test_an_input_gets_its_gradient_and_integers_none() -> None:
    model = nn.Linear(8, 3)
    whole = Whole(model, lambda x, y: (model(x) * y, model(x).argmax(1)))
    replay = recorded(whole, torch.randn(6, 8, requires_grad=True), torch.randn(6, 1))
    x, y = torch.randn(6, 8, requires_grad=True), torch.randn(6, 1)
    scores, best = replay(x, y)
    assert not best.requires_grad
    assert torch.equal(best, model(x).argmax(1))
    scores.sum().backward()
    mine = x.grad, model.weight.grad.clone()
    x.grad = None
    model.zero_grad()
    (model(x) * y).sum().backward()
    assert torch.equal(mine[0], x.grad)
    assert torch.equal(mine[1], model.weight.grad)


def test_only_one_of_two_outputs_is_used() -> None:
    model = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
    whole = Whole(model, lambda x: (model[0](x), model[1](x)))
    replay = recorded(whole, torch.randn(6, 8))
    x = torch.randn(6, 8)
    sum(output.sum() for output in replay(x)).backward()
    model.zero_grad()
    replay(x)[1].sum().backward()
    assert not model[0].weight.grad.any()
    assert torch.equal(model[1].bias.grad, torch.full((3,), 6.0))


def test_an_output_without_gradient_has_none() -> None:
    model = nn.Linear(8, 3)
    replay = recorded(Whole(model, lambda x: (model(x), model(x).detach())), torch.randn(6, 8))
    scores, shown = replay(torch.randn(6, 8))
    assert (scores.requires_grad, shown.requires_grad) == (True, False)


class Operators(TorchDispatchMode):
    """Notes their names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_no_gradient_is_made_for_an_output_that_is_not_used() -> None:
    model = nn.Linear(8, 3)
    replay = recorded(Whole(model, lambda x: (model(x), x * model.bias.sum())), torch.randn(6, 8))
    loss = replay(torch.randn(6, 8))[0].sum()
    with Operators() as made:
        loss.backward()
    assert "aten::zero_" in made.names, "the recording's own place"
    assert not {"aten::zeros", "aten::new_zeros", "aten::zeros_like"} & set(made.names)


def test_gradients_reach_the_program_without_a_copy() -> None:
    model = nn.Linear(8, 3)
    replay = recorded(Whole(model), torch.randn(6, 8))
    found = []
    for _ in range(2):
        model.zero_grad()
        replay(torch.randn(6, 8))[0].sum().backward()
        found.append(model.weight.grad)
    assert found[0].data_ptr() == found[1].data_ptr()


def test_second_derivatives_are_an_error_and_not_wrong() -> None:
    model = nn.Sequential(nn.Linear(8, 3), nn.Tanh())
    replay = recorded(Whole(model), torch.randn(6, 8))
    loss = replay(torch.randn(6, 8))[0].square().sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.stack([gradient.sum() for gradient in gradients]).sum().backward()


class OwnLeaves(Tapes):
    """Looks for the nodes that the recorded passes end in, as a GPU's recording does.

    The node that adds to a weight's `.grad` belongs to the stream on which it was made.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.programs = list(model.parameters())
        self.seen = 0

    def record(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        result, replay = super().record(work)
        nodes = [output.grad_fn for output in result if output is not None]
        while nodes:
            node = nodes.pop()
            leaf = getattr(node, "variable", None)
            self.seen += leaf is not None
            assert all(leaf is not parameter for parameter in self.programs)
            nodes += [following for following, _ in node.next_functions] if node else []
        return result, replay


@pytest.mark.parametrize("make", MODELS[:3])
def test_no_node_of_a_loss_that_lives_is_recorded(make: Callable[[], nn.Module]) -> None:
    model = make()
    held = model(torch.randn(6, 8)).sum()
    recorder = OwnLeaves(model)
    aliases.record(Whole(model), (torch.randn(6, 8),), recorder)
    assert recorder.seen >= len(recorder.programs)
    held.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# What is refused ---------------------------------------------------------------------------------


def hidden() -> nn.Module:
    """A weight in a list, of which no module knows."""
    more = [torch.ones(3, requires_grad=True)]
    return Made(lambda model, x: model.layer(x) * model.more[0], layer=nn.Linear(8, 3), more=more)


def kept() -> nn.Module:
    """Uses the parameter that it once had, not the one in its place."""
    layer = nn.Linear(8, 3)
    return Made(lambda model, x, weight=layer.weight: functional.linear(x, weight), layer=layer)


class Odd(nn.Parameter):
    pass


def odd() -> nn.Module:
    model = nn.Linear(8, 3)
    model.weight = Odd(torch.ones(3, 8))
    return model


def packs(model: Any, x: torch.Tensor) -> Any:
    """Moves what is saved for the backward pass to where the device cannot find it."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return model.layer(x).sin()


def writes(model: Any, x: torch.Tensor) -> Any:
    x.detach().view(-1).mul_(0.5)
    return model.layer(x)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (hidden, aliases.AROUND),
        (kept, aliases.AROUND),
        (odd, aliases.OTHER_PARAMETERS),
        (lambda: Recomputing(False), aliases.RECOMPUTES),
        (lambda: Recomputing(True), aliases.RECOMPUTES),
        (lambda: Made(packs, layer=nn.Linear(8, 3)), aliases.PACKS),
        (lambda: Made(writes, layer=nn.Linear(8, 3)), aliases.WRITES),
    ],
)
def test_what_would_stop_training_is_refused(make: Callable[[], nn.Module], reason: str) -> None:
    model = make()
    twin = copy.deepcopy([p.detach() for p in model.parameters()])
    with pytest.raises(NotRecordable) as refused:
        recorded(Whole(model), torch.randn(6, 8, requires_grad=True))
    assert str(refused.value) == reason
    assert all(map(torch.equal, twin, model.parameters()))
