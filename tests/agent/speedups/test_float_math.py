"""float_math: every setting comes back, and what products say of the precision."""

import pytest
import torch

from flatout_agent.boost import Declined
from flatout_agent.speedups import float_math


def settings():
    parts = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv]
    named = [part.fp32_precision for part in parts if hasattr(part, "fp32_precision")]
    return [torch.get_float32_matmul_precision(), *named]


@pytest.mark.parametrize(("precision", "convolutions"), [("high", None), ("medium", "bf16")])
def test_every_setting_comes_back(precision, convolutions):
    before = settings()
    undo = float_math.set_precision(precision, convolutions)
    try:
        assert torch.get_float32_matmul_precision() == precision
        assert settings() != before
    finally:
        undo()
    assert settings() == before


def test_a_choice_of_the_script_is_refused_by_name():
    undo = float_math.set_precision("high")
    try:
        with pytest.raises(Declined, match=r"sets the matmul precision itself \(high\)"):
            float_math.refuse_own_choice()
    finally:
        undo()
    float_math.refuse_own_choice()


def test_a_rounded_product_is_told_from_an_exact_one(monkeypatch):
    assert float_math.rounding_error() < 1e-6
    real = torch.randn

    def rounded(*shape, generator):
        return Rounded(real(*shape, generator=generator))

    class Rounded:
        def __init__(self, full):
            self.full = full

        def double(self):
            return self.full.double()

        def __matmul__(self, other):
            return (self.full.bfloat16().float()) @ (other.full.bfloat16().float())

    monkeypatch.setattr(torch, "randn", rounded)
    assert 1e-3 < float_math.rounding_error() < 1e-2
