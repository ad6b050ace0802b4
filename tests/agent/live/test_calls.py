"""A recorded call made again: the same gradients to the last bit, and nothing left behind."""

from __future__ import annotations

import dataclasses
import random
import sys
import types
from collections import deque
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from flatout_agent.boost import Risk
from flatout_agent.boosts import cuda_graphs
from flatout_agent.live import calls, guard
from flatout_agent.live.calls import RepeatedCall
from flatout_agent.speedups import compiling, forward_state, own_hooks
from guarded import (
    Attending,
    Made,
    Tagger,
    conv,
    cross_entropy,
    differences,
    everything,
    images,
    mlp,
    record,
    vectors,
    words,
)
from planted import planted, times


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def repeat(model: nn.Module, recorded: calls.RecordedCall) -> RepeatedCall:
    """The call made again three times: all alike, and nothing of the program has changed."""
    assert recorded.refusal is None
    before = everything(model)
    made = [calls.again(recorded) for _ in range(3)]
    assert differences(before, everything(model)) == []
    for other in made[1:]:
        assert all(map(_equal, made[0].outputs + made[0].gradients,
                       other.outputs + other.gradients))  # fmt: skip
    assert guard.reference(recorded) is not None
    return made[0]


def _equal(one: Any, other: Any) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def assert_repeats(model: nn.Module, recorded: calls.RecordedCall) -> RepeatedCall:
    """Bit for bit what the program's own backward pass left in `.grad`."""
    made = repeat(model, recorded)
    assert all(map(torch.equal, made.outputs, recorded.outputs))
    gradients = dict(zip(made.names, made.gradients, strict=True))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert _equal(gradients[name], parameter.grad), name
    return made


def labels_loss(labels: torch.Tensor) -> Any:
    return lambda output: cross_entropy(output, labels)


def called(model: nn.Module, data: Any = vectors) -> calls.RecordedCall:
    x, y = data()
    return record(model, labels_loss(y), x)


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    extra: dict[str, torch.Tensor]


def with_a_kept_state() -> Any:
    model = Tagger(keeps=True)
    for _ in range(3):
        model.zero_grad()
        recorded = called(model, words)
    return model, recorded


def into_a_dataclass() -> Any:
    def compute(model: Any, x: torch.Tensor, *, scale: float) -> Out:
        found = model.body(x).relu()
        return Out(model.head(found) * scale, {"kept": found.detach()})

    (x, y), model = vectors(), Made(compute, body=nn.Linear(20, 16), head=nn.Linear(16, 10))
    return model, record(model, lambda o: cross_entropy(o.logits, y), x, scale=2.0)


def weights_used_twice_under_autocast() -> Any:
    """What comes back at a weight that is remembered as cast is added up in 16 bits."""
    linear = nn.Linear(20, 20)
    model = nn.Sequential(linear, nn.Tanh(), linear)
    with torch.autocast("cpu", torch.bfloat16):
        return model, called(model)


def outputs_written_to() -> Any:
    def loss(output: torch.Tensor) -> torch.Tensor:
        output.mul_(2.0).add_(1.0)
        return output.square().mean()

    model = mlp()
    return model, record(model, loss, vectors()[0])


def with_torchs_own_hooks() -> Any:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(20, 10)))
    assert calls.not_repeatable(model) is None
    return model, called(model)


@pytest.mark.parametrize(
    "make",
    [
        with_a_kept_state, into_a_dataclass, weights_used_twice_under_autocast, outputs_written_to,
        with_torchs_own_hooks,
    ],
)  # fmt: skip
def test_a_call_repeats_to_the_last_bit(make):
    assert_repeats(*make())


def test_autocast_that_is_open_only_where_the_call_is_made_again():
    model = mlp()
    recorded = called(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert_repeats(model, recorded)


def test_running_means_of_batch_norm_stay():
    model = conv()
    assert_repeats(model, called(model, images))
    assert int(model[1].num_batches_tracked) == 1


def test_dropout_draws_the_same_masks_and_other_ones_when_asked():
    model = Attending(dropout=0.3)
    recorded = called(model, words)
    made = assert_repeats(model, recorded)
    assert recorded.drew
    before = everything(model)
    other = calls.again(recorded, 7919)
    assert differences(before, everything(model)) == []
    assert not torch.equal(made.outputs[0], other.outputs[0])
    assert torch.equal(other.outputs[0], calls.again(recorded, 7919).outputs[0])


@pytest.mark.parametrize("draws", [True, False])
def test_random_numbers_of_an_accelerator_are_noticed_whatever_draws_them(monkeypatch, draws):
    generator = torch.Generator().manual_seed(3)
    monkeypatch.setattr(forward_state, "devices", lambda models: [torch.device("cuda", 0)])
    monkeypatch.setattr(forward_state, "_of_device", lambda device: generator)

    class DropPath(nn.Module):
        def forward(self, x: Any) -> Any:
            if not draws:
                return x
            return x * (torch.rand(len(x), 1, generator=generator) > 0.3) / 0.7

    model = nn.Sequential(mlp(), DropPath())
    recorded = called(model)
    assert recorded.drew is draws
    assert_repeats(model, recorded)


@pytest.mark.parametrize("uses_loss", [True, False])
def test_hugging_face_bert_that_computes_its_loss(uses_loss):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    ids = torch.randint(60, (4, 12))
    loss = (lambda out: out.loss) if uses_loss else (lambda out: out.logits.square().mean())
    recorded = record(model, loss, input_ids=ids, labels=torch.tensor([0, 1, 2, 0]),
                      output_hidden_states=True)  # fmt: skip
    assert_repeats(model, recorded)
    assert sum(g is not None for g in recorded.output_gradients) == 1, "the hidden ones are inner"


def test_outputs_that_come_from_each_other_and_are_all_used():
    def deep(model: Any, x: torch.Tensor) -> Any:
        first = model.a(x).tanh()
        second = model.b(first)
        return {"first": first, "again": first, "all": [second, second.square().mean()]}

    model = Made(deep, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    recorded = record(model, lambda o: o["first"].mean() + o["all"][1] + o["all"][0].sum(),
                      torch.randn(5, 8))  # fmt: skip
    made = repeat(model, recorded)
    for name, gradient in zip(made.names, made.gradients, strict=True):
        torch.testing.assert_close(gradient, model.get_parameter(name).grad)


def test_several_outputs_of_which_one_is_not_used():
    model = Made(
        lambda model, x: (model.a(x), (model.b(x), x.mean())), a=nn.Linear(4, 4), b=nn.Linear(4, 4)
    )
    recorded = record(model, lambda o: o[0].square().mean(), torch.randn(3, 4))
    made = assert_repeats(model, recorded)
    assert dict(zip(made.names, made.gradients, strict=True))["b.weight"] is None


def test_generator_and_discriminator():
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    z = torch.randn(6, 4)
    first = calls.begin(generator, (z,), {})
    fake = generator(z)
    calls.finish(first, fake)
    fake.retain_grad()
    second = record(judge, lambda o: F.softplus(-o).mean(), fake)
    assert_repeats(generator, first)
    made = assert_repeats(judge, second)
    assert made.names[-1] == "input 1"
    assert torch.equal(made.gradients[-1], fake.grad)


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
def test_the_programs_own_autocast(inside):
    (x, y), model = vectors(), mlp()
    recorded = calls.begin(model, (x,), {})
    with torch.autocast("cpu", torch.bfloat16):
        recorded = calls.begin(model, (x,), {})
        output = model(x)
        calls.finish(recorded, output)
        loss = cross_entropy(output, y)
        if inside:
            loss.backward()
            assert_repeats(model, recorded)
    if not inside:
        loss.backward()
        assert_repeats(model, recorded)
    assert recorded.outputs[0].dtype == torch.bfloat16


def test_weights_that_are_put_off_are_seen_within_the_programs_own_autocast():
    model = mlp()
    with torch.autocast("cpu", torch.bfloat16):
        recorded = called(model)
        written = calls.again(recorded)
        own = guard.noise_floor(recorded, written, False, rounds=True)
        assert torch.equal(model(*recorded.args), recorded.outputs[0]), (
            "nor does the program find them there"
        )
        with guard._weights_off(model, guard.HALF):  # the program's are remembered by now
            off = calls.again(recorded)
    assert guard.distance(off.gradients, written.gradients)[0] > 1e-4
    assert own.reordered > guard.LEAST_REORDERED
    assert own.rounding is not None
    assert own.rounding.gradients > 1e-4


@pytest.mark.parametrize("cache", [True, False])
def test_what_code_is_compiled_for_is_as_it_was_in_the_call(cache):
    found: list[Any] = []

    def asks(model: Any, x: torch.Tensor) -> Any:
        found.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
                      torch.is_autocast_cache_enabled()))  # fmt: skip
        return model.linear(x)

    (x, y), model = vectors(), Made(asks, linear=nn.Linear(20, 10))
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
        recorded = calls.begin(model, (x,), {})
        output = model(x)
        calls.finish(recorded, output)
    cross_entropy(output, y).backward()
    assert_repeats(model, recorded)
    assert set(found) == {(True, torch.bfloat16, cache)}, "else it is compiled twice"
    assert torch.is_autocast_cache_enabled()


def test_gradient_accumulation_is_left_alone():
    model = mlp()
    for _ in range(3):
        x, y = vectors()
        recorded = record(model, labels_loss(y), x)
    made = repeat(model, recorded)
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    assert all(map(torch.equal, made.gradients, [p.grad for p in model.parameters()]))


def test_tied_weights():
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50, bias=False))
    model[1].weight = model[0].weight
    made = assert_repeats(model, called(model, words))
    assert made.names == ["0.weight"]


def test_frozen_parts():
    model = mlp()
    model[0].requires_grad_(False)
    made = assert_repeats(model, called(model))
    assert "0.weight" not in made.names


class Writes(nn.Module):
    """Writes into what it is given."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.linear, self.hidden = nn.Linear(8, 8), hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (x.data if self.hidden else x).mul_(0.5)
        return self.linear(x)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_model_that_writes_into_its_input_is_refused(gradient):
    x = torch.randn(2, 8, requires_grad=gradient)
    recorded = record(Writes(hidden=False), torch.sum, x * 1.0 if gradient else x)
    assert recorded.refusal == "its inputs are written to"


def test_a_model_that_writes_where_torch_does_not_see_it_is_refused():
    model = Writes(hidden=True)
    recorded = record(model, torch.sum, torch.randn(2, 8))
    assert guard.reference(recorded) is None


def test_a_program_that_reuses_its_batch_is_refused_after_that():
    (x, y), model = vectors(), mlp()
    recorded = record(model, labels_loss(y), x)
    x.normal_()
    assert recorded.refusal == "its inputs are written to"


class Codebook(nn.Module):
    """A quantizer whose codes follow a moving average, which its forward pass takes."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(8, 8), way
        self.codes = nn.Parameter(torch.randn(4, 8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        near = torch.cdist(h, self.codes).argmin(1)
        nearest = self.codes[near].detach()
        moved = 0.9 * self.codes.data + 0.1 * h.detach().mean(0)
        if self.way == "data":
            self.codes.data = moved
        elif self.way == "a new parameter":
            self.codes = nn.Parameter(moved, requires_grad=False)
        else:
            self.codes.data.copy_(moved)
        return h + (nearest - h).detach() * 0.5 + h * nearest


@pytest.mark.parametrize("way", ["data", "a new parameter", "in place"])
def test_weights_that_the_forward_pass_sets_are_those_of_the_call(way):
    model = Codebook(way)
    recorded = record(model, torch.sum, torch.randn(6, 8))
    codes, after = model.codes, model.codes.detach().clone()
    assert recorded.refusal is None
    assert guard.reference(recorded) is not None
    assert guard.reference(recorded) is not None, "a second time, too"
    assert model.codes is codes
    assert torch.equal(model.codes, after)


def test_weights_that_were_stepped_are_refused():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorded = called(model)
    assert recorded.refusal is None
    optimizer.step()
    assert recorded.refusal == "its weights are written to before its backward pass"
    assert recorded.complete, "it can still tell the noise between batches"


def test_gradients_that_overflow_are_refused():
    (x, y), model = vectors(), mlp()
    recorded = record(model, lambda o: cross_entropy(o, y) * float("inf"), x)
    assert recorded.refusal == "its gradients are not finite as written"


def test_two_backward_passes_through_one_graph():
    (x, y), model = vectors(), mlp()
    recorded = calls.begin(model, (x,), {})
    output = model(x)
    calls.finish(recorded, output)
    cross_entropy(output, y).backward(retain_graph=True)
    assert_repeats(model, recorded)
    model.zero_grad()
    output.square().mean().backward()
    made = repeat(model, recorded)  # what came back in both, together
    model.zero_grad()
    output = model(x)
    (cross_entropy(output, y) + output.square().mean()).backward()
    for gradient, parameter in zip(made.gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_gradients_of_gradients_are_compared_too():
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(8, 2, requires_grad=True)

    def loss(u: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (slope.sum(1) - u[:, 0]).square().mean()

    recorded = record(model, loss, x)
    assert recorded.twice
    made = repeat(model, recorded)
    assert "0.weight, second derivative" in made.names
    assert made.gradients[made.names.index("0.weight, second derivative")].norm() > 0


class Notes(nn.Module):
    """Notes down what can be noted down, and draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 10)
        self.calls, self.seen, self.last = 0, [0.0], deque([0], maxlen=3)
        self.by_name: dict[str, list[int]] = {"calls": []}
        self.mean = torch.zeros(20)
        self.counts = numpy.zeros(2)
        self.meter = Meter()
        self.own, self.python = torch.Generator().manual_seed(1), random.Random(2)
        self.numpy = numpy.random.default_rng(3)
        self.register_buffer("kept", torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(float(x.detach().mean()))
        self.last.append(self.calls)
        self.by_name["calls"].append(self.calls)
        self.by_name[f"call {self.calls}"] = []
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        self.counts += 1
        self.meter.update(self.calls)
        self.fresh = self.calls
        scale = 1.0 + self.python.random() + float(self.numpy.random())
        scale += random.random() + numpy.random.rand()
        output = self.linear(x + torch.randn(x.shape, generator=self.own)) * scale
        self.kept = self.kept + output.detach().mean(0)
        return output + self.kept + self.mean.sum() + float(self.meter.total)


class Meter:
    def __init__(self) -> None:
        self.total = 0

    def update(self, value: int) -> None:
        self.total += value


def test_numbers_of_numpy_and_fixed_arrays_stay_as_they_are():
    """`nn.Linear(np.prod(shape), 64)` keeps one in the model."""
    model = nn.Linear(numpy.array((2, 2)).prod(), 3)
    model.scale, model.flag = numpy.float32(2), numpy.bool_(True)
    model.fixed, model.counts = numpy.arange(3), numpy.arange(3)
    model.fixed.setflags(write=False)
    restore = forward_state.keep([model])
    model.counts += 1
    model.scale = numpy.float32(3)
    restore()
    assert (model.in_features, model.scale, model.counts.tolist()) == (4, 2, [0, 1, 2])


def test_a_transformed_call_keeps_weights_that_have_no_memory_of_their_own():
    """As under `vmap` and `grad`, for gradients by example."""

    class Kept(nn.Linear):
        def forward(self, x):
            state = forward_state.keep([self])
            result = super().forward(x)
            state.only_changed()
            state()
            return result

    model = Kept(4, 2)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, x).sum()

    x = torch.randn(3, 4)
    by_example = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    assert torch.equal(by_example["weight"], x[:, None].expand(3, 2, 4))


def test_what_a_model_notes_on_itself_is_as_it_was():
    model = Notes()
    for _ in range(3):
        model.zero_grad()
        recorded = called(model)

    def noted() -> Any:
        return (model.calls, list(model.seen), list(model.last), str(model.by_name),
                model.mean.tolist(), model.counts.tolist(), model.meter.total, model.fresh,
                model.own.get_state().tolist(), model.python.getstate(),
                str(model.numpy.bit_generator.state), model.kept.tolist())  # fmt: skip

    before = noted()
    assert_repeats(model, recorded)
    assert noted() == before


def test_what_others_put_on_the_model_after_the_call_stays_there():
    model = Notes()
    recorded = called(model)
    own = model.linear.forward
    model.linear.forward = lambda x: own(x) * 2.0  # as a boost might
    boosted = calls.again(recorded)
    assert not torch.equal(boosted.outputs[0], recorded.outputs[0])
    del model.linear.forward
    assert torch.equal(calls.again(recorded).outputs[0], recorded.outputs[0])
    model.linear.forward = lambda x: own(x) * 2.0
    recorded = called(model)
    del model.linear.forward
    assert not torch.equal(calls.again(recorded).outputs[0], recorded.outputs[0])
    assert "forward" not in vars(model.linear)


class Replayed(torch.autograd.Function):
    """As a recorded graph: its gradients always stand in the same memory."""

    memory = torch.empty(10, 20)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return (x @ weight.T).square()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        Replayed.memory.copy_((2 * (x @ weight.T) * gradient).T @ x)
        return None, Replayed.memory


def test_gradients_of_a_replay_are_not_written_over_by_the_next(monkeypatch):
    monkeypatch.setattr(calls, "ACCELERATORS", ("cpu",))
    weight = nn.Parameter(torch.randn(10, 20) / 5)
    model = Made(lambda model, x: Replayed.apply(x, model.weight), weight=weight)
    recorded = called(model)
    written = calls.again(recorded)
    before = [gradient.clone() for gradient in written.gradients]
    with guard._weights_off(model, 0.1):
        other = calls.again(recorded)
    assert all(map(torch.equal, before, written.gradients))
    assert guard.distance(other.gradients, written.gradients)[0] > 0.01


def test_a_later_backward_pass_still_finds_what_it_saved():
    x, model = images()[0], conv()
    before = calls.begin(model, (x,), {})
    held = model(x)
    calls.finish(before, held)
    recorded = called(model, images)
    assert_repeats(model, recorded)
    guard.noise_floor(recorded, calls.again(recorded), True, True)
    held.sum().backward()  # raises where a saved tensor has been written to


def test_weights_in_channels_last_are_put_back_bit_for_bit():
    (x, y), model = images(), conv()
    model.to(memory_format=torch.channels_last)
    recorded = record(model, labels_loss(y), x.to(memory_format=torch.channels_last))
    made = assert_repeats(model, recorded)
    before = everything(model)
    own = guard.noise_floor(recorded, made, True, True)
    assert differences(before, everything(model)) == []
    assert own.reordered > 0
    assert own.rounding is not None


@pytest.mark.parametrize("how", ["forward", "pre", "backward", "parameter", "everywhere"])
def test_hooks_of_the_program_are_not_called_again(how):
    (x, y), model, seen = vectors(), mlp(), []

    def hook(*args: Any) -> None:
        seen.append(args)

    if how == "parameter":
        handle = model[0].weight.register_hook(hook)
    elif how == "everywhere":
        handle = nn.modules.module.register_module_forward_hook(hook)
    else:
        name = {"forward": "register_forward_hook", "pre": "register_forward_pre_hook",
                "backward": "register_full_backward_hook"}[how]  # fmt: skip
        handle = getattr(model[2], name)(hook)
    try:
        assert calls.not_repeatable(model) is None
        recorded = called(model)
        count = len(seen)
        assert count == (6 if how == "everywhere" else 1)
        assert_repeats(model, recorded)
        assert len(seen) == count
        cross_entropy(model(x), y).backward()
        assert len(seen) == 2 * count  # they are there again
    finally:
        handle.remove()
    assert not own_hooks.any_on(model)


def test_a_hook_that_changes_what_comes_out_makes_a_call_another():
    model = mlp()
    model[2].register_forward_hook(lambda module, args, output: output * 1.5)
    assert guard.reference(called(model)) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its own
def test_compiled_code_would_call_hooks_again():
    model = nn.Sequential(torch.compile(nn.Linear(20, 20)), nn.Linear(20, 10))
    assert calls.not_repeatable(model) is None
    model[1].register_forward_hook(lambda *args: None)
    assert calls.not_repeatable(model) == "compiled code would call the program's own hooks again"


CUDAGRAPHS = "the script's compiled code replays CUDA graphs, which write into earlier results"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its own
@pytest.mark.parametrize(
    ("local", "refused"),
    [
        ({"tree_manager_containers": {0: types.SimpleNamespace(tree_manager=object())}}, True),
        ({"tree_manager_containers": {0: types.SimpleNamespace(tree_manager=None)}}, False),
        ({"tree_manager_containers": {}}, False),
        ({"another_release": {}}, True),
        (None, False),
    ],
)
def test_a_replay_of_compiled_code_would_write_into_the_programs_results(
    monkeypatch, local, refused
):
    name = "torch._inductor.cudagraph_trees"
    if local is None:
        monkeypatch.delitem(sys.modules, name, raising=False)
    else:
        trees = types.SimpleNamespace(local=types.SimpleNamespace(**local))
        monkeypatch.setitem(sys.modules, name, trees)
    written, compiled = mlp(), mlp()
    compiled[0].compile()
    assert calls.not_repeatable(compiled) is None, "there are none on the CPU"
    monkeypatch.setattr(forward_state, "devices", lambda models: [torch.device("cuda", 0)])
    assert calls.not_repeatable(compiled) == (CUDAGRAPHS if refused else None)
    assert calls.not_repeatable(written) is None, "flatout's own compiled code keeps gradients"


def as_recorded(module: nn.Module) -> None:
    """Make it look as `torch.cuda.make_graphed_callables` leaves a module."""
    own = module.forward

    def new_fwd(*args: Any) -> Any:
        return own(*args)

    new_fwd.__module__ = "torch.cuda.graphs"
    module.forward = new_fwd


def test_what_the_script_replays_as_a_cuda_graph_is_left_to_it():
    model = mlp()
    for cannot in (calls.not_repeatable, compiling.cannot, cuda_graphs._cannot):
        assert cannot(model) is None
    as_recorded(model[0])
    for cannot in (calls.not_repeatable, compiling.cannot, cuda_graphs._cannot):
        assert "as a CUDA graph" in cannot(model)


@pytest.fixture
def alone_in_its_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone_in_its_group")
@pytest.mark.parametrize("inside", [False, True])
def test_a_repetition_sends_nothing_to_other_ranks(inside, monkeypatch):
    """Each rank repeats its calls as often as it needs: one that waits for another never ends."""
    sent = []
    send = DistributedDataParallel._sync_buffers
    monkeypatch.setattr(
        DistributedDataParallel, "_sync_buffers", lambda ddp: (sent.append(ddp), send(ddp))[1]
    )
    ddp = DistributedDataParallel(
        nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    )
    model = nn.Sequential(ddp) if inside else ddp
    for _ in range(2):  # the second call puts the gradients into buckets anew
        model.zero_grad()
        recorded = called(model)
    assert len(sent) == 2, "in the program's own calls"
    assert_repeats(model, recorded)
    assert len(sent) == 2
    assert ddp.require_forward_param_sync and ddp.require_backward_grad_sync


@pytest.mark.usefixtures("alone_in_its_group")
@pytest.mark.parametrize("kind", ["synchronized", "wrapped", "divided"])
def test_a_model_that_exchanges_tensors_in_its_calls_is_not_repeated(kind, monkeypatch):
    if kind == "synchronized":
        model = nn.Sequential(nn.Linear(20, 16), nn.SyncBatchNorm(16))
    elif kind == "wrapped":
        fully_sharded = type("FullyShardedDataParallel", (nn.Sequential,), {})
        model = nn.Sequential(type("Mine", (fully_sharded,), {})(mlp()))
    else:
        tensors = pytest.importorskip("torch.distributed.tensor")
        model = tensors.distribute_module(mlp(), init_device_mesh("cpu", (1,)))
    assert calls.not_repeatable(model) is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert calls.not_repeatable(model) == "its calls exchange tensors with other ranks"
    assert calls.not_repeatable(mlp()) is None


@pytest.mark.gpu
def test_torch_marks_what_it_has_recorded():
    x, model = vectors()[0].cuda(), mlp().cuda()
    assert calls.not_repeatable(model) is None
    torch.cuda.make_graphed_callables(model, (x,))
    assert "as a CUDA graph" in calls.not_repeatable(model)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["reduce-overhead", "default"])
def test_compiled_code_of_the_script_trains_on_as_written(program, mode):
    def data():
        return tuple(tensor.cuda() for tensor in vectors())

    weights = []
    for checked in (False, True):
        torch.manual_seed(0)
        model = mlp().cuda()
        model.compile(mode=mode)
        run = program(model, data, boost=planted(times(1.0), Risk.ROUNDING))
        for _ in range(4):  # until its graphs are recorded
            run.step()
        if checked:
            verdict = run.check("boost")
            assert (CUDAGRAPHS in verdict.reason) is (mode == "reduce-overhead")
        while len(run.losses) < 20:
            run.step()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    torch.testing.assert_close(weights[1], weights[0])


def hooked_features(layers: int, watched: int) -> tuple[nn.Module, list[torch.Tensor]]:
    """A network, and what a hook of the program's gathers from its first layers in each call."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(20, 20), nn.Tanh()) for _ in range(layers)))
    found: list[torch.Tensor] = []
    for layer in list(model)[:watched]:
        layer.register_forward_hook(lambda module, args, output: found.append(output))
    return model, found


@pytest.mark.parametrize("used", [False, True])
def test_features_that_a_hook_gathers_are_compared(used):
    (x, _), (model, found) = vectors(), hooked_features(3, 2)
    recorded = record(model, lambda o: o.sum() + used * sum(f.square().sum() for f in found), x)
    made = assert_repeats(model, recorded)
    assert len(made.outputs) == 3
    assert (recorded.output_gradients[1] is not None) is used


def test_many_features_are_not_compared_but_must_not_be_used():
    (x, _), (model, found) = vectors(), hooked_features(12, 11)
    recorded = record(model, lambda output: output.sum(), x)
    assert len(assert_repeats(model, recorded).outputs) == 1
    found.clear()
    recorded = record(model, lambda output: output.sum() + found[3].square().sum(), x)
    with pytest.raises(calls.OtherOutputsError, match="need the program's own hooks"):
        calls.again(recorded)


def test_many_kept_activations_must_not_be_used_either():
    def keeps(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.kept = []
        for layer in model.layers:
            x = layer(x).tanh()
            model.kept.append(x)
        return x * 2

    layers = nn.ModuleList(nn.Linear(20, 20) for _ in range(10))
    (x, _), model = vectors(), Made(keeps, layers=layers, kept=[])
    assert_repeats(model, record(model, lambda output: output.sum(), x))
    recorded = record(model, lambda output: output.sum() + model.kept[1].square().sum(), x)
    with pytest.raises(calls.OtherOutputsError, match="the loss uses one of many tensors"):
        calls.again(recorded)


def test_a_call_that_gives_other_outputs_cannot_be_compared():
    model = Made(lambda model, x: [model.linear(x)] * len(GIVES), linear=nn.Linear(4, 4))
    GIVES.append(1)
    recorded = record(model, lambda o: o[0].sum(), torch.randn(2, 4))
    GIVES.clear()
    with pytest.raises(RuntimeError, match="other outputs"):
        calls.again(recorded)


GIVES: list[int] = []


def test_what_the_model_raises_leaves_nothing_behind():
    def fails(model: Any, x: torch.Tensor) -> Any:
        model.count += 1
        found = model.norm(x) * torch.rand(1)
        if GIVES:
            raise ValueError("now")
        return found

    model = Made(fails, norm=nn.BatchNorm1d(4), count=0)
    recorded = record(model, torch.sum, torch.randn(3, 4))
    before = everything(model)
    GIVES.append(1)
    try:
        with pytest.raises(ValueError, match="now"):
            calls.again(recorded)
    finally:
        GIVES.clear()
    assert differences(before, everything(model)) == []
