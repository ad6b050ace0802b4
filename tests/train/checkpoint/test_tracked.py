import pytest
import torch
from torch import nn

from flatout_train.checkpoint.checkpoint import Checkpoint
from flatout_train.errors import CheckpointError


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
    model = WRAPPERS[saved](nn.Linear(4, 2))
    expected = [value.clone() for value in model.state_dict().values()]
    with Checkpoint(tmp_path, model=model) as checkpoint:
        checkpoint.save()
    model = WRAPPERS[loaded](nn.Linear(4, 2))
    with Checkpoint(tmp_path, model=model) as checkpoint:
        checkpoint.resume()
    assert all(map(torch.equal, model.state_dict().values(), expected))


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
