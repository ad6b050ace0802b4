import pytest
import torch
from torch import nn

from flatout_train.checkpoint.checkpoint import Checkpoint
from flatout_train.errors import CheckpointError


def make(width=8):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1)
    )
    return {"model": model}


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "parallel, compiled": lambda model: compiled(nn.DataParallel(model)),
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


def test_a_model_of_another_size_does_not_fit(tmp_path):
    with Checkpoint(tmp_path, model=make()["model"]) as checkpoint:
        checkpoint.save()
    with (
        Checkpoint(tmp_path, model=make(width=9)["model"]) as checkpoint,
        pytest.raises(
            CheckpointError, match=r"(?s)model in .*step-00000000 does not fit .*0\.weight"
        ),
    ):
        checkpoint.resume()


def test_missing_and_additional_names(tmp_path):
    with Checkpoint(tmp_path, model=nn.Linear(2, 2), other=nn.Linear(1, 1)) as checkpoint:
        checkpoint.save()
    model = nn.Linear(2, 2, bias=False)
    with (
        Checkpoint(tmp_path, model=model, other=nn.Linear(1, 1)) as checkpoint,
        pytest.raises(CheckpointError, match="bias"),
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
