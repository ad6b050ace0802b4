import random

import numpy as np
import pytest
import torch

from flatout_train.checkpoint import random_states


def draw():
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.random(),
        np.random.standard_normal(3).tolist(),
        torch.rand(3).tolist(),
        torch.randn(20).tolist(),
        torch.randperm(5).tolist(),
    )


@pytest.fixture(autouse=True)
def own_states():
    states = random_states.capture()
    yield
    random_states.restore(states)


def test_the_same_numbers_come_again_through_a_file(tmp_path):
    draw()  # leaves half a pair of normal numbers behind in Python and NumPy
    states = random_states.capture()
    first = draw()
    for _ in range(700):  # more than the Mersenne Twister makes in one go: a state is a copy
        assert draw() != first
    torch.save(states, tmp_path / "states.pt")
    random_states.restore(torch.load(tmp_path / "states.pt", weights_only=True))
    assert draw() == first


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox, np.random.SFC64])
def test_another_bit_generator_of_numpy(bits, tmp_path):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(bits(3))
        states = random_states.capture()
        torch.save(states, tmp_path / "states.pt")
        first = np.random.random(5).tolist()
        random_states.restore(torch.load(tmp_path / "states.pt", weights_only=True))
        assert np.random.random(5).tolist() == first
    finally:
        np.random.set_bit_generator(before)


def test_a_program_without_numpy_stays_without(monkeypatch):
    monkeypatch.delitem(random_states.sys.modules, "numpy")
    states = random_states.capture()
    assert "numpy" not in states
    random_states.restore(states)


def test_devices_that_are_not_here_are_left_out():
    states = random_states.capture()
    states["cuda"] = states["xpu"] = [torch.zeros(16, dtype=torch.uint8)]
    states["mps"] = torch.zeros(16, dtype=torch.uint8)
    if not torch.cuda.is_available():
        random_states.restore(states)
        assert torch.equal(torch.get_rng_state(), states["cpu"])


def test_each_device_gets_its_own_state(monkeypatch):
    given = {}

    class Cuda:
        is_initialized = is_available = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 2)
        get_rng_state_all = staticmethod(lambda: [torch.tensor([n]) for n in (7, 8, 9)])
        set_rng_state = staticmethod(lambda state, device: given.update({device: int(state)}))

    monkeypatch.setattr(torch, "cuda", Cuda)
    random_states.restore(random_states.capture())
    assert given == {0: 7, 1: 8}


@pytest.mark.gpu
def test_the_same_numbers_come_again_on_the_gpu():
    torch.rand(3, device="cuda")
    states = random_states.capture()
    first = torch.rand(1000, device="cuda")
    assert not torch.equal(torch.rand(1000, device="cuda"), first)
    random_states.restore(states)
    assert torch.equal(torch.rand(1000, device="cuda"), first)
