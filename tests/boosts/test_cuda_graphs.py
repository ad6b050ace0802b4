"""cuda-graphs: when to record and replay (a stand-in recorder), and the real one on a GPU."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from flatout_agent.boosts import Declined, cuda_graphs
from flatout_agent.chain import Depth
from flatout_agent.job import Job
from flatout_agent.wire import JobFacts, ModelFacts

MODEL = ModelFacts("Net", 9, "float32", "cuda", matmul=1, input_shapes=("4x8",))
FACTS = JobFacts(
    torch="2.13.0", python="3.11", system="linux", device="cuda", step_s=0.005, models=(MODEL,)
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, *, flag=True, mask=None):
        out = self.layer(x)
        return {"out": out if flag else -out, "mask": mask, "more": (out.sum(),)}


class Replayed(torch.autograd.Function):
    """One node around the pass, like the real recording's, with gradients in the same places."""

    @staticmethod
    def forward(ctx, whole, places, x, *weights):
        ctx.places = places
        with torch.enable_grad():
            ctx.inputs = x.detach(), *weights
            ctx.outputs = whole(ctx.inputs[0])
        return tuple(item.detach() for item in ctx.outputs)

    @staticmethod
    def backward(ctx, *gradients):
        found = torch.autograd.grad(ctx.outputs, ctx.inputs[1:], gradients)
        for place, gradient in zip(ctx.places, found, strict=True):
            place.copy_(gradient)
        return None, None, None, *(place.detach() for place in ctx.places)


@pytest.fixture
def calls():
    recorded = []

    def capture(torch, whole, samples):
        recorded.append(samples)
        whole(*samples)
        places = [torch.zeros_like(p) for p in whole.parameters()]
        return lambda x: Replayed.apply(whole, places, x, *whole.parameters())

    model = Net()
    calls = cuda_graphs.GraphedCalls(torch, model, capture)
    calls.recorded = recorded
    Job(torch).wrap_call(model, Depth.COMPILE, calls.layer)
    return calls


def step(model, x=None, **options):
    model.zero_grad()
    x = torch.randn(4, 8) if x is None else x
    out = model(x, **options)
    out["out"].square().mean().backward()
    return out, model.layer.weight.grad.clone()


def test_recorded_at_the_third_call_and_replayed_with_the_same_results(calls):
    plain, x = copy.deepcopy(calls.model), torch.randn(4, 8)
    for _ in range(5):
        out, grad = step(calls.model, x)
        expected, expected_grad = step(plain, x)
        assert torch.equal(out["out"], expected["out"])
        assert out["mask"] is None
        assert torch.equal(out["more"][0], expected["more"][0])
        assert torch.equal(grad, expected_grad)
    assert len(calls.recorded) == 1
    assert calls.replayed == 3
    assert calls.engaged() == (True, "recorded")


def test_what_differs_from_the_recording_runs_as_written(calls):
    for _ in range(4):
        step(calls.model)
    step(calls.model, torch.randn(3, 8))
    out, _ = step(calls.model, torch.ones(4, 8), flag=False)
    with torch.no_grad():
        assert torch.equal(out["out"], -calls.model.layer(torch.ones(4, 8)))
    calls.model.eval()
    step(calls.model)
    assert (calls.replayed, calls.eager) == (2, 2)
    assert calls.engaged()[0] is False


def test_a_second_call_before_the_backward_pass_is_not_replayed(calls):
    for _ in range(3):
        step(calls.model)
    calls.model.zero_grad()
    first = calls.model(torch.randn(4, 8))
    second = calls.model(torch.randn(4, 8))
    assert (calls.replayed, calls.eager) == (2, 1)
    (first["out"].sum() + second["out"].sum()).backward()
    step(calls.model)
    assert calls.replayed == 3


def test_a_forward_pass_that_is_thrown_away_does_not_block(calls):
    for _ in range(3):
        step(calls.model)
    calls.model.zero_grad()
    calls.model(torch.randn(4, 8))
    calls.model(torch.randn(4, 8))
    assert calls.eager == 0


IDIOMS = {
    "zero_grad before the call": lambda model, x, number: (
        model.zero_grad(),
        model(x)["out"].sum().backward(),
    ),
    "zero_grad after the call": lambda model, x, number: later(model, x),
    "gradients set to zero": lambda model, x, number: (
        model.zero_grad(set_to_none=False),
        model(x)["out"].square().sum().backward(),
    ),
    "accumulated over three": lambda model, x, number: (
        model.zero_grad() if number % 3 == 0 else None,
        model(x)["out"].square().sum().backward(),
    ),
}


def later(model, x):
    loss = model(x)["out"].square().sum()
    model.zero_grad()
    loss.backward()


@pytest.mark.parametrize("idiom", IDIOMS)
def test_kept_gradients_are_never_overwritten(calls, idiom):
    plain = copy.deepcopy(calls.model)
    for number in range(9):
        x = torch.randn(4, 8)
        for model in (plain, calls.model):
            IDIOMS[idiom](model, x, number)
        assert torch.equal(calls.model.layer.weight.grad, plain.layer.weight.grad), number
        assert torch.equal(calls.model.layer.bias.grad, plain.layer.bias.grad), number
    assert calls.replayed == 7
    assert calls.engaged() == (True, "recorded")


def test_the_weights_version_changes_with_each_of_them():
    model = nn.Sequential(Net(), nn.Linear(4, 4))
    weights = cuda_graphs.Weights(model)
    first = weights.version()
    assert weights.version() == first
    with torch.no_grad():
        model[1].weight.add_(1.0)
    assert weights.version() == first, "the same place"
    changes = [
        lambda: setattr(model[0].layer, "weight", nn.Parameter(torch.zeros(4, 8))),
        lambda: setattr(model[1].weight, "data", torch.zeros(4, 4)),
        lambda: model[1].bias.requires_grad_(False),
        lambda: model.append(nn.Linear(4, 4)),
        lambda: setattr(model[0], "layer", nn.Linear(8, 4)),
        lambda: model[0].register_parameter("more", nn.Parameter(torch.zeros(1))),
        lambda: delattr(model[0], "more"),
        lambda: model.pop(2),
    ]
    seen = [first]
    for change in changes:
        change()
        assert weights.version() not in seen
        seen.append(weights.version())
        assert weights.version() == seen[-1]


def test_changed_weights_are_not_taken_for_the_recorded_ones(calls):
    for _ in range(3):
        step(calls.model)
    calls.model.layer.weight.data = torch.zeros(4, 8)
    out, _ = step(calls.model)
    assert torch.equal(out["out"], calls.model.layer.bias.expand(4, 4))
    assert calls.eager == 1


def test_a_failed_recording_is_given_up_for_good(calls):
    tries = []

    def broken(*args):
        tries.append(args)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    calls.capture = broken
    for _ in range(5):
        step(calls.model)
    assert len(tries) == 1
    reason = "recording failed: operation not permitted when stream is capturing"
    assert calls.engaged() == (False, reason)


def test_arguments_that_may_change_unseen_are_not_recorded(calls):
    for _ in range(4):
        step(calls.model, mask=object())
    assert calls.engaged() == (False, "the model takes a object, which cannot be recorded")


def test_nothing_is_claimed_before_the_first_call(calls):
    assert calls.engaged() is None
    step(calls.model)
    assert calls.engaged()[0] is False


def hooked(model):
    model.layer.register_forward_hook(lambda *_: None)
    return model


def watched(model):
    model.layer.weight.register_hook(lambda gradient: gradient)
    return model


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (lambda: nn.DataParallel(Net()), "DataParallel"),
        (lambda: hooked(Net()), "hooks"),
        (lambda: watched(Net()), "gradients"),
        (lambda: nn.Sequential(torch.compile(Net(), backend="eager")), "itself"),
        (Net, None),
    ],
)
def test_cannot(model, word):
    reason = cuda_graphs._cannot(torch, model())
    assert reason is None if word is None else word in reason


def test_declined_on_the_cpu():
    with pytest.raises(Declined, match="on cpu"):
        cuda_graphs.apply(Job(torch), Net(), {})


def facts(**change):
    return JobFacts(**{**vars(FACTS), **change})


def model_facts(**change):
    return facts(models=(ModelFacts(**{**vars(MODEL), **change}),))


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (FACTS, None),
        (facts(device="cpu"), "need a GPU"),
        (model_facts(compiled=True), "itself"),
        (model_facts(wrapped="DistributedDataParallel"), "Distributed"),
        (model_facts(has_hooks=True), "hooks"),
        (model_facts(input_shapes=("4x8", "5x8")), "2 input shapes"),
    ],
)
def test_applies(seen, word):
    reason = cuda_graphs.applies(seen, {})
    assert reason is None if word is None else word in reason


def test_promise_and_by_hand():
    assert cuda_graphs.promise(FACTS, {}) > 1.2 > cuda_graphs.promise(facts(step_s=0.5), {})
    compile(cuda_graphs.by_hand(FACTS, {}), "by_hand", "exec")


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
def test_training_on_the_gpu_is_the_same_and_statistics_are_taken_once(autocast):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).cuda()
    plain = copy.deepcopy(model)
    applied = cuda_graphs.apply(Job(torch), model, {})
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, plain)]
    kept = []
    for number in range(8):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)).cuda()
        for net, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                out = net(x)
            out.float().square().mean().backward()
            optimizer.step()
            kept.append(out)
    for one, two in zip(kept[::2], kept[1::2], strict=True):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))
    assert applied.engaged() == (True, "recorded")


class Recording:
    """torch.cuda.graph, as it is where the recording fails: its own end is never reached."""

    def __init__(self, graph, pool=None, **settings):
        self.settings = settings

    def __enter__(self):
        pass

    def __exit__(self, *error):
        raise RuntimeError("operation failed due to a previous error during capture")


def test_a_recording_that_fails_leaves_the_program_as_it_was(monkeypatch):
    model, told = Net(), []

    def graphed(whole, samples, **settings):
        with torch.cuda.graph("graph", pool=(0, 7)):
            model.layer.weight.sum().item()

    def clean_up(torch, current, random, pools):
        told.append((current, random, pools))

    monkeypatch.setattr(torch.cuda, "graph", Recording)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graphed)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: "the state before")
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream before")
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cuda_graphs.captures, "clean_up", clean_up)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        cuda_graphs._capture(torch, model, ())
    assert told == [("the stream before", "the state before", [(0, 7)])]
    assert torch.cuda.graph is Recording
