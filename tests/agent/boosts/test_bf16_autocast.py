"""bf16-autocast against the real autocast on this CPU (native support is a seam)."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from flatout_agent.attach.chain import Depth
from flatout_agent.boost import Declined
from flatout_agent.boosts import bf16_autocast
from flatout_agent.job import Job
from flatout_agent.speedups import precision
from flatout_agent.speedups.precision import Bf16Support
from flatout_agent.wire import JobFacts, ModelFacts
from guarded import Made

MODEL = ModelFacts(kind="Net", parameters=1_000_000, dtype="float32", device="cpu", matmul=2)
FACTS = JobFacts(
    torch="2.13.0", python="3.11", system="linux", device="cpu", bf16=True, models=(MODEL,)
)


@pytest.fixture(autouse=True)
def native(monkeypatch):
    monkeypatch.setattr(precision, "native_bf16", lambda device: Bf16Support(True, "native (fake)"))


class Net(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        self.reentrant = reentrant
        self.seen = []

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        self.seen.append(hidden.dtype)
        if self.reentrant is not None:
            return checkpoint(self.last, hidden, use_reentrant=self.reentrant)
        return {"logits": self.last(hidden)}


def grads(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def boosted(model):
    job = Job()
    job.models.append(model)
    return bf16_autocast.apply(job, model, {})


@pytest.mark.parametrize("part", [False, True])
def test_copies_on_several_gpus_would_be_in_float16(part):
    parallel = nn.DataParallel(Net())
    model = nn.Sequential(parallel) if part else parallel
    parallel.device_ids = [0]
    boosted(model).undo()
    parallel.device_ids = [0, 1]
    with pytest.raises(Declined, match="in float16"):
        boosted(model)


def test_products_in_bfloat16_outputs_and_gradients_in_float32():
    torch.manual_seed(0)
    model, x = Net(), torch.randn(8, 16)
    model(x)["logits"].square().mean().backward()
    plain = grads(model)
    model.zero_grad()
    applied = boosted(model)
    out = model(x)
    assert model.seen[-1] == torch.bfloat16
    assert out["logits"].dtype == torch.float32
    out["logits"].square().mean().backward()
    error = (grads(model) - plain).norm() / plain.norm()
    assert 1e-5 < error < 3e-2, "rounded, and no more than rounded"
    assert grads(model).dtype == torch.float32
    assert applied.engaged() == (True, "bfloat16 native (fake)")


def test_evaluation_runs_in_bfloat16_too():
    model = Net().eval()
    boosted(model)
    with torch.no_grad():
        assert model(torch.randn(2, 16))["logits"].dtype == torch.float32
    assert model.seen == [torch.bfloat16]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_evaluates_padded_batches_as_written():
    """torch's own path for them fails under autocast on a CPU, and gives zeros at the padding."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(4, 6, 32), torch.zeros(4, 6, dtype=torch.bool)
    padding[:, 4:] = True
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        assert not plain[:, 4:].any()
        boosted(model)
        assert torch.equal(model(x, src_key_padding_mask=padding), plain)
    assert not torch.equal(model(x, src_key_padding_mask=padding)[:, :4], plain[:, :4])


def test_an_evaluation_that_fails_under_autocast_is_made_as_written():
    class Picky(nn.Linear):
        def forward(self, x):
            calls.append(torch.is_autocast_enabled("cpu"))
            if calls[-1] and not torch.is_grad_enabled():
                raise RuntimeError("expected scalar type Float but found BFloat16")
            return super().forward(x)

    calls: list[bool] = []
    model, x = Picky(8, 4), torch.randn(2, 8)
    boosted(model)
    model(x)
    for _ in range(2):
        with torch.no_grad():
            assert model(x).dtype is torch.float32
    assert calls == [True, True, True, False, False], "tried again under autocast once"


def test_the_scripts_own_autocast_is_left_alone():
    model = Net()
    applied = boosted(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(2, 16))["logits"].dtype == torch.bfloat16
    assert applied.engaged() == (False, "the script runs the model under its own autocast")


def test_a_model_without_products_did_not_engage():
    model = Made(lambda model, x: x * model.factor, factor=nn.Parameter(torch.ones(4)))
    applied = boosted(model)
    model(torch.randn(4)).sum().backward()
    assert applied.engaged() == (False, "no operation of the model ran in bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_recomputes_in_the_same_precision(reentrant):
    model = Net(reentrant)
    boosted(model)
    model(torch.randn(4, 16, requires_grad=True)).sum().backward()
    assert torch.isfinite(grads(model)).all()


def test_copies_and_pickles_see_nothing():
    model = Net()
    boosted(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.randn(2, 16))
        assert twin.seen[-1] == torch.float32


def test_compile_sits_inside():
    model, depths = Net(), []
    job = Job()

    def inner(call):
        def watched(*args):
            depths.append(torch.is_autocast_enabled("cpu"))
            return call(*args)

        return watched

    bf16_autocast.apply(job, model, {})
    job.wrap_call(model, Depth.COMPILE, inner)
    model(torch.randn(2, 16))
    assert depths == [True]


def test_declined_where_it_would_be_emulated(monkeypatch):
    emulated = Bf16Support(False, "oneDNN would emulate it")
    monkeypatch.setattr(precision, "native_bf16", lambda *_: emulated)
    with pytest.raises(Declined, match="emulate"):
        boosted(Net())


def test_by_hand_runs_and_gives_the_same_result():
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    applied_to = copy.deepcopy(model)
    boosted(applied_to)
    inputs, targets = torch.randn(8, 16), torch.randn(8, 4)
    scope = {"torch": torch, "model": model, "inputs": inputs, "targets": targets}
    scope["loss_fn"] = nn.functional.mse_loss
    exec(bf16_autocast.by_hand(FACTS, {}), scope)
    assert torch.equal(scope["output"], applied_to(inputs))
