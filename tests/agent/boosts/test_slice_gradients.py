"""slice-gradients: the same slices, gradients, views and errors, whatever is read and written."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from flatout_agent.boosts import slice_gradients as boost
from flatout_agent.speedups import slice_gradients
from switched import switched, taken

ROWS, STEPS, WIDE = 3, 6, 4


@pytest.fixture(autouse=True)
def small_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    monkeypatch.setattr(slice_gradients, "SMALLEST", 2 * WIDE)
    before = dict(vars(torch.Tensor))
    yield
    assert dict(vars(torch.Tensor)) == before


def values() -> torch.Tensor:
    return torch.arange(float(ROWS * STEPS * WIDE)).reshape(ROWS, STEPS, WIDE).sin()


def gradients(use: Callable[[Any], Any]) -> list[torch.Tensor]:
    """What the program computes, and its gradient."""
    x = values().requires_grad_()
    result = use(x * 1.5)
    (result.sin() * result).sum().backward()
    assert x.grad is not None
    return [result.detach(), x.grad]


def loop(x: Any) -> Any:
    state = x.new_zeros(ROWS, WIDE)
    for step in range(STEPS):
        state = torch.tanh(x[:, step] + state * 0.5)
    return state


def from_the_end(x: Any) -> Any:
    return sum(x[:, -step - 1] * step for step in range(STEPS))


def shifted(x: Any) -> Any:
    return x[:, 1:] * x[:, :-1]


def windows(x: Any) -> Any:
    return sum(x[:, step : step + 4].square() for step in range(STEPS - 3))


def corners(x: Any) -> Any:
    return x[0, :, 1] * x[1, ..., 2] + x[None, 2, :, 3][0] * x[2, ::2, 0].sum()


def the_same_step_again(x: Any) -> Any:
    return x[:, 2] * x[:, 3] + x[:, 2].sin() + x[:, 2].cos() + x.sum(1)


def changed_between(x: Any) -> Any:
    first = x[:, 0] * 2
    x.mul_(0.5)
    return first + x[:, 0] + x[:, 1] + x[:, 2]


def slice_changed_in_place(x: Any) -> Any:
    for step in range(STEPS):
        part = x[:, step]
        part += part.detach() * step
    return x * x[:, 1:2]


def iterated(x: Any) -> Any:
    return sum(row * number for number, row in enumerate(x))


def written(x: Any) -> Any:
    outputs = torch.zeros(ROWS, STEPS, WIDE)
    for step in range(STEPS):
        outputs[:, step] = x[:, step].tanh()
    return outputs


def written_in_rows(x: Any) -> Any:
    outputs = torch.empty(STEPS, ROWS, WIDE)
    for step in range(STEPS):
        outputs[-step] = x[:, step] * 2
    return outputs


def read_back(x: Any) -> Any:
    outputs = torch.zeros(ROWS, STEPS, WIDE)
    outputs[:, 0] = x[:, 0]
    for step in range(1, STEPS):
        outputs[:, step] = outputs[:, step - 1].clone() * 0.9 + x[:, step] + outputs.sum(1).clone()
    return outputs


def written_again(x: Any) -> Any:
    outputs = torch.zeros(ROWS, STEPS, WIDE)
    for step in (0, 1, 2, 1, 3, 3, 4):
        outputs[:, step] = x[:, step] * (step + 1)
    return outputs


def rounded_values(x: Any) -> Any:
    outputs = torch.zeros(ROWS, STEPS, WIDE)
    for step in range(STEPS):
        outputs[:, step] = x[:, step].bfloat16()
    return outputs


def written_beside_others(x: Any) -> Any:
    outputs = torch.zeros(ROWS, STEPS, WIDE)
    for step in range(3):
        outputs[:, step] = x[:, step]
        outputs[:, step, 0] = 1.0
        outputs[:, step + 1] = x[0, step]  # broadcast
    outputs[:, 5] = x[:, 5]
    outputs.mul_(2)
    outputs[:, 4] = x[:, 4]
    return outputs


def buffer_with_a_gradient(x: Any) -> Any:
    outputs = x.clone()
    for step in range(STEPS):
        outputs[:, step] = x[:, step] * 3
    return outputs


def written_by_arrays(x: Any) -> Any:
    outputs = torch.zeros(ROWS, STEPS, WIDE)
    for step in range(ROWS):
        outputs[step, numpy.array([0, 2])] = x[step, :2] * 3
        outputs[step, torch.tensor([1, 3])] = x[step, 2:4] * 5
    return outputs


def view_of_a_buffer(x: Any) -> Any:
    whole = torch.zeros(STEPS, ROWS, WIDE)
    outputs = whole.transpose(0, 1)
    for step in range(STEPS):
        outputs[:, step] = x[:, step] * 3
    return whole


USES = [
    loop, from_the_end, shifted, corners, the_same_step_again,
    changed_between, written, written_in_rows, read_back, written_again, rounded_values,
    written_beside_others, buffer_with_a_gradient, view_of_a_buffer, written_by_arrays, windows,
]  # fmt: skip
PASSED_ON = [slice_changed_in_place, iterated]
each_use = pytest.mark.parametrize("use", [*USES, *PASSED_ON], ids=lambda use: use.__name__)


@each_use
def test_the_same_bits(use: Callable[[Any], Any]) -> None:
    plain = gradients(use)
    with switched(boost) as applied:
        for _ in range(3):
            for ours, theirs in zip(gradients(use), plain, strict=True):
                if use in (windows, the_same_step_again, corners):  # numbers that are used often
                    torch.testing.assert_close(ours, theirs)
                else:
                    assert torch.equal(ours, theirs)
        assert taken(applied) or use in PASSED_ON


@pytest.mark.parametrize("seed", range(25))
def test_programs_at_random(seed: int) -> None:
    def program(x: Any) -> Any:
        draw = random.Random(seed)
        buffers = [torch.zeros(ROWS, STEPS, WIDE) for _ in range(2)]
        state = x[:, 0]
        for _ in range(12):
            step, buffer = draw.randrange(STEPS), draw.choice(buffers)
            what = draw.randrange(6)
            if what == 0:
                state = state + draw.choice([x, buffer])[:, step].clone()
            elif what == 1:
                state = torch.tanh(state + x[draw.randrange(ROWS), step])
            elif what == 2:
                x = x * 1.1
            elif what == 3:
                state = state * x[:, step : step + 2].mean(1)
            else:
                buffer[:, step] = state
        return state.sum() + (buffers[0] * buffers[1].cos()).sum() + buffers[1].sum()

    plain = gradients(program)
    with switched(boost):
        for _ in range(2):
            for ours, theirs in zip(gradients(program), plain, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def look_ups(x: Any) -> Any:
    weight = x.reshape(-1, WIDE)
    return sum(nn.functional.embedding(words % 18, weight).sin() for words in WORDS)


@pytest.mark.parametrize("use", [loop, written, read_back, look_ups])
def test_gradients_of_gradients(use: Callable[[Any], Any]) -> None:
    def second() -> torch.Tensor:
        x = values().requires_grad_()
        (first,) = torch.autograd.grad(use(x * 1.5).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    plain = second()
    with switched(boost):
        for _ in range(2):
            torch.testing.assert_close(second(), plain)


def test_every_way_to_ask_for_the_gradient() -> None:
    def asked() -> list[Any]:
        leaf = values().requires_grad_()
        x = leaf * 2
        x.retain_grad()
        seen: list[Any] = []
        x.register_hook(lambda gradient: seen.append(gradient.clone()))
        loss = (loop(x) + x[:, 1] * x[:, 2]).sum()
        of_x, of_leaf = torch.autograd.grad(loss, [x, leaf], retain_graph=True)
        only_x = torch.autograd.grad(loss, x, retain_graph=True)[0]
        loss.backward(retain_graph=True)
        loss.backward()
        return [of_x, of_leaf, only_x, x.grad, leaf.grad, *seen]

    plain = asked()
    with switched(boost):
        for _ in range(2):
            torch.testing.assert_close(asked(), plain)


WORDS = torch.arange(12).reshape(6, 2) * 5 % 24
KINDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "padding": {"padding_idx": 5},
    "padding from the end": {"padding_idx": -4},
    "sparse": {"sparse": True},
    "by frequency": {"scale_grad_by_freq": True},
    "clipped": {"max_norm": 1.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_embedding_that_is_looked_up_again_and_again(kind: str) -> None:
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        embedding = nn.Embedding(24, WIDE, **KINDS[kind])
        optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
        for _ in range(3):
            state = torch.zeros(2, WIDE)
            for words in WORDS:
                state = torch.tanh(state + embedding(words))
            (state.square().sum() + embedding(torch.arange(24)).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return embedding.weight.detach()

    plain = trained()
    with switched(boost) as applied:
        torch.testing.assert_close(trained(), plain)
        assert (taken(applied) > 0) == (kind in ("usual", "padding", "padding from the end"))


def test_a_backward_pass_within_another() -> None:
    """Look-ups that are computed again in the backward pass use the same second view."""

    def gradient() -> torch.Tensor:
        weight = values().reshape(-1, WIDE).requires_grad_()

        def segment(state: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                state = torch.tanh(state + nn.functional.embedding(words, weight))
            return state

        state = weight[0] + weight[1] + weight[2]
        for words in WORDS[:3] % 18:
            state = torch.utils.checkpoint.checkpoint(segment, state, words, use_reentrant=True)
            state = segment(state, words)
        state.square().sum().backward()
        assert weight.grad is not None
        return weight.grad

    plain = gradient()
    with switched(boost):
        for _ in range(2):
            torch.testing.assert_close(gradient(), plain)


def test_a_backward_pass_that_was_interrupted() -> None:
    stop = True

    def interrupt(gradient: torch.Tensor) -> None:
        if stop:
            raise RuntimeError("interrupted")

    with switched(boost):
        x = values().requires_grad_()
        scaled = x * 1.5
        parts = [scaled[:, step] for step in range(STEPS)]
        first = parts[0] * 2
        first.register_hook(interrupt)
        loss = first.sum() + sum(part.square().sum() for part in parts[1:])
        with pytest.raises(RuntimeError, match="interrupted"):
            loss.backward(retain_graph=True)
        x.grad, stop = None, False
        loss.backward()
    theirs = values() * 1.5 * 2 * 1.5
    theirs[:, 0] = 3
    torch.testing.assert_close(x.grad, theirs)


def test_errors_stay_those_of_torch() -> None:
    def errors() -> list[str]:
        told = []
        for wrong in (
            lambda x: [x[:, 1], x[:, 99]],
            lambda x: [x[0, 1, 2, 3], x[1, 1, 1, 1]],
            lambda x: [part.add_(1) for part in x.unbind(1)],
            lambda x: (x[:, 0] * x[:, 1], x.mul_(2))[0].sum().backward(),
            lambda x: torch.zeros(ROWS, STEPS, WIDE).__setitem__((0, 0, 0, 0), x[0, 0]),
            lambda x: torch.zeros(ROWS, STEPS, WIDE).__setitem__(ROWS, x[0]),
            lambda x: torch.zeros(ROWS, STEPS, WIDE).requires_grad_().__setitem__(0, x[0]),
        ):
            with pytest.raises((IndexError, RuntimeError)) as error:
                wrong(values().requires_grad_() * 1)
            told.append(str(error.value).split("[torch")[0])
        return told

    plain = errors()
    with switched(boost):
        for _ in range(2):
            assert errors() == plain


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_transformed_and_traced_calls_are_passed_on() -> None:
    with switched(boost) as applied:
        x = values()
        expected = torch.func.grad(lambda y: loop(y).sum())(x)
        torch.testing.assert_close(expected, gradient_of_sum(x))
        before = taken(applied)
        torch.func.vmap(torch.func.grad(lambda y: (y[0] * y[1] * y[2]).sum()))(x)
        torch.jit.trace(lambda y: y[:, 0] + y[:, 1] + y[:, 2], x.requires_grad_())
        assert taken(applied) == before


def gradient_of_sum(x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(loop(x).sum(), x)[0]


def test_nothing_keeps_a_tensor_alive() -> None:
    with switched(boost) as applied:
        for backward in (True, False):
            for use in (loop, written, read_back):
                x = values().requires_grad_()
                scaled = x * 1.5
                alive = weakref.ref(scaled)
                loss = use(scaled).sum()
                del scaled
                if backward:
                    loss.backward()
                    assert alive() is None  # though the loss is still there
                del loss
                assert alive() is None
        assert taken(applied)


def test_of_tensors_changed_in_place_only_some_are_kept_alive() -> None:
    """Each refers to itself by the slices that were read of it, until a backward pass."""
    alive = []
    with switched(boost):
        for _ in range(2 * slice_gradients.MOST_VIEWS):
            x = values().requires_grad_() * 1.5
            x.mul_(x[:, 0:1].detach() + x[:, 1:2] + x[:, 2:3].clone())
            alive.append(weakref.ref(x))
            del x
    assert sum(kept() is not None for kept in alive) <= slice_gradients.MOST_VIEWS


def test_memory_and_history_that_are_replaced() -> None:
    """None of this changes the tensor's version."""

    def found() -> list[torch.Tensor]:
        weights = nn.Parameter(values())
        kept = (weights[:, 0] + weights[:, 1] + weights[:, 2]).sum()  # its graph stays
        weights.data = torch.ones_like(weights)
        after = weights[:, 0] + weights[:, 1]
        state = weights * 2
        earlier = state[:, 0].sum() + state[:, 1].sum()
        state.detach_().requires_grad_()
        (state[:, 0].square().sum() + state[:, 1].sum()).backward()
        embedding = nn.Embedding(24, WIDE)
        early = embedding(WORDS[0]).sum() + embedding(WORDS[1]).sum()
        embedding.double()
        late = embedding(WORDS[0])
        assert late.dtype is torch.float64
        assert state.grad is not None
        assert weights.grad is None
        return [after.detach(), state.grad, kept.detach(), earlier.detach(), early.detach() * 0]

    plain = found()
    with switched(boost):
        for _ in range(2):
            torch.testing.assert_close(found(), plain)


def test_gradients_whose_memory_the_program_changes() -> None:
    def clamped(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(ROWS, WIDE)
        for step in range(STEPS):
            state = state + x[:, step]
            state.register_hook(lambda gradient: gradient.mul_(0.5))
        return state

    def emptied(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        weight.grad.zero_()

    def stolen(x: torch.Tensor) -> torch.Tensor:
        shifts = [nn.Parameter(torch.ones(ROWS, WIDE)) for _ in range(STEPS)]
        for shift in shifts:
            shift.register_post_accumulate_grad_hook(emptied)
        return torch.stack([x[:, step] + shift for step, shift in enumerate(shifts)])

    for use in (clamped, stolen):
        plain = gradients(use)
        with switched(boost):
            for _ in range(2):
                torch.testing.assert_close(gradients(use), plain)


def test_a_gradient_within_a_transformation() -> None:
    """Of inputs, while the program's own weights are read as they are."""
    weights, embedding = nn.Parameter(values()), nn.Embedding(24, WIDE)

    def value(x: torch.Tensor) -> torch.Tensor:
        read = weights[:, 0] * weights[:, 1] + weights[:, 2]
        return (read * x).sum() + (embedding(WORDS[0]) + embedding(WORDS[1])).sum() * x.sum()

    x = torch.ones(ROWS, WIDE)
    plain = torch.func.grad(value)(x)
    with switched(boost):
        for _ in range(2):
            value(x).backward()
            torch.testing.assert_close(torch.func.grad(value)(x), plain)
            torch.testing.assert_close(torch.func.jacrev(value)(x), plain)


def test_weights_can_be_swapped_and_made_for_inference() -> None:
    with switched(boost):
        embedding = nn.Embedding(24, WIDE)
        for _ in range(2):
            (embedding(WORDS[0]) + embedding(WORDS[1])).sum().backward()
        future = torch.__future__
        future.set_swap_module_params_on_conversion(True)
        try:
            embedding.zero_grad()
            assert embedding.double().weight.dtype is torch.float64
        finally:
            future.set_swap_module_params_on_conversion(False)
        with torch.inference_mode():
            table = nn.Parameter(values().reshape(-1, WIDE))
        for _ in range(2):
            found = [nn.functional.embedding(words % 18, table) for words in WORDS[:2]]
            assert found[0].shape == (2, WIDE)


def test_no_gradient_of_a_written_slice_is_none() -> None:
    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return None

    with switched(boost) as applied:
        outputs, part = torch.zeros(ROWS, STEPS, WIDE), nn.Parameter(torch.ones(ROWS, WIDE))
        for step in range(STEPS):
            outputs[:, step] = part
        assert taken(applied)
        Stop.apply(outputs).backward()
        assert part.grad is None


def test_subclasses_are_asked_with_torchs_own_function() -> None:
    asked = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = values().as_subclass(Watched)
    own = torch.Tensor.__getitem__, torch.Tensor.__setitem__
    with switched(boost):
        x[:, 1]
        x[:, 1] = 2.0
    assert asked == [*own]


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    take = slice_gradients._Pass.take

    def watched(backward_pass: Any, *args: Any) -> None:
        nonlocal most
        take(backward_pass, *args)
        most = max(most, sum(gradient.numel() for _, gradient in backward_pass._slices))

    monkeypatch.setattr(slice_gradients._Pass, "take", watched)

    def many(x: Any) -> Any:
        return sum(x[:, step % 2 :].sum(1) * step for step in range(40))

    plain = gradients(many)
    with switched(boost):
        torch.testing.assert_close(gradients(many), plain)
    assert WIDE < most <= slice_gradients.MOST_HELD * ROWS * STEPS * WIDE


def test_a_graph_recorded_before_the_undo() -> None:
    plain = gradients(read_back)
    with switched(boost):
        x = values().requires_grad_()
        result = read_back(x * 1.5)
    (result.sin() * result).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, plain[1])


def test_it_says_why_nothing_was_taken() -> None:
    with switched(boost) as applied:
        gradients(lambda x: x.unbind(1)[2] + x[:, -1])
        assert applied.engaged() == (
            False,
            "no slices of a tensor of 65,536 numbers were read or written in turn",
        )
