"""cuda-graphs: when to record and replay (a stand-in recorder), and the real one on a GPU."""

import contextlib
import copy
import gc
import itertools
import random
import weakref

import numpy
import pytest
import torch
from torch import nn

from flatout_agent.boost import Declined
from flatout_agent.boosts import cuda_graphs
from flatout_agent.job import Job
from flatout_agent.speedups import forward_state
from flatout_agent.speedups.graphs import aliases, graphed_calls, recordings
from flatout_agent.speedups.graphs.recordings import NotRecordable
from flatout_agent.speedups.stand_in import StandIn
from flatout_agent.wire import JobFacts, ModelFacts
from replayed import Capture

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


@pytest.fixture
def calls():
    return calls_of(Net())


def calls_of(model):
    """The layer around this model's call, with the stand-in for the real recording."""
    job, capture = Job(), Capture()
    applied = graphed_calls.put_on(job, model, capture)
    calls = graphed_calls.of_model(job, model, capture)
    calls.model, calls.recorded, calls.applied = model, capture.recorded, applied
    return calls


def step(model, x=None, **options):
    model.zero_grad()
    x = torch.randn(4, 8) if x is None else x
    out = model(x, **options)
    out["out"].square().mean().backward()
    return out, model.layer.weight.grad.clone()


def test_recorded_at_the_third_call_and_replayed_with_the_same_results(calls):
    plain, outputs = copy.deepcopy(calls.model), []
    for _ in range(5):
        x = torch.randn(4, 8)
        out, grad = step(calls.model, x)
        expected, expected_grad = step(plain, x)
        outputs.append((out, expected))
        assert torch.equal(grad, expected_grad)
    for out, expected in outputs:  # the program may keep them
        assert torch.equal(out["out"], expected["out"])
        assert out["mask"] is None
        assert torch.equal(out["more"][0], expected["more"][0])
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


def test_calls_that_are_transformed_run_as_written(calls):
    """As for gradients of single examples: weights and inputs have no memory to look at."""
    plain, found = copy.deepcopy(calls.model), []
    for model in (calls.model, plain):

        def loss(weights, x, model=model):
            return torch.func.functional_call(model, weights, (x[None],))["out"].square().mean()

        weights = {name: p.detach() for name, p in model.named_parameters()}
        of_each = torch.func.vmap(torch.func.grad(loss), (None, 0))
        found.append([of_each(weights, torch.ones(4, 8)) for _ in range(4)])
    torch.testing.assert_close(*found)
    assert calls.engaged() == (False, graphed_calls.TRANSFORMED)
    for _ in range(4):
        step(calls.model)
    assert calls.replayed == 2
    assert calls.engaged() == (True, "recorded")


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


def later(model, x, number):
    loss = model(x)["out"].square().sum()
    model.zero_grad()
    loss.backward()


def zeroed(model, x, to_none=False):
    model.zero_grad(set_to_none=to_none)
    model(x)["out"].square().sum().backward()


def accumulated(model, x, number):
    if number % 3 == 0:
        model.zero_grad()
    model(x)["out"].square().sum().backward()


def elsewhere(model, x, number):
    return torch.autograd.grad(model(x)["out"].square().sum(), list(model.parameters()))


def elsewhere_in_between(model, x, number):
    step(model, x)
    elsewhere(model, torch.ones_like(x), number)


def of_inputs(model, x, number):
    leaf = x.clone().requires_grad_()
    step(model, leaf)
    return [leaf.grad]


def of_chosen_weights(model, x, number):
    model.zero_grad()
    model(x)["out"].sum().backward(inputs=[model.layer.bias])


IDIOMS = {
    "zero_grad before the call": lambda model, x, number: step(model, x)[1:],
    "zero_grad after the call": later,
    "gradients set to zero": lambda model, x, number: zeroed(model, x),
    "gradients set to zero, once to None": lambda model, x, number: zeroed(model, x, number == 4),
    "accumulated over three": accumulated,
    "they go elsewhere": elsewhere,
    "they go elsewhere in between": elsewhere_in_between,
    "those of inputs": of_inputs,
    "those of chosen weights": of_chosen_weights,
}


HELD = {
    "the gradient": lambda gradient: gradient,
    "a view of it": lambda gradient: gradient.detach().view(-1)[1:],
}


@pytest.mark.parametrize("take", HELD.values(), ids=HELD)
def test_gradients_that_are_held_after_zero_grad_are_not_overwritten(calls, take):
    model = calls.model

    def one_step():
        model.zero_grad()
        model(torch.randn(4, 8))["out"].square().mean().backward()
        return take(model.layer.weight.grad)

    for _ in range(4):
        one_step()
    before_any = calls.replayed
    held = one_step()
    assert calls.replayed == before_any + 1
    values = held.clone()
    for _ in range(3):
        one_step()
        assert torch.equal(held, values)
    assert calls.why_eager == graphed_calls.KEPT
    assert (calls.replayed, calls.eager) == (before_any + 1, 3)
    held = None
    one_step()
    assert calls.replayed == before_any + 2, "it is replayed again once nothing is held"


def test_a_program_that_always_holds_the_last_gradients_gets_copies(calls):
    """A variable of a loop over the gradients does so, too."""
    model, held, values = calls.model, None, None
    for _ in range(9):
        model.zero_grad()
        model(torch.randn(4, 8))["out"].square().mean().backward()
        assert held is None or torch.equal(held, values)
        held = model.layer.weight.grad
        values = held.clone()
    assert (calls.replayed, calls.eager) == (6, 1)
    assert calls.engaged() == (True, "recorded; 1 calls ran as written")


@pytest.mark.gpu
def test_gradients_that_are_held_are_not_overwritten_on_the_gpu():
    model = Deep().cuda()
    applied = cuda_graphs.apply(Job(), model, {})
    for number in range(12):
        model.zero_grad()
        model(torch.randn(4, 8, device="cuda"))["out"].square().mean().backward()
        if number == 5:
            held = [p.grad for p in model.parameters()]
            values = [gradient.clone() for gradient in held]
        if number == 8:
            assert all(map(torch.equal, held, values))
            del held
    assert applied.engaged() == (True, "recorded; 3 calls ran as written")


@pytest.mark.parametrize("idiom", IDIOMS)
def test_kept_gradients_are_never_overwritten(calls, idiom):
    found = keep_gradients(calls.model, copy.deepcopy(calls.model), idiom, "cpu")
    for mine, theirs in zip(*found, strict=True):
        assert all(map(torch.equal, mine, theirs))
    assert calls.replayed == (7 if idiom != "they go elsewhere in between" else 16)
    assert calls.engaged() == (True, "recorded")


def keep_gradients(model, plain, idiom, device, count=9, between=lambda number: None):
    """What each of both has in `.grad` after each step, and all that it was given besides."""
    found, given = ([], []), ([], [])
    for number in range(count):
        between(number)
        x = torch.randn(4, 8, device=device)
        for net, seen, kept in zip((model, plain), found, given, strict=True):
            kept += IDIOMS[idiom](net, x, number) or ()
            seen.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    return [[*seen, kept] for seen, kept in zip(found, given, strict=True)]


def test_a_gradient_stays_the_tensor_that_the_program_holds(calls):
    for _ in range(3):
        _, expected = step(calls.model)
    held = calls.model.layer.weight.grad
    calls.model(torch.randn(4, 8))
    assert calls.model.layer.weight.grad is held
    assert torch.equal(held, expected)


def test_all_gradients_are_moved_away_in_one_copy(calls, monkeypatch):
    copied = []
    kept = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *a: (copied.append(len(a[0])), kept(*a)))
    for number in range(6):
        later(calls.model, torch.randn(4, 8), number)
    assert (calls.replayed, copied) == (4, [2, 2, 2]), "weight and bias, before each other replay"


def test_a_program_that_goes_back_twice_is_not_recorded(calls):
    for _ in range(4):
        out = calls.model(torch.randn(4, 8))["out"]
        out.sum().backward(retain_graph=True)
        out.square().sum().backward()
    assert calls.recorded == []
    assert calls.engaged() == (False, graphed_calls.SECOND_PASS)


def test_a_program_that_goes_through_its_gradients_is_not_recorded(calls):
    """The penalty's own backward pass does not come by the output: only the mode tells."""
    plain = copy.deepcopy(calls.model)
    for _ in range(5):
        x = torch.randn(4, 8, requires_grad=True)
        for model in (calls.model, plain):
            model.zero_grad()
            (slope,) = torch.autograd.grad(model(x)["out"].sum(), x, create_graph=True)
            (slope.norm() - 1).square().backward()
        assert torch.equal(calls.model.layer.weight.grad, plain.layer.weight.grad)
    assert calls.recorded == []
    assert calls.engaged() == (False, graphed_calls.SECOND_PASS)


class Remembering(Net):
    """Dropout, batch norm, and a running scale that the output depends on."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout()
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        self.scale.mul_(0.9).add_(x.detach().abs().mean(0))
        return super().forward(self.drop(self.norm(x)) * self.scale.clone())


def now_and_then_twice(model, applied, autocast):
    """Goes back twice through a call of some, with another one in between."""
    plain = copy.deepcopy(model)
    device = next(model.parameters()).device
    for number in range(90):
        x, found = torch.randn(4, 8, device=device), []
        for net in (model, plain):
            torch.manual_seed(number)
            net.zero_grad()
            leaf = x.clone().requires_grad_()
            again = number % 30 == 25
            with torch.autocast(device.type, torch.bfloat16, autocast, cache_enabled=False):
                out = net(leaf)["out"]
            out.square().sum().backward(retain_graph=again)
            if again:
                with torch.autocast(device.type, torch.bfloat16, autocast, cache_enabled=False):
                    net(torch.ones_like(leaf).requires_grad_())["out"].sum().backward()
                (out.sin() * 3).sum().backward()
            draw = torch.rand(1, device=device)
            found.append([leaf.grad, draw, *(p.grad for p in net.parameters()), *net.buffers()])
        for mine, theirs in zip(*found, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
        del found, mine, theirs  # they hold gradients
    assert applied.engaged() == (True, "recorded")


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("make", [Net, Remembering])
def test_a_program_that_goes_back_twice_now_and_then(monkeypatch, make, autocast):
    # The tape's device is the host, where a recording may not draw numbers or write.
    monkeypatch.setattr(recordings._Host, "compare", lambda before, after: None)
    calls = calls_of(make())
    now_and_then_twice(calls.model, calls.applied, autocast)
    assert calls.replayed == 91
    assert len(calls.recording.state) == (make is Remembering), "its scale is copied in each call"


@pytest.mark.gpu
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("make", [Net, Remembering])
def test_a_program_that_goes_back_twice_now_and_then_on_the_gpu(make, autocast):
    model = make().cuda()
    now_and_then_twice(model, cuda_graphs.apply(Job(), model, {}), autocast)


def test_a_program_that_begins_to_go_back_twice_each_time_runs_as_written(calls):
    for _ in range(5):
        step(calls.model)
    for _ in range(4):
        out = calls.model(torch.randn(4, 8))["out"]
        out.sum().backward(retain_graph=True)
        out.sum().backward()
    assert calls.replayed == 6
    assert calls.recording is None
    assert calls.engaged() == (False, graphed_calls.SECOND_PASS)


def test_a_graph_that_is_not_retained_is_gone_as_without_a_recording(calls):
    for _ in range(3):
        step(calls.model)
    x = torch.randn(4, 8)
    held, loss = weakref.ref(x), calls.model(x)["out"].sum()
    loss.backward()
    del x
    assert held() is None, "the loss that the program holds keeps no batch alive"
    with pytest.raises(RuntimeError, match="through the graph a second time"):
        loss.backward()


def test_no_second_backward_pass_through_weights_that_have_changed(calls):
    for _ in range(3):
        step(calls.model)
    loss = calls.model(torch.randn(4, 8))["out"].sum()
    loss.backward(retain_graph=True)
    with torch.no_grad():
        calls.model.layer.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_weights_version_changes_with_each_of_them():
    model = nn.Sequential(Net(), nn.Linear(4, 4))
    weights = graphed_calls.Weights(model)
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


def test_a_recording_of_weights_that_have_moved_is_made_anew(calls):
    for _ in range(4):
        step(calls.model)
    calls.model.layer.weight.data = torch.ones(4, 8)
    for _ in range(4):
        out, _ = step(calls.model, torch.ones(4, 8))
        assert torch.equal(out["out"], 8 + calls.model.layer.bias.expand(4, 4))
    assert len(calls.recorded) == 2
    assert (calls.replayed, calls.eager) == (4, 2)


@contextlib.contextmanager
def products_in_tf32():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def deterministic():
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


REPLACED = StandIn(nn.functional, {"embedding": nn.functional.embedding})


@contextlib.contextmanager
def beside_a_boost_that_replaces_a_function():
    REPLACED.hold()
    yield
    REPLACED.let_go()


SETTINGS = {
    "tf32": products_in_tf32,
    "deterministic": deterministic,
    "attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "another boost": beside_a_boost_that_replaces_a_function,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_choose_kernels_are_not_baked_in(calls, name):
    for _ in range(4):
        step(calls.model)
    with SETTINGS[name]():
        step(calls.model)
        assert (calls.replayed, calls.eager) == (2, 1)
    step(calls.model)  # the Guard's look at such a boost takes a call, and costs no recording
    assert (calls.replayed, len(calls.recorded)) == (3, 1)
    with SETTINGS[name]():
        for _ in range(2):
            step(calls.model)
        assert (calls.replayed, len(calls.recorded)) == (4, 2)
    step(calls.model)
    assert (calls.replayed, len(calls.recorded)) == (5, 3)
    assert calls.engaged()[0] is True


@pytest.mark.parametrize("what", ["weights", "settings"])
def test_what_keeps_changing_is_not_recorded_for_ever(calls, what):
    for number in range(12):
        if what == "weights":
            calls.model.layer.weight.data = calls.model.layer.weight.data.clone()
        with products_in_tf32() if what == "settings" and number % 2 else contextlib.nullcontext():
            for _ in range(3):
                step(calls.model)
    assert len(calls.recorded) == graphed_calls.MOVES + 1
    assert calls.engaged() == (False, f"{graphed_calls.CHANGED} again and again")


def test_an_input_elsewhere_is_not_baked_in(calls):
    mask = torch.ones(3, device="meta")  # to a model on the CPU what a tensor there is to a GPU's
    for _ in range(4):
        step(calls.model, mask=mask)
    assert calls.recorded == []
    reason = "an input is on meta, and a recording would keep its values"
    assert calls.engaged() == (False, reason)
    for _ in range(4):
        step(calls.model)
    step(calls.model, mask=mask)
    assert (calls.replayed, calls.eager) == (2, 1)


def test_in_an_autocast_region_it_is_another_call(calls):
    for _ in range(4):
        step(calls.model)
    torch.set_autocast_enabled("cuda", True)
    try:
        step(calls.model)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert (calls.replayed, calls.eager) == (2, 1)


class Scaled(Net):
    def __init__(self):
        super().__init__()
        self.scale, self.gate, self.mask = 1.0, nn.Identity(), torch.ones(8)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        x = x * self.mask + self.shift
        return super().forward(x * (self.scale if self.gate.training else -1.0))


@pytest.mark.parametrize(
    "change",
    [
        lambda model, number: setattr(model, "scale", float(number)),  # a schedule
        lambda model, number: model.gate.train(number > 9),
        lambda model, number: setattr(model, "mask", torch.full((8,), float(number))),
        lambda model, number: setattr(model, "shift", torch.full((8,), float(number))),
    ],
    ids=["a number", "a mode", "a tensor", "a buffer"],
)
def test_what_is_set_on_the_model_is_not_baked_in(change):
    """In the recording's memory a tensor may even be another by then: it keeps none alive."""
    calls = calls_of(Scaled())
    never = copy.deepcopy(calls.model)
    for number in range(16):
        if number in (5, 11):
            for model in (calls.model, never):
                change(model, number)
        x = torch.randn(4, 8)
        found, expected = step(calls.model, x)[0]["out"], step(never, x)[0]["out"]
        assert torch.equal(found, expected), number
    assert len(calls.recorded) == 3
    assert calls.replayed == 3 + 4 + 3


class Drawing(Net):
    """Skips its layer by chance, as LayerDrop does."""

    def __init__(self, draw):
        super().__init__()
        self.own, self.arrays = random.Random(1), numpy.random.default_rng(1)
        self.draw = draw

    def forward(self, x):
        return super().forward(x if self.draw(self) < 2 else -x)


@pytest.mark.parametrize(
    "draw",
    [
        lambda model: random.random(),
        lambda model: torch.rand([]),
        lambda model: numpy.random.rand(),
        lambda model: model.own.random(),
        lambda model: model.arrays.random(),
    ],
)
def test_numbers_drawn_on_the_host_are_not_baked_in(draw):
    calls = calls_of(Drawing(draw))
    never = copy.deepcopy(calls.model)
    found = []
    for model in (calls.model, never):
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        for _ in range(5):
            step(model, torch.ones(4, 8))
        generators = torch.rand([]), random.random(), numpy.random.rand()
        found.append((*map(float, generators), model.own.random(), model.arrays.random()))
    assert found[0] == found[1], "the program's next numbers are its own"
    assert calls.replayed == 0
    assert calls.engaged() == (False, "the forward pass draws numbers on the host")


class Noting(Net):
    def __init__(self, note):
        super().__init__()
        self.calls, self.losses, self.batch, self.last, self.names = 0, [], 0, None, {"a": [1]}
        self.steps, self.size = torch.zeros([]), (0, 0)
        self.register_buffer("seen", torch.zeros([]), persistent=False)
        self.note = note

    def forward(self, x):
        self.note(self, x)
        return super().forward(x)


def replaced(model, x):
    model.seen = model.seen + 1


@pytest.mark.parametrize(
    ("note", "replayed"),
    [
        (lambda model, x: setattr(model, "calls", model.calls + 1), 0),
        (lambda model, x: setattr(model, "last", x), 0),
        (lambda model, x: model.losses.append(x.sum()), 0),
        (lambda model, x: model.names["a"].append(1), 0),
        (lambda model, x: model.steps.add_(1), 0),
        (replaced, 0),
        (lambda model, x: setattr(model, "batch", len(x)), 2),
        (lambda model, x: setattr(model, "size", tuple(x.shape)), 3),
        (lambda model, x: model.names.update(a=[1]), 3),
        (lambda model, x: None, 3),
    ],
)
def test_what_the_forward_pass_notes_on_the_model_is_not_lost(note, replayed):
    calls = calls_of(Noting(note))
    never = copy.deepcopy(calls.model)
    for model in (calls.model, never):
        for _ in range(5):
            step(model, torch.ones(4, 8))
    for name in ("calls", "batch", "size", "names", "steps", "seen"):
        assert getattr(calls.model, name) == getattr(never, name)
    assert len(calls.model.losses) == len(never.losses)
    assert calls.replayed == replayed
    if not replayed:
        reasons = "the forward pass changes attributes of the model", graphed_calls.CHANGED
        assert calls.engaged() in [(False, reason) for reason in reasons]


def test_a_recording_outlasts_the_switch(calls):
    job, model = calls.job, calls.model
    for _ in range(3):
        step(model)
    calls.applied.undo()
    step(model)
    assert calls.replayed == 1
    applied = graphed_calls.put_on(job, model, calls.capture)
    assert applied.steps_to_ready() == 0
    step(model)
    assert (len(calls.recorded), calls.replayed) == (1, 2)
    assert applied.engaged() == (True, "recorded")


def test_what_was_given_up_stays_given_up_over_the_switch(calls):
    step(calls.model, mask=object())
    calls.applied.undo()
    applied = graphed_calls.put_on(calls.job, calls.model, calls.capture)
    assert applied.steps_to_ready() == 0
    assert applied.engaged() == (False, "the model takes a object, which cannot be recorded")


@pytest.mark.parametrize("off_first", [True, False])
def test_nothing_outlasts_its_forgetting(calls, off_first):
    for _ in range(3):
        step(calls.model)
    if off_first:
        calls.applied.undo()
    assert calls.recording is not None
    cuda_graphs.forget(calls.job)
    if not off_first:
        step(calls.model)
        assert calls.replayed == 2, "it goes on while it is on"
        calls.applied.undo()
    assert calls.recording is None
    assert graphed_calls.of_job(calls.job) == []
    assert graphed_calls.of_model(calls.job, calls.model, calls.capture) is not calls


def test_another_program_forgets_nothing_of_this_one(calls):
    calls.applied.undo()
    cuda_graphs.forget(Job())
    assert graphed_calls.of_job(calls.job) == [calls]


@pytest.mark.parametrize("on", [True, False])
def test_a_model_that_the_program_drops_is_gone(on):
    job, model = Job(), Net()
    applied = graphed_calls.put_on(job, model, Capture())
    for _ in range(4):
        step(model)
    if not on:
        applied.undo()
    (calls,) = graphed_calls.of_job(job)
    assert calls.replayed == 2
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert graphed_calls.of_job(job) == []


def test_steps_to_ready_are_counted_down_and_not_waited_for_without_end(calls):
    ready = calls.applied.steps_to_ready
    counted = [ready()]
    for _ in range(3):
        step(calls.model)
        counted.append(ready())
    assert counted == [3, 2, 1, 0]
    other = calls_of(Net())
    for size in range(graphed_calls.PATIENCE):
        assert other.steps_to_ready() > 0
        step(other.model, torch.randn(size + 1, 8))
        other.job.steps += 1
    assert other.steps_to_ready() == 0


@pytest.mark.parametrize(("free", "kept"), [(150, False), (210, True)])
def test_a_recording_waits_only_where_there_is_room(calls, monkeypatch, free, kept):
    reserved = itertools.cycle([1000, 1100])
    monkeypatch.setattr(recordings, "reserved_bytes", lambda device: next(reserved))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    for _ in range(3):
        step(calls.model)
    calls.applied.undo()
    assert (calls.recording is not None) is kept
    graphed_calls.put_on(calls.job, calls.model, calls.capture)
    step(calls.model)
    assert calls.replayed == 2, "what was seen is known: it is recorded at once"


def test_memory_that_torch_has_and_does_not_use_is_room(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 900)
    assert recordings.is_short_of_memory(torch.device("cuda"), 150)
    assert not recordings.is_short_of_memory(torch.device("cuda"), 100)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1000)
    assert recordings.takes_too_much(torch.device("cuda"), 60)
    assert not recordings.takes_too_much(torch.device("cuda"), 50)
    assert not recordings.takes_too_much(torch.device("cuda"), 0)


def test_reserved_bytes_are_told_without_what_is_unused(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7 if done else 9)
    assert recordings.reserved_bytes(torch.device("cuda", 1)) == 7
    assert recordings.reserved_bytes(torch.device("cpu")) == 0


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (object(), "the model takes a object, which cannot be recorded"),
        (torch.eye(3).to_sparse(), "the model takes a sparse, nested or wrapped tensor"),
    ],
)
def test_calls_with_what_cannot_be_recorded_run_as_written(calls, mask, reason):
    for _ in range(4):
        assert step(calls.model, mask=mask)[0]["mask"] is mask
    assert calls.engaged() == (False, reason)


def writer():
    """A GPT-2 of Transformers: its calls return a cache for generation, in training too."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).train()


def writes_on(model):
    """Losses of some steps, the last one's gradients, and whether the cache was there."""
    losses, words = [], torch.arange(24, device=next(model.parameters()).device).view(2, 12)
    for number in range(6):
        model.zero_grad()
        output = model(input_ids=words + number, labels=words + number)
        output.loss.backward()
        losses.append(output.loss.item())
    return losses, [p.grad for p in model.parameters()], output.past_key_values is not None


def writes_as_without_a_recording(model, applied):
    plain = writes_on(copy.deepcopy(model))
    recorded = writes_on(model)
    torch.testing.assert_close(recorded[:2], plain[:2], rtol=1e-3, atol=1e-4)
    assert (recorded[2], plain[2]) == (False, True)
    assert applied.engaged() == (True, "recorded")


@pytest.mark.slow
def test_a_cache_for_generation_is_left_out(monkeypatch):
    # The tape's device is the host, which a recording may not write to.
    monkeypatch.setattr(recordings._Host, "compare", lambda before, after: None)
    calls = calls_of(writer())
    writes_as_without_a_recording(calls.model, calls.applied)
    assert calls.replayed == 4


@pytest.mark.slow
def test_a_cache_that_the_program_carries_on_is_not():
    calls, cache = calls_of(writer()), None
    for _ in range(4):
        cache = calls.model(torch.ones(2, 3, dtype=torch.long), cache).past_key_values
    assert cache.get_seq_length() == 12
    assert calls.engaged()[1].startswith("the model takes a DynamicCache")


@pytest.mark.gpu
def test_a_cache_for_generation_is_left_out_on_the_gpu():
    model = writer().cuda()
    writes_as_without_a_recording(model, cuda_graphs.apply(Job(), model, {}))


def hooked(model):
    model.layer.register_forward_hook(lambda *_: None)
    return model


def sparse(model):
    model.words = nn.Embedding(4, 4, sparse=True)
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
        (lambda: sparse(Net()), "sparse"),
        (lambda: nn.Sequential(torch.compile(Net(), backend="eager")), "itself"),
        (Net, None),
    ],
)
def test_cannot(model, word):
    reason = cuda_graphs._cannot(model())
    assert reason is None if word is None else word in reason


def test_declined_on_the_cpu():
    with pytest.raises(Declined, match="on cpu"):
        cuda_graphs.apply(Job(), Net(), {})


def facts(**change):
    return JobFacts(**{**vars(FACTS), **change})


def test_promise_and_by_hand():
    assert cuda_graphs.promise(FACTS, {}) > 1.2 > cuda_graphs.promise(facts(step_s=0.5), {})
    compile(cuda_graphs.by_hand(FACTS, {}), "by_hand", "exec")


class Deep(Net):
    """With temporaries in its forward pass, whose memory the backward pass may be given."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.last = nn.Linear(64, 8)

    def forward(self, x):
        return super().forward(self.last(self.body(x * 2) + 1).sin())


@pytest.mark.gpu
@pytest.mark.parametrize("idiom", IDIOMS)
def test_kept_gradients_on_the_gpu(idiom):
    torch.manual_seed(0)
    model, job = Deep().cuda(), Job()
    applied = [cuda_graphs.apply(job, model, {})]

    def switch(number):
        if number == 6:
            applied[-1].undo()
            applied.append(cuda_graphs.apply(job, model, {}))
            assert applied[-1].steps_to_ready() == 0

    found = keep_gradients(model, copy.deepcopy(model), idiom, "cuda", 12, switch)
    torch.testing.assert_close(*found)
    assert applied[-1].engaged() == (True, "recorded")
    assert graphed_calls.of_job(job)[0].recording.grown > 0


class Recording:
    """torch.cuda.graph, as it is where the recording fails: its own end is never reached."""

    def __init__(self, graph, pool=None, **settings):
        self.settings = settings

    def __enter__(self):
        pass

    def __exit__(self, *error):
        if error[0] is not None:
            raise RuntimeError("operation failed due to a previous error during capture")


class Device:
    """torch.cuda.device, which tells what is the current one."""

    current = "cuda:0"

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        self.before, Device.current = Device.current, str(self.device)

    def __exit__(self, *error):
        Device.current = self.before


class Stream:
    def __init__(self, device):
        self.device = device

    def wait_stream(self, other):
        pass


class Graph:
    """torch.cuda.CUDAGraph, which replays nothing."""

    def replay(self):
        pass


class Failing(Net):
    """Fails in the pass that is recorded."""

    calls = 0

    def forward(self, x):
        Failing.calls += 1
        if Failing.calls > aliases.WARM_UPS:
            raise ValueError("the model's own")
        return self.layer(x)


@pytest.fixture
def cuda(monkeypatch):
    """What `_capture` asks of torch.cuda; the list tells what was asked of clean_up."""
    told = []

    def clean_up(current, random, pools, graph=None):
        told.append((current, random, pools, graph is not None, Device.current))

    before = Stream("before")
    monkeypatch.setattr(torch.cuda, "graph", Recording)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: "the state before")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: before)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(cuda_graphs.captures, "clean_up", clean_up)
    monkeypatch.setattr(Failing, "calls", 0)
    return told


class Tupled(nn.Module):
    """As what is recorded is: from tensors to a tuple of tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *tensors):
        return (self.model(*tensors),)


@pytest.mark.parametrize("begins", [True, False])
def test_a_recording_that_fails_leaves_the_program_as_it_was(cuda, monkeypatch, begins):
    def refuse(self):
        raise RuntimeError("previous error during capture")

    if not begins:
        monkeypatch.setattr(Recording, "__enter__", refuse)
    model = Tupled(Failing())
    before = list(model.parameters())
    with pytest.raises(RuntimeError, match="previous error during capture"):
        cuda_graphs._capture(model, (torch.ones(4, 8),))
    current = torch.cuda.current_stream()
    assert cuda == [(current, "the state before", [(0, 7)], begins, "cpu")]
    assert all(map(lambda one, two: one is two, before, model.parameters()))
    assert Device.current == "cuda:0"


def test_all_is_recorded_on_the_models_device(cuda, monkeypatch):
    """On the current one, which may be another, the graph would be empty."""
    found = []

    class Noted(Recording):
        def __enter__(self):
            found.append((Device.current, self.settings))

    monkeypatch.setattr(torch.cuda, "graph", Noted)
    cuda_graphs._capture(Tupled(nn.Linear(8, 4)), (torch.ones(4, 8),))
    assert [device for device, _ in found] == ["cpu", "cpu"], "the model's"
    streams = {settings.pop("stream") for _, settings in found}
    assert [str(stream.device) for stream in streams] == ["cpu"], "one, and its own"
    assert [settings for _, settings in found] == [{"capture_error_mode": "thread_local"}] * 2
    assert (cuda, Device.current) == ([], "cuda:0")


def test_the_streams_are_joined_after_an_error_as_well(cuda, monkeypatch):
    """What is put back then is on the current one: it must not overtake what the passes write."""
    waited = []
    monkeypatch.setattr(Stream, "wait_stream", lambda self, other: waited.append((self, other)))
    with pytest.raises(RuntimeError, match="shapes"):
        cuda_graphs._capture(Tupled(nn.Linear(8, 4)), (torch.ones(4, 9),))
    (side, current), back = waited
    assert back == (current, side)
    assert current is torch.cuda.current_stream()


def test_hooks_that_came_after_the_boost_are_not_recorded(cuda):
    with pytest.raises(NotRecordable, match="hooks"):
        cuda_graphs._capture(Tupled(hooked(Net())), (torch.ones(4, 8),))
    assert cuda == [], "nothing had begun"


def test_a_hook_that_is_added_later_ends_the_recording(calls):
    for _ in range(4):
        step(calls.model)
    ran = []
    calls.model.layer.register_forward_hook(lambda *_: ran.append(True))
    step(calls.model)
    assert ran == [True]
    assert calls.recording is None


def test_a_tensor_on_the_host_counts_by_its_value():
    model = nn.Linear(4, 4, device="meta")
    model.rate = torch.tensor(1.0)
    weights = graphed_calls.Weights(model)
    first = weights.version()
    assert weights.version() == first
    model.rate.fill_(2.0)
    assert weights.version() != first


def test_a_number_that_is_another_in_each_call_takes_no_memory(calls, monkeypatch):
    monkeypatch.setattr(graphed_calls, "KINDS", 5)
    for number in range(20):
        step(calls.model, flag=number + 1.0)
        assert len(calls.call_counts) <= 5
    assert calls.recorded == []


def test_what_takes_most_of_the_free_memory_is_given_up(calls, monkeypatch):
    monkeypatch.setattr(recordings, "takes_too_much", lambda device, grown: True)
    for _ in range(4):
        step(calls.model)
    assert calls.replayed == 0
    assert calls.engaged() == (False, "it takes 0.0 GiB, most of what is free")


def test_a_failed_recording_is_given_up_for_good_and_leaves_no_trace():
    model, tries = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout()), []
    calls = calls_of(model)

    def capture(whole, samples):
        tries.append(whole(*samples))
        random.random()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    calls.capture = capture
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
    state = forward_state.keep([model])
    never = copy.deepcopy(model)
    expected = [never(torch.ones(4, 8)) for _ in range(3)], random.random()
    state()
    found = [model(torch.ones(4, 8)) for _ in range(3)], random.random()
    reason = "recording failed: operation not permitted when stream is capturing"
    assert calls.engaged() == (False, reason)
    assert len(tries) == 1
    assert all(map(torch.equal, found[0], expected[0]))
    assert found[1] == expected[1]
    assert all(map(torch.equal, model.buffers(), never.buffers()))
