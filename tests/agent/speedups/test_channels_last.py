"""channels_last: which tensors are converted, and a model that refuses the format."""

import pytest
import torch
from torch import nn

from flatout_agent.speedups.channels_last import ChannelsLast, convolutions, is_channels_last


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
