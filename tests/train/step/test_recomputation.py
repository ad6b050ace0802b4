from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flatout_agent.speedups.repeated_blocks import repeated_blocks
from flatout_train.errors import UsageError
from flatout_train.step.recomputation import recompute
from train.step.limited_memory import Block, Blocks, Memory


def gradient(run: Any, x: Tensor, model: nn.Module | None = None) -> list[Tensor]:
    model = run if model is None else model
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model.zero_grad()
    run(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def test_the_gradient_is_the_same_to_the_last_bit() -> None:
    memory = Memory(float("inf"))
    model, x = Blocks(memory, dropout=0.3), torch.randn(16, 8)
    wanted, after, peak = gradient(model, x), torch.get_rng_state(), memory.peak
    names, keys = [n for n, _ in model.named_modules()], list(model.state_dict())
    undo = recompute(model)
    memory.peak = 0
    assert equal(gradient(model, x), wanted)
    assert torch.equal(torch.get_rng_state(), after)
    assert memory.peak < peak
    assert [n for n, _ in model.named_modules()] == names
    assert list(model.state_dict()) == keys
    undo()
    memory.peak = 0
    assert equal(gradient(model, x), wanted)
    assert memory.peak == peak
    assert all(type(block) is Block for block in model.blocks)


class Norm(nn.Module):
    """A block with running statistics, and with random numbers of Python's and NumPy's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.other = nn.InstanceNorm1d(1, track_running_stats=True)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        y = self.norm(self.linear(x)) * (1.0 + random.random() + float(np.random.rand()))
        return x + scale * self.other(y[:, None])[:, 0].relu()


def test_running_statistics_count_each_batch_once_and_the_host_draws_alike() -> None:
    model, x = nn.Sequential(*(Norm() for _ in range(3))), torch.randn(16, 8)
    twin = copy.deepcopy(model)
    wanted = gradient(twin, x)
    drawn = random.random(), np.random.rand()
    undo = recompute(model)
    assert equal(gradient(model, x), wanted)
    assert (random.random(), np.random.rand()) == drawn
    found, expected = model.state_dict(), twin.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["0.norm.num_batches_tracked"] == 1
    undo()


def test_evaluation_runs_as_written() -> None:
    model, x = Blocks(Memory(float("inf"))), torch.randn(4, 8)
    recompute(model)
    model.eval()
    out = model(x)
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda t: t):
        model.blocks[0](x)
    assert kept  # nothing was taken away for a second run
    with torch.no_grad():
        model.train()
        assert torch.equal(model(x), out)


def test_a_copy_and_a_pickle_are_as_the_model_was() -> None:
    model, x = nn.Sequential(*(Norm() for _ in range(3))), torch.randn(4, 8)
    recompute(model)
    twin, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert [type(block) for block in [*twin, *loaded]] == [Norm] * 6
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    gradient(loaded, x)
    assert any(parameter.any() for parameter in model.parameters())  # a copy of its own
    assert isinstance(model[0], Norm)
    assert type(model[0]).__name__ == "Norm"


def test_hooks_run_once_and_keywords_arrive() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Norm() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x, scale=0.5)
            return x

    model, x, calls = Scaled(), torch.randn(4, 8), []
    model.blocks[0].register_forward_hook(lambda *args: calls.append(1))
    wanted = gradient(copy.deepcopy(model), x)
    calls.clear()
    recompute(model)
    assert equal(gradient(model, x), wanted)
    assert calls == [1]


def row(make: Any, count: int) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(count))


class Holder(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Stage(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = row(Norm, count)


class Expert(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.ReLU())


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(2), row(Expert, 3)


def convolution() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU())


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (Holder(stem=nn.Linear(2, 2), blocks=row(Norm, 3), head=nn.Linear(2, 2)), [Norm] * 3),
        (Holder(stages=row(lambda: Stage(6), 4)), [Norm] * 24),  # stages of blocks
        (Holder(encoder=Stage(3), decoder=Stage(3)), [Norm] * 6),
        (Holder(one=Norm(), two=Norm(), head=nn.Linear(2, 2)), [Norm] * 2),
        (Holder(layers=row(Mixture, 5)), [Mixture] * 5),  # not the experts within
        (nn.Sequential(convolution(), convolution()), [nn.Sequential] * 2),
        (
            Holder(one=nn.Sequential(Norm(), Norm()), two=nn.Sequential(Norm(), Norm())),
            [Norm] * 4,  # as in ResNet
        ),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, batch_first=True), 3),
            [nn.TransformerEncoderLayer] * 3,
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), []),
        (Holder(blocks=row(nn.ReLU, 3), shared=nn.ModuleList([nn.Linear(2, 2)] * 2)), []),
    ],
)
def test_which_blocks_are_recomputed(model: nn.Module, kinds: list[type[nn.Module]]) -> None:
    assert [type(block) for block in repeated_blocks(model)] == kinds


def test_a_model_without_blocks_that_can_change_is_told() -> None:
    with pytest.raises(UsageError, match="Linear has no repeated blocks to recompute"):
        recompute(nn.Linear(2, 2))
    model = Blocks(Memory(float("inf")))
    for block in model.blocks:
        block.forward = block.forward  # as accelerate's hooks do
    with pytest.raises(UsageError, match="no repeated blocks"):
        recompute(model)


def test_hugging_face_models_with_their_cache() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=3, n_head=2, use_cache=True
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).train()
    ids = torch.randint(50, (2, 8))

    def step() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        written = [output.past_key_values.get_seq_length(layer) for layer in range(3)]
        assert max(written) <= ids.shape[1]  # not once more by the second run
        return [p.grad.clone() for p in model.parameters()]

    wanted = step()
    undo = recompute(model)
    for found, grad in zip(step(), wanted, strict=True):  # the cache lays keys out otherwise
        torch.testing.assert_close(found, grad, rtol=1e-5, atol=1e-8)
    undo()
    assert equal(step(), wanted)


class Plain(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 32), nn.Linear(32, 8), norm

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.down(torch.tanh(self.up(x))))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize("how", ["blocks", "whole"])
def test_compiled_models_are_compiled_anew(how: str) -> None:
    torch._dynamo.reset()
    rows = [Plain(nn.Dropout(0.2)) for _ in range(3)]
    model, x = nn.Sequential(*rows, nn.Linear(8, 2)), torch.randn(64, 8)
    run: Any = model
    if how == "blocks":
        for block in model[:3]:
            block.compile()
    else:
        run = torch.compile(lambda x: model(x))

    def grads_and_kept() -> tuple[list[Tensor], int]:
        kept: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            grads = gradient(run, x, model)
        return grads, sum(kept)

    wanted, most = grads_and_kept()
    undo = recompute(model)
    found, kept = grads_and_kept()
    assert equal(found, wanted)
    assert kept < most
    undo()
    again, kept = grads_and_kept()
    assert equal(again, wanted)
    assert kept == most


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_with_running_statistics_run_as_written() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(*(Plain(nn.BatchNorm1d(8)) for _ in range(3)))
    for block in model:
        block.compile()
    recompute(model)
    gradient(model, torch.randn(16, 8))
    assert model[0].norm.num_batches_tracked == 1


@pytest.mark.gpu
def test_on_a_gpu_dropout_falls_alike_and_memory_is_saved() -> None:
    # Norms first: behind a norm the mean of squares is constant, and all gradients are nothing.
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.1, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()
    x = torch.randn(16, 128, 256, device="cuda")

    def step() -> tuple[list[Tensor], int]:
        gradient(model, x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        grads = gradient(model, x)
        return grads, torch.cuda.max_memory_allocated() - before

    wanted, most = step()
    undo = recompute(model)
    found, peak = step()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert peak < 0.9 * most
    undo()
