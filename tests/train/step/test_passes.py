"""Memory that runs out, injected where it can: the gradient is that of an undisturbed run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flatout
from flatout_train.step import train_step, update
from flatout_train.step.graph.whole_step import WholeStep
from train.step.graph.fake import FakeRecorder
from train.step.limited_memory import Held, Memory

PLAIN: dict[str, Any] = {"precision": "fp32", "compile": False}


class OutAt(nn.Module):
    """Memory runs out at these calls of its forward, or of its backward."""

    def __init__(self, forward: tuple[int, ...] = (), backward: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.at = {"forward": forward, "backward": backward}
        self.calls = {"forward": 0, "backward": 0}

    def count(self, where: str) -> None:
        self.calls[where] += 1
        if self.calls[where] in self.at[where]:
            raise torch.OutOfMemoryError(f"{where} {self.calls[where]}")

    def forward(self, value: Tensor) -> Tensor:
        self.count("forward")
        if value.requires_grad:
            value.register_hook(lambda grad: self.count("backward"))
        return value


def network(out: nn.Module, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    middle = nn.BatchNorm1d(6, momentum=0.3) if norm else nn.LayerNorm(6)
    return nn.Sequential(nn.Linear(4, 6), middle, nn.Tanh(), out, nn.Linear(6, 3)).double()


def batches(count: int = 7) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return [
        (torch.randn(rows, 4, dtype=torch.float64), torch.randint(0, 3, (rows,)))
        for rows in [8, 6, 9, 12, 4, 8, 10][:count]
    ]


def run(out: nn.Module, accumulate: int, norm: bool = False) -> tuple[nn.Module, list[float], Any]:
    model = network(out, norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = flatout.train_step(model, F.cross_entropy, optimizer, accumulate=accumulate, **PLAIN)
    losses = [step(batch).item() for batch in batches()]
    step.flush()
    return model, losses, step


def assert_alike(one: nn.Module, other: nn.Module) -> None:
    expected = other.state_dict()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12, msg=name)
    for here, there in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(here.grad, there.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("at", [(1,), (3,), (4, 5), (6, 9, 10)])
def test_weights_and_losses_are_those_of_an_undisturbed_run(
    accumulate: int, where: str, at: tuple[int, ...]
) -> None:
    plain, expected, _ = run(OutAt(), accumulate)
    out = OutAt(**{where: at})
    model, losses, step = run(out, accumulate)
    assert out.calls[where] > 7
    assert losses == pytest.approx(expected, rel=1e-12)
    assert_alike(model, plain)
    assert step.metrics().losses == pytest.approx(run(OutAt(), accumulate)[2].metrics().losses)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_statistics_count_each_batch_once(accumulate: int, where: str, at: int) -> None:
    """A single failure is repeated as it is, or split: then batches have other statistics."""
    plain, expected, _ = run(OutAt(), accumulate, norm=True)
    model, losses, step = run(OutAt(**{where: (at,)}), accumulate, norm=True)
    halved = step.metrics().splits
    if not halved:
        assert losses == pytest.approx(expected, rel=1e-12)
        assert_alike(model, plain)
    assert model[1].num_batches_tracked.item() == 7 + halved


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_call_done_again_drops_out_the_same(where: str) -> None:
    data = [(torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))) for _ in range(4)]
    models = []
    for at in ((), (3,)):
        out = OutAt(**{where: at})
        model = network(nn.Sequential(nn.Dropout(0.5), out))
        step = flatout.train_step(
            model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), **PLAIN
        )
        torch.manual_seed(3)
        for batch in data:
            step(batch)
        assert step.metrics().splits == 0
        assert out.calls[where] == 4 + len(at)
        models.append(model)
    assert_alike(*models)


def test_a_split_batch_weighs_its_parts_by_their_tokens() -> None:
    out = OutAt(forward=(1,))
    model = network(out)
    step = flatout.train_step(
        model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0), weigh="tokens", **PLAIN
    )
    input, target = batches(1)[0]
    target[:3] = -100
    loss = step((input, target))
    assert step.metrics().splits == 1
    twin = network(OutAt())
    whole = F.cross_entropy(twin(input), target)
    whole.backward()
    torch.testing.assert_close(loss, whole.detach(), rtol=1e-12, atol=0)
    assert_alike(model, twin)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes steps as on CUDA, with tensors on the CPU and a stand-in for the graphs."""
    monkeypatch.setattr(train_step, "HostUpdate", update.DeviceUpdate)

    def made(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, fused=True)
        step = flatout.train_step(model, F.cross_entropy, optimizer, **PLAIN)
        cpu, step.device = step.device, torch.device("cuda")
        on_cuda = step._make_graph_step()
        step.device = cpu
        assert on_cuda is not None
        step._graph_step = WholeStep(
            step._body,
            model,
            optimizer,
            cpu,
            recorder=FakeRecorder(lambda: model.state_dict(keep_vars=True).values()),
            undo=on_cuda._undo,
        )
        return step

    return made


def test_memory_that_ends_beside_a_recording_is_taken_from_it(recording: Any) -> None:
    """Each batch fits, but none fits beside the activations that the recording keeps."""
    memory = Memory(8 * 20)
    model = nn.Sequential(nn.Linear(8, 8), Held(memory), nn.Tanh(), nn.Linear(8, 3)).double()
    step = recording(model)
    one, other = (
        (torch.randn(rows, 8, dtype=torch.float64), torch.randint(0, 3, (rows,)))
        for rows in (16, 12)
    )
    for _ in range(6):
        step(one)
    assert step.notes["graph"] == "recorded"
    assert memory.held == 8 * 16
    for batch in (other, one, other):
        step(batch)
    assert step.metrics().splits == 0
    assert memory.held == 0
    assert step.notes["graph"] == (
        "no: an eager step did not fit into memory beside the recorded ones"
    )
    assert step.notes["memory"] == "everything fitted"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rehearsal_that_runs_out_of_memory_counts_its_batch_once(
    recording: Any, where: str
) -> None:
    plain, batch = network(OutAt(), norm=True), batches(1)[0]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.125)  # as float32 the same
    expected = flatout.train_step(plain, F.cross_entropy, optimizer, **PLAIN)
    model = network(OutAt(**{where: (4,)}), norm=True)
    step = recording(model)
    for _ in range(6):
        assert step(batch).item() == pytest.approx(expected(batch).item(), rel=1e-12)
    assert step.notes["graph"] == "no: memory ran out on the side stream"
    assert model[1].num_batches_tracked.item() == 6
    assert_alike(model, plain)
    assert step.metrics().splits == 0
