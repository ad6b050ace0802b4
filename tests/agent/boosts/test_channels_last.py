"""channels-last on real convolutions."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from flatout_agent.boost import Declined
from flatout_agent.boosts import channels_last, fast_dropout
from flatout_agent.job import Job
from flatout_agent.speedups.channels_last import ChannelsLast, convolutions, is_channels_last
from flatout_agent.speedups.usual_draws import usual_draws
from flatout_agent.wire import JobFacts, ModelFacts

FACTS = JobFacts(
    torch="2.13.0",
    python="3.11",
    system="linux",
    device="cpu",
    models=(ModelFacts("Net", 9, "float32", "cpu", conv2d=2, input_shapes=("8x3x9x9",)),),
)


class Net(nn.Module):
    """Records the strides that its second convolution gets; `flatten` as tutorials do it."""

    def __init__(self, channels=3, flatten=torch.flatten):
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.flatten = flatten
        self.seen = []

    def forward(self, x):
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        self.seen.append(hidden.stride()[1])
        return self.flatten(self.second(hidden))


def flatten(x):
    return torch.flatten(x, 1)


def view(x):
    return x.view(x.size(0), -1)


def keep(x):
    return x


def boosted(model):
    return channels_last.apply(Job(), model, {})


@pytest.mark.parametrize("channels", [1, 3])
def test_activations_are_channels_last_and_results_the_same(channels):
    torch.manual_seed(0)
    model, x = Net(channels, flatten).eval(), torch.randn(4, channels, 9, 9)
    before = model(x)
    applied = boosted(model)
    after = model(x)
    assert model.seen == [81, 1], "stride of the channel dimension"
    torch.testing.assert_close(after, before)
    assert applied.engaged() == (True, "")
    applied.undo()
    assert torch.equal(model(x), before)
    assert model.seen[-1] == 81


def test_weights_gradients_and_the_state_dict_keep_their_format():
    model = Net(flatten=flatten)
    weights = list(model.parameters())
    boosted(model)
    model(torch.randn(4, 3, 9, 9)).square().mean().backward()
    assert all(new is old for new, old in zip(model.parameters(), weights, strict=True))
    assert all(p.is_contiguous() and p.grad.is_contiguous() for p in weights)
    assert all(value.is_contiguous() for value in model.state_dict().values())


def test_4d_outputs_come_back_in_the_usual_format():
    model = Net(flatten=keep)
    boosted(model)
    out = model(torch.randn(4, 3, 9, 9))
    assert model.seen == [1]
    assert out.is_contiguous()
    out.view(-1).sum().backward()


def test_the_gradient_of_an_input_can_be_viewed_as_a_gradient_penalty_does():
    torch.manual_seed(0)
    model, data = Net(flatten=flatten).eval(), torch.randn(4, 3, 9, 9)

    def penalty():
        x = (2 * data).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (gradient.view(4, -1).norm(dim=1) - 1).square().mean()

    expected = torch.autograd.grad(penalty(), list(model.parameters())[:2])
    boosted(model)
    torch.testing.assert_close(
        torch.autograd.grad(penalty(), list(model.parameters())[:2]), expected
    )
    assert model.seen == [81, 1]


def test_calls_under_transformations_are_left_alone():
    model, data = Net(flatten=flatten).eval(), torch.randn(4, 3, 9, 9)
    applied = boosted(model)
    gradients = torch.func.vmap(torch.func.grad(lambda x: model(x[None]).sum()))(data)
    assert gradients.shape == data.shape
    assert model.seen == [81]
    assert not applied.engaged()[0]


def test_a_model_that_needs_the_usual_format_runs_as_if_nothing_had_been_tried():
    torch.manual_seed(0)
    plain, x = Net(flatten=view), torch.randn(4, 3, 9, 9)
    model = Net(flatten=view)
    model.load_state_dict(plain.state_dict())
    applied = boosted(model)
    torch.manual_seed(1)
    expected = plain(x)
    torch.manual_seed(1)
    assert torch.equal(model(x), expected), "dropout draws the same numbers"
    assert torch.equal(model.norm.running_mean, plain.norm.running_mean), "statistics taken once"
    engaged, reason = applied.engaged()
    assert not engaged
    assert ".view()" in reason
    model(x)
    assert model.seen[-1] == 81


def test_inputs_that_already_are_channels_last_did_not_engage():
    model = Net(flatten=flatten)
    applied = boosted(model)
    assert applied.engaged() is None
    model(torch.randn(4, 3, 9, 9).to(memory_format=torch.channels_last))
    assert applied.engaged()[0] is False


def test_declined_without_2d_convolutions_or_where_the_script_did_it():
    with pytest.raises(Declined, match="no 2-d"):
        boosted(nn.Sequential(nn.Linear(2, 2), nn.Conv3d(1, 1, 1)))
    with pytest.raises(Declined, match="already"):
        boosted(Net().to(memory_format=torch.channels_last))


def test_promise_and_by_hand():
    assert 1.0 < channels_last.promise(FACTS, {}) < 2.0
    scope = {"torch": torch, "model": Net(), "images": torch.randn(2, 3, 9, 9)}
    exec(channels_last.by_hand(FACTS, {}), scope)
    scope["model"](scope["images"])
    assert scope["model"].seen == [1]


class Dropping(nn.Module):
    """Draws masks between convolutions."""

    def __init__(self, inplace=False, checkpointed=False):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.drop = nn.Dropout(0.3, inplace)
        self.checkpointed = checkpointed

    def middle(self, x):
        return self.second(self.drop(self.first(x) * 1.0))

    def forward(self, x):
        if self.checkpointed:
            return checkpoint(self.middle, x, use_reentrant=False)
        return self.middle(x)


@pytest.mark.parametrize("form", [{}, {"inplace": True}, {"checkpointed": True}])
def test_dropout_drops_what_it_drops_in_the_usual_format(form):
    model, x = Dropping(**form), torch.randn(4, 3, 9, 9)

    def step():
        torch.manual_seed(1)
        model.zero_grad()
        output = model(x)
        output.square().mean().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        return [output, *gradients], torch.rand(1)

    before, next_before = step()
    holders = usual_draws()._stand_ins.holders
    applied = boosted(model)
    after, next_after = step()
    for new, old in zip(after, before, strict=True):
        torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-6)
    assert torch.equal(next_before, next_after), "as many numbers were drawn"
    applied.undo()
    assert usual_draws()._stand_ins.holders == holders


class Noisy(nn.Module):
    """A diffusion model's call: it draws the noise that it learns to find."""

    def __init__(self, draw):
        super().__init__()
        self.net, self.draw = nn.Conv2d(3, 3, 3, padding=1), draw

    def forward(self, image):
        return self.net(image + self.draw(image))


@pytest.mark.parametrize(
    "draw", [lambda x: torch.randn_like(x), lambda x: torch.rand_like(x, dtype=torch.float32)]
)
def test_noise_like_an_image_is_what_it_is_in_the_usual_format(draw):
    model, x = Noisy(draw), torch.randn(4, 3, 9, 9)

    def drawn():
        torch.manual_seed(1)
        return model(x).detach()

    before = drawn()
    applied = boosted(model)
    after = drawn()
    applied.undo()
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(drawn(), before)


def test_images_that_the_program_itself_has_in_channels_last_are_drawn_for_as_before():
    image = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)

    def dropped():
        torch.manual_seed(3)
        return nn.functional.dropout(image, 0.5)

    before = dropped()
    applied = boosted(Dropping())
    assert torch.equal(before, dropped()), "outside the model's call"
    applied.undo()


def test_fast_dropout_beside_it_takes_its_masks():
    model, x = Dropping(), torch.randn(8, 3, 32, 32)
    applied, fast = boosted(model), fast_dropout.apply(Job(), model, {})
    model(x).mean().backward()
    assert fast.engaged()[0]
    fast.undo()
    applied.undo()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compilers_see_torchs_own_dropout():
    model, x = Dropping(), torch.randn(4, 3, 9, 9).to(memory_format=torch.channels_last)
    applied = boosted(model)
    compiled = torch.compile(model.middle, fullgraph=True, backend="aot_eager")
    with usual_draws().inside():
        assert compiled(x).shape == x.shape
        assert torch.jit.script(model.drop)(x).shape == x.shape
        assert torch.func.vmap(model.drop, randomness="different")(x).shape == x.shape
    applied.undo()


# The engine, which the library has too ----------------------------------------------------------


def test_tensors_of_the_wanted_dimensions_alone_are_converted():
    engine = ChannelsLast(nn.Identity(), [4])
    images, volumes = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5, 6)
    labels = torch.zeros(2, 3, 4, 5, dtype=torch.int64)
    nest = engine.to({"images": images, "volumes": volumes, "labels": labels})
    assert is_channels_last(nest["images"])
    assert torch.equal(nest["images"], images)
    assert nest["volumes"] is volumes
    assert nest["labels"] is labels
    assert engine.converted == 1
    assert engine.back(nest)["images"].is_contiguous()
    assert engine.to(nest)["images"] is nest["images"], "what is so already is not copied"


def test_convolutions_of_images_and_volumes():
    model = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Conv2d(1, 1, 1), nn.ConvTranspose3d(1, 1, 1))
    assert convolutions(model) == [model[1], model[2]]
    assert convolutions(model, [4]) == [model[1]]


@pytest.mark.parametrize("keep", [True, False])
def test_a_refusal_makes_the_call_again_from_the_same_random_state(keep):
    engine = ChannelsLast(nn.Identity(), [4])
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)

    def refused():
        torch.rand(2)
        raise RuntimeError("view size is not compatible with input tensor's size and stride")

    drawn = engine.call(refused, lambda: torch.rand(2), keep=keep)
    assert torch.equal(drawn, expected) is keep
    assert ".view()" in engine.refused


def test_an_error_of_the_models_own_is_raised():
    engine = ChannelsLast(nn.Identity(), [4])

    def broken():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        engine.call(broken, lambda: None, keep=True)
    assert not engine.refused
