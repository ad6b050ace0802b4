"""liger-kernels: what Liger patches is put back at once, calls are redirected, and undone.

A stand-in package does to the model and the modeling file what Liger's does; its "kernels" are
PyTorch's own operations, marked by a count. The real package runs where there is a GPU.
"""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import io
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import liger_kernels as boost
from flatout_agent.job import Job
from flatout_agent.speedups import redirected

transformers: Any
modeling: Any


MODULES = 2 * 3 + 1  # per layer two norms and a feed-forward part; the last norm
TOKENS = torch.arange(24).reshape(2, 12)

PATCH = '''
"""What liger_kernel.transformers.monkey_patch does, with counted PyTorch for kernels."""
import inspect
import torch
from torch import nn

COUNTS = {"norm": 0, "mlp": 0, "rope": 0}
FAIL = []
SEEN = []

class LigerRMSNorm(nn.Module):
    def forward(self, x):
        if FAIL:
            raise RuntimeError("no compiler\\nand more")
        COUNTS["norm"] += 1
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.offset + self.weight) * y

    def extra_repr(self):
        return "Liger"

class LigerSwiGLUMLP(nn.Module):
    def forward(self, x):
        COUNTS["mlp"] += 1
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    COUNTS["rope"] += 1
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    def turned(x):
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
    return turned(q), turned(k)

def liger_cross_entropy(*args, **kwargs):
    raise AssertionError("not asked for")

def bind(module, name, function):
    module.__dict__[name] = function.__get__(module, module.__class__)

def norm(module):
    module.offset = 0.0
    module.in_place = True
    module.variance_epsilon = getattr(module, "variance_epsilon", None) or 1e-6
    bind(module, "forward", LigerRMSNorm.forward)
    bind(module, "extra_repr", LigerRMSNorm.extra_repr)
    bind(module, "_get_name", lambda self: "LigerRMSNorm")

def qwen2(rope=True, cross_entropy=False, fused_linear_cross_entropy=True, rms_norm=True,
          swiglu=True, model=None):
    from transformers.models.qwen2 import modeling_qwen2
    if model is not None:
        SEEN.append((rope, cross_entropy, fused_linear_cross_entropy, rms_norm, swiglu))
    if rope:
        modeling_qwen2.apply_rotary_pos_emb = liger_rotary_pos_emb
    if rms_norm:
        modeling_qwen2.Qwen2RMSNorm = LigerRMSNorm
        modeling_qwen2.LigerNewName = LigerRMSNorm
        nn.LayerNorm = LigerRMSNorm
    if swiglu:
        modeling_qwen2.Qwen2MLP = LigerSwiGLUMLP
    if cross_entropy:
        nn.functional.cross_entropy = liger_cross_entropy
    if fused_linear_cross_entropy:
        model.forward = None
    if model is None:
        return
    base = getattr(model, model.base_model_prefix, model)
    if rms_norm:
        norm(base.norm)
    for layer in base.layers:
        if swiglu:
            bind(layer.mlp, "forward", LigerSwiGLUMLP.forward)
            bind(layer.mlp, "_get_name", lambda self: "LigerSwiGLUMLP")
        if rms_norm:
            norm(layer.input_layernorm)
            norm(layer.post_attention_layernorm)
    for late in LATE:
        late(model)

LATE = []
MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen2": qwen2}

def _apply_liger_kernel_to_instance(model, **kwargs):
    patch = MODEL_TYPE_TO_APPLY_LIGER_FN[model.config.model_type]
    known = inspect.signature(patch).parameters
    patch(model=model, **{key: value for key, value in kwargs.items() if key in known})
'''


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Where these tests run, and not where they are only collected: it takes seconds."""
    global transformers, modeling
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.qwen2.modeling_qwen2")


@pytest.fixture
def liger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in package, and CPU tensors taken as if they were on a GPU."""
    inner = tmp_path / "liger_kernel" / "transformers"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").touch()
    (inner / "__init__.py").touch()
    (inner / "monkey_patch.py").write_text(PATCH)
    _forget_liger()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(boost, "DEVICE", "cpu")
    redirected._functions.clear()
    yield importlib.import_module("liger_kernel.transformers.monkey_patch")
    redirected._functions.clear()
    _forget_liger()


def _forget_liger() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "liger_kernel"]:
        del sys.modules[name]


def qwen(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes | heads | changes))


def boosted(model: nn.Module) -> Applied:
    return boost.apply(Job(), model, {})


def results(model: Any) -> list[torch.Tensor]:
    """Logits, loss and all gradients of one step."""
    model.zero_grad()
    output = model(input_ids=TOKENS, labels=TOKENS)
    output.loss.backward()
    gradients = [item.grad.clone() for item in model.parameters()]
    return [output.logits.detach(), output.loss.detach(), *gradients]


def same_bits(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def state(model: Any) -> list[Any]:
    """All that Liger may write on, by identity."""
    places: list[dict[str, Any]] = [vars(modeling), vars(nn), vars(functional)]
    for module in model.modules():
        places += [module.__dict__, module._parameters, module._buffers, module._modules]
    kinds = [item for item in vars(modeling).values() if isinstance(item, type)]
    forwards = [id(kind.__dict__.get("forward")) for kind in kinds]
    return [[(name, id(value)) for name, value in place.items()] for place in places] + forwards


def test_kernels_run_in_every_layer_and_compute_the_same(liger: Any) -> None:
    model = qwen()
    before = results(model)
    applied = boosted(model)
    under = results(model)
    assert liger.COUNTS == {"norm": 5, "mlp": 2, "rope": 2}
    assert applied.engaged() == (True, f"{MODULES} modules run by Liger's kernels")
    torch.testing.assert_close(under, before)


def test_undo_restores_every_object_and_every_bit(liger: Any) -> None:
    model = qwen()
    before, kept = results(model), state(model)
    for _ in range(3):
        applied = boosted(model)
        results(model)
        applied.undo()
        model.zero_grad()
        assert state(model) == kept
    counts = dict(liger.COUNTS)
    assert same_bits(results(model), before)
    assert counts == liger.COUNTS


def test_only_slots_and_the_rotation_stay_changed_while_it_is_on(liger: Any) -> None:
    model = qwen()
    names = {id(module): list(module.__dict__) for module in model.modules()}
    kept = (modeling.Qwen2RMSNorm, modeling.Qwen2MLP, nn.LayerNorm, functional.cross_entropy)
    rotation, text = modeling.apply_rotary_pos_emb, repr(model)
    applied = boosted(model)
    changed = [m for m in model.modules() if list(m.__dict__) != names[id(m)]]
    assert len(changed) == MODULES
    for module in changed:
        assert set(module.__dict__) - set(names[id(module)]) == {"_compiled_call_impl"}
    now = (modeling.Qwen2RMSNorm, modeling.Qwen2MLP, nn.LayerNorm, functional.cross_entropy)
    assert now == kept
    assert not hasattr(modeling, "LigerNewName")
    assert repr(model) == text
    assert modeling.apply_rotary_pos_emb is not rotation
    applied.undo()
    assert modeling.apply_rotary_pos_emb is rotation


def test_the_losses_stay_the_programs_own(liger: Any) -> None:
    boosted(qwen())
    assert liger.SEEN == [(True, False, False, True, True)]


def test_an_activation_that_the_kernel_does_not_compute_keeps_its_layers(liger: Any) -> None:
    boosted(qwen(hidden_act="gelu"))
    assert liger.SEEN == [(True, False, False, True, False)]


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies_know_nothing_of_it(liger: Any, way: str) -> None:
    model = qwen()
    before = results(model)
    boosted(model)
    counts = dict(liger.COUNTS)
    stream = io.BytesIO()
    if way == "deepcopy":
        made = copy.deepcopy(model)
    elif way == "pickle":
        made = pickle.loads(pickle.dumps(model))
    else:
        torch.save(model, stream)
        made = torch.load(io.BytesIO(stream.getvalue()), weights_only=False)
    assert all(
        list(m.__dict__) == list(o.__dict__)
        for m, o in zip(made.modules(), qwen().modules(), strict=True)
    )
    torch.testing.assert_close(results(made), before)
    assert liger.COUNTS["norm"] == counts["norm"]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
def test_recomputed_layers_take_the_same_way_as_before(liger: Any) -> None:
    model = qwen().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    before = results(model)
    boosted(model)
    torch.testing.assert_close(results(model), before)
    assert liger.COUNTS["norm"] == 2 * 4 + 1


def test_two_models_of_a_type_share_the_function_until_both_are_done(liger: Any) -> None:
    rotation = modeling.apply_rotary_pos_emb
    one, two = qwen(), qwen()
    first, second = boosted(one), boosted(two)
    first.undo()
    assert modeling.apply_rotary_pos_emb is not rotation
    results(two)
    assert liger.COUNTS["rope"] == 2
    second.undo()
    assert modeling.apply_rotary_pos_emb is rotation


def test_a_function_wrapped_by_others_since_stays_and_passes_on(
    liger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = qwen()
    before = results(model)
    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", modeling.apply_rotary_pos_emb)
    applied = boosted(model)
    ours = modeling.apply_rotary_pos_emb
    wrapper: Callable[..., Any] = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    modeling.apply_rotary_pos_emb = wrapper
    applied.undo()
    assert modeling.apply_rotary_pos_emb is wrapper
    assert same_bits(results(model), before)
    assert liger.COUNTS["rope"] == 0


def test_a_model_inside_another_module_and_the_base_model_alone(liger: Any) -> None:
    class Holder(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

    applied = boosted(Holder(qwen()))
    applied.undo()
    base = qwen().model
    applied = boosted(base)
    base(input_ids=TOKENS)
    assert applied.engaged() == (True, f"{MODULES} modules run by Liger's kernels")


def test_modules_with_hooks_or_an_own_forward_run_as_written(liger: Any) -> None:
    model = qwen()
    boosted(model)
    model.model.norm.register_forward_hook(lambda *_: None)
    mlp = model.model.layers[0].mlp
    mlp.forward = type(mlp).forward.__get__(mlp)
    results(model)
    assert liger.COUNTS == {"norm": 4, "mlp": 1, "rope": 2}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["float64", "subclass", "vmap", "mode", "traced"])
def test_what_is_not_a_plain_call_runs_as_written(liger: Any, kind: str) -> None:
    model = qwen()
    boosted(model)
    norm = model.model.norm
    x = torch.randn(3, 32)
    if kind == "float64":
        norm(x.double())
    elif kind == "subclass":
        norm(x.as_subclass(type("Mine", (torch.Tensor,), {})))
    elif kind == "vmap":
        torch.func.vmap(norm)(x)
    elif kind == "mode":
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False):
            norm(x)
    else:
        norm.requires_grad_(False)
        torch.jit.trace(lambda value: norm(value), x, check_trace=False)
    assert liger.COUNTS["norm"] == 0
    norm(x)
    assert liger.COUNTS["norm"] == 1


def test_a_kernel_that_fails_is_left_and_the_call_made_as_written(liger: Any) -> None:
    model = qwen()
    before = results(model)
    applied = boosted(model)
    liger.FAIL.append(True)
    torch.testing.assert_close(results(model), before)
    held, detail = applied.engaged() or (False, "")
    assert held  # the feed-forward parts
    assert detail == "2 modules run by Liger's kernels; a kernel failed: no compiler"


def test_an_error_of_the_program_reaches_it(liger: Any) -> None:
    model = qwen()
    boosted(model)
    with pytest.raises(RuntimeError, match=r"size of tensor|shapes"):
        model.model.layers[0].mlp(torch.randn(3, 7))


@pytest.mark.slow
def test_undo_keeps_no_model_alive(liger: Any) -> None:
    model = qwen()
    applied = boosted(model)
    gone = [weakref.ref(module) for module in model.modules()]
    del model
    gc.collect()
    assert [reference() for reference in gone if reference() is not None] == []
    applied.undo()


def test_what_liger_cannot_patch_leaves_no_trace(liger: Any) -> None:
    def fail(model: Any) -> None:
        raise TypeError("Unsupported class")

    model = qwen()
    kept = state(model)
    liger.LATE.append(fail)
    with pytest.raises(Declined, match="refused the model: Unsupported class"):
        boosted(model)
    assert state(model) == kept


@pytest.mark.parametrize("part", ["child", "class", "attribute"])
def test_changes_that_cannot_be_redirected_are_declined(liger: Any, part: str) -> None:
    def more(model: Any) -> None:
        if part == "child":
            model.model.layers[0].mlp.act_fn = nn.ReLU()
        elif part == "class":
            modeling.Qwen2ForCausalLM.forward = more
        else:
            model.lm_head.extra = 3

    model = qwen()
    kept = state(model)
    liger.LATE.append(more)
    with pytest.raises(Declined, match="cannot be redirected"):
        boosted(model)
    assert state(model) == kept


def test_declines(liger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(model: nn.Module) -> str:
        with pytest.raises(Declined) as caught:
            boosted(model)
        return str(caught.value)

    assert "not from Hugging Face" in reason(nn.Linear(2, 2))
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    assert "no RMSNorm" in reason(transformers.BertModel(config))
    assert "DataParallel" in reason(nn.DataParallel(qwen()))
    model = qwen()
    model.model.norm.compile(backend="eager")
    assert "compiles" in reason(model)
    monkeypatch.setattr(boost, "DEVICE", "cuda")
    assert "not all of the model is on cuda" in reason(qwen())
    monkeypatch.setattr(boost, "DEVICE", "cpu")
    del liger.MODEL_TYPE_TO_APPLY_LIGER_FN["qwen2"]
    assert reason(qwen()) == "liger-kernel has no kernels for models of type 'qwen2'"
    del liger.MODEL_TYPE_TO_APPLY_LIGER_FN
    assert "not known" in reason(qwen())


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "DEVICE", "cpu")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Declined, match="pip install liger-kernel"):
        boosted(qwen())


def test_a_package_that_does_not_load_is_declined(liger: Any, tmp_path: Path) -> None:
    _forget_liger()
    text = "raise ImportError('liger-kernel requires transformers >= 9')"
    (tmp_path / "liger_kernel" / "transformers" / "monkey_patch.py").write_text(text + "#" * 9000)
    with pytest.raises(Declined, match="does not work here: liger-kernel requires"):
        boosted(qwen())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_real_package_on_a_gpu(dtype: torch.dtype) -> None:
    pytest.importorskip("liger_kernel")
    model = qwen().to("cuda", dtype)
    tokens = TOKENS.cuda()

    def step() -> list[torch.Tensor]:
        model.zero_grad()
        output = model(input_ids=tokens, labels=tokens)
        output.loss.backward()
        gradients = [item.grad.float().clone() for item in model.parameters()]
        return [output.logits.detach().float(), *gradients]

    before = step()
    applied = boosted(model)
    under = step()
    assert applied.engaged() == (True, f"{MODULES} modules run by Liger's kernels")
    share = 1e-4 if dtype is torch.float32 else 0.1
    for one, two in zip(under, before, strict=True):
        assert float((one - two).norm()) <= share * float(two.norm()) + 1e-6
    applied.undo()
    torch.testing.assert_close(step(), before)
