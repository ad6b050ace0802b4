"""cpu-bf16: settings put and taken back, and a check that knows rounding from none."""

import pytest
import torch

from flatout_agent.boost import Declined
from flatout_agent.boosts import cpu_bf16
from flatout_agent.job import Job
from flatout_agent.speedups import float_math
from flatout_agent.speedups.precision import Bf16Support
from flatout_agent.wire import JobFacts, ModelFacts

FACTS = JobFacts(
    torch="2.13.0",
    python="3.11",
    system="linux",
    device="cpu",
    bf16=True,
    models=(ModelFacts("Net", 9, "float32", "cpu", matmul=1),),
)


def settings():
    parts = (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv, torch.backends.cuda.matmul)
    return [torch.get_float32_matmul_precision(), *(part.fp32_precision for part in parts)]


@pytest.fixture
def amx(monkeypatch):
    native = Bf16Support(True, "native (AMX)", "AMX")
    monkeypatch.setattr(float_math, "native_bf16", lambda device: native)


@pytest.fixture
def applied(amx):
    applied = cpu_bf16.apply(Job(), torch, {})
    yield applied
    applied.undo()


def test_undo_restores_every_setting(amx):
    before = settings()
    applied = cpu_bf16.apply(Job(), torch, {})
    assert settings()[:3] == ["medium", "bf16", "bf16"]
    applied.undo()
    assert settings() == before


def test_engaged_says_what_the_cpu_really_computes(applied):
    engaged, detail = applied.engaged()
    # Whatever oneDNN does here, the answer must follow from the numbers.
    assert engaged is (1e-4 < float_math.rounding_error() < 3e-2)
    assert "relative error" in detail


def test_the_scripts_own_setting_has_the_last_word(applied):
    torch.set_float32_matmul_precision("high")
    assert applied.engaged() == (False, "the script set the matmul precision itself")


@pytest.mark.parametrize(
    ("native", "word"),
    [
        (Bf16Support(False, "emulated"), "emulated"),
        (Bf16Support(True, "native (AVX512_BF16)", "AVX512_BF16"), "needs AMX"),
    ],
)
def test_declined_where_onednn_would_keep_float32(monkeypatch, native, word):
    monkeypatch.setattr(float_math, "native_bf16", lambda device: native)
    before = settings()
    with pytest.raises(Declined, match=word):
        cpu_bf16.apply(Job(), torch, {})
    assert settings() == before


def test_declined_when_the_precision_is_set_already(applied):
    with pytest.raises(Declined, match=r"sets the matmul precision itself \(medium\)"):
        cpu_bf16.apply(Job(), torch, {})


def test_a_rounded_product_is_told_from_an_exact_one(monkeypatch):
    assert float_math.rounding_error() < 1e-6
    real = torch.randn

    class Rounded:
        def __init__(self, full):
            self.full = full

        def double(self):
            return self.full.double()

        def __matmul__(self, other):
            return (self.full.bfloat16().float()) @ (other.full.bfloat16().float())

    def rounded(*shape, generator):
        return Rounded(real(*shape, generator=generator))

    monkeypatch.setattr(torch, "randn", rounded)
    assert 1e-3 < float_math.rounding_error() < 1e-2


def test_promise_and_by_hand(amx):
    assert cpu_bf16.promise(FACTS, {}) > 1.0
    undo = cpu_bf16.apply(Job(), torch, {}).undo
    ours = settings()
    undo()
    exec(cpu_bf16.by_hand(FACTS, {}), {"torch": torch})
    by_hand = settings()
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.conv.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.backends.cuda.matmul.fp32_precision = "none"
    assert by_hand == ours
