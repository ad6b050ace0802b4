import random

import pytest
import torch
from torch import nn

from flatout_train.checkpoint.checkpoint import Checkpoint
from flatout_train.checkpoint.tracked import fit
from flatout_train.errors import CheckpointError


def make(width=8):
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(
        nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100),
    }


def train(things, checkpoint, upto):
    while checkpoint.steps < upto:
        things["optimizer"].zero_grad()
        things["model"](torch.randn(8, 4) * random.random()).square().mean().backward()
        things["optimizer"].step()
        things["scheduler"].step()
        checkpoint.after_step()


def weights(things):
    return {key: value.clone() for key, value in things["model"].state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "parallel, compiled": lambda model: compiled(nn.DataParallel(model)),
    "inner compiled": lambda model: model.append(compiled(model.pop(3))),
    "inner parallel": lambda model: model.append(nn.DataParallel(model.pop(3))),
}


@pytest.mark.parametrize("loaded", WRAPPERS)
@pytest.mark.parametrize("saved", WRAPPERS)
def test_a_wrapped_model_loads(tmp_path, saved, loaded):
    things = make()
    model = WRAPPERS[saved](things["model"])
    expected = [value.clone() for value in model.state_dict().values()]
    with Checkpoint(tmp_path, model=model) as checkpoint:
        checkpoint.save()
    model = WRAPPERS[loaded](make()["model"])
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with Checkpoint(tmp_path, model=model) as checkpoint:
        checkpoint.resume()
    assert all(map(torch.equal, model.state_dict().values(), expected))


def test_a_model_of_another_size_changes_nothing(tmp_path):
    things = make()
    with Checkpoint(tmp_path, every=2, **things) as checkpoint:
        train(things, checkpoint, 2)
    other = make(width=9)
    train(other, Checkpoint(tmp_path / "other", every=None, **other), 3)
    before = weights(other)
    rates = repr(other["optimizer"].state_dict()), repr(other["scheduler"].state_dict())
    randoms = torch.get_rng_state()
    with Checkpoint(tmp_path, **other) as checkpoint, pytest.raises(CheckpointError) as caught:
        checkpoint.resume()
    assert "0.weight is [8, 4] in it and [9, 4] now" in str(caught.value)
    assert "and 2 more" in str(caught.value)
    assert same(weights(other), before)
    assert (repr(other["optimizer"].state_dict()), repr(other["scheduler"].state_dict())) == rates
    assert torch.equal(torch.get_rng_state(), randoms)


def test_a_later_thing_that_fails_puts_the_earlier_ones_back(tmp_path):
    class Picky:
        state_dict = staticmethod(lambda: {"a": 1})

        def load_state_dict(self, state):
            raise KeyError("b")

    things = make()
    with Checkpoint(tmp_path, every=None, **things, z=Picky()) as checkpoint:
        train(things, checkpoint, 3)
        checkpoint.save()
    things = make()
    before = weights(things)
    with (
        Checkpoint(tmp_path, **things, z=Picky()) as checkpoint,
        pytest.raises(CheckpointError, match=r"z in .*step-00000003 does not fit .*'b'"),
    ):
        checkpoint.resume()
    assert same(weights(things), before)
    assert things["optimizer"].state_dict()["state"] == {}


def test_missing_and_additional_names(tmp_path):
    with Checkpoint(tmp_path, model=nn.Linear(2, 2), other=nn.Linear(1, 1)) as checkpoint:
        checkpoint.save()
    model = nn.Linear(2, 2, bias=False)
    with (
        Checkpoint(tmp_path, model=model, other=nn.Linear(1, 1)) as checkpoint,
        pytest.raises(CheckpointError, match=r"bias \[2\] is only in it"),
    ):
        checkpoint.resume()
    with (
        Checkpoint(tmp_path, model=nn.Linear(2, 2), ema=nn.Linear(1, 1)) as checkpoint,
        pytest.raises(CheckpointError, match="holds no ema"),
    ):
        checkpoint.resume()
    with (
        Checkpoint(tmp_path, model=nn.Linear(2, 2)) as checkpoint,
        pytest.warns(UserWarning, match="other in .* is not tracked"),
    ):
        checkpoint.resume()


def test_names_that_are_the_same_but_for_wrappers_are_matched_and_others_are_not():
    averaged = {"n_averaged": 1, "module.weight": 2}
    assert fit(averaged, dict.fromkeys(averaged)) == averaged
    assert fit({"module._orig_mod.a": 1}, {"a": 0}) == {"a": 1}
    assert fit({"net": {"a.b": 1}}, {"net": {"a._orig_mod.b": 0}}) == {"net": {"a._orig_mod.b": 1}}
    twice = {"a": 1, "module.a": 2}
    assert fit(twice, {"a": 0}) == twice
    assert fit({"a": 1}, {"b": 0}) == {"a": 1}
