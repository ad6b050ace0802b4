from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import (
    changes,
    cpu_profile,
    findings,
    only,
    profile,
    saved_ms,
)
from diagnosing.job.made_parts import BACKWARD, CONV, FORWARD, STEP, ceilings
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Kernel, Operator, Place, Profile
from machines.healthy import changed

MLP = Place("model.py", 30, "forward", "x = self.up(x)")
HALF, FLOAT, DOUBLE = ("c10::BFloat16",), ("float",), ("double",)
CPU_BF16 = {"matmul-cpu-fp32": (0.5, "TFLOP/s"), "matmul-cpu-bf16": (2.1, "TFLOP/s")}


def operator(name: str, kind: Kind, ms: float, **facts: Any) -> Operator:
    """One operator that takes this long on the device and on the host alike."""
    base = Operator(name, kind, 12.0, ms, ms, ("4096x1024, 1024x4096",), FLOAT, MLP)
    return dataclasses.replace(base, **facts)


def of(base: Profile, *operators: Operator, parts: dict[Kind, float] | None = None) -> Profile:
    """A job of these operators alone."""
    made: Profile = changed(base, operators=operators, kernels=())
    return made


def without_job(base: Profile) -> Profile:
    """As from a trace alone."""
    made: Profile = changed(base, job=None, seen=None, command=())
    return made


def float32_job(**facts: Any) -> Profile:
    """A transformer on an A100 in plain float32, 60 ms of 100 ms in products."""
    base = profile(
        job__autocast=None,
        job__matmul_precision="highest",
        job__models__0__conv2d=0,
        job__models__0__matmul=48,
        **facts,
    )
    return of(base, operator("aten::mm", Kind.MATMUL, 60.0))


def test_float64() -> None:
    job = of(
        profile(job__models__0__dtype="float64"),
        operator("aten::mm", Kind.MATMUL, 60.0, dtypes=DOUBLE),
        operator("aten::add", Kind.ELEMENTWISE, 10.0, dtypes=DOUBLE),
    )
    finding = only("float64-computed", job)
    assert (finding.code, finding.where, finding.boost) == ("KERN001", "model.py:30", None)
    assert "17.6 TFLOP/s in fp64 and 18.9 in fp32" in finding.gain.reason
    assert saved_ms(finding, job) == pytest.approx(60 * (1 - 17.6 / 18.9) + 5, rel=0.01)
    assert "model.float()" in changes(finding)


def test_float64_of_a_loss_alone_is_not_told() -> None:
    tiny = operator("aten::mul", Kind.ELEMENTWISE, 0.4, dtypes=DOUBLE)
    assert findings("float64-computed", of(profile(), tiny)) == ()
    mixed = operator("aten::mm", Kind.MATMUL, 60.0, dtypes=("long", "float"))
    assert findings("float64-computed", of(profile(), mixed)) == ()


def test_float64_of_single_numbers_is_not_told() -> None:
    numbers = operator("aten::to", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=("1",))
    assert findings("float64-computed", of(profile(), numbers)) == ()
    some = operator("aten::to", Kind.CONVERSION, 20.0, dtypes=DOUBLE, shapes=("1", "64x3"))
    assert only("float64-computed", of(profile(), some)).code == "KERN001"


def test_float32_off_tensor_cores() -> None:
    job = float32_job()
    finding = only("float32-off-tensor-cores", job)
    assert (finding.code, finding.where, finding.boost) == ("KERN002", "model.py:30", "tf32")
    assert saved_ms(finding, job) == pytest.approx(60 * (1 - 18.9 / 131), rel=0.01)
    assert 'torch.set_float32_matmul_precision("high")' in changes(finding)


def test_products_far_below_their_ceiling_gain_less() -> None:
    far = changed(float32_job(), operators__0__flops=0.25 * 18.9e12 * 0.06)
    gain = only("float32-off-tensor-cores", far).gain
    full = only("float32-off-tensor-cores", float32_job()).gain
    assert gain.ratio < full.ratio
    assert "reach 25%" in gain.reason


@pytest.mark.parametrize(
    "facts",
    [
        {"job__matmul_precision": "high"},
        {"capability": (7, 5)},
        {"job__hip": True},
        {"operators__0__kind": Kind.TENSOR_CORES},
        {"operators__0__dtypes": HALF},
        {"operators__0__dtypes": ()},
        {"anatomy__device": "cpu"},
    ],
)
def test_float32_elsewhere_is_no_case_for_tf32(facts: dict[str, Any]) -> None:
    assert findings("float32-off-tensor-cores", changed(float32_job(), **facts)) == ()


def test_tf32_from_a_trace_alone() -> None:
    finding = only("float32-off-tensor-cores", without_job(float32_job()))
    assert finding.boost is None
    amd = changed(without_job(float32_job()), device_name="AMD Instinct MI250X")
    assert findings("float32-off-tensor-cores", amd) == ()


def test_tensor_cores_idle() -> None:
    job = float32_job()
    finding = only("tensor-cores-idle", job)
    assert (finding.code, finding.boost) == ("KERN003", "bf16-autocast")
    assert finding.where == str(FORWARD), "the line that calls the model is the one to change"
    assert saved_ms(finding, job) == pytest.approx(60 * (1 - 18.9 / 259), rel=0.01)
    assert "torch.bfloat16" in changes(finding)


def test_tf32_products_gain_what_is_left() -> None:
    job = changed(float32_job(), operators__0__kind=Kind.TENSOR_CORES)
    assert saved_ms(only("tensor-cores-idle", job), job) == pytest.approx(
        60 * (1 - 131 / 259), 0.01
    )


def test_before_ampere_it_is_float16_with_a_scaler() -> None:
    turing = changed(
        float32_job(), capability=(7, 5), job__capability=(7, 5), job__bf16=False, ceilings=()
    )
    finding = only("tensor-cores-idle", turing)
    assert finding.boost == "fp16-autocast"
    assert "scaler.scale(loss)" in changes(finding)
    assert "cautious" in finding.gain.reason


@pytest.mark.parametrize(
    "facts",
    [{"job__autocast": "bfloat16"}, {"capability": (6, 1)}, {"operators__0__dtypes": HALF}],
)
def test_tensor_cores_are_not_idle(facts: dict[str, Any]) -> None:
    assert findings("tensor-cores-idle", changed(float32_job(), **facts)) == ()


def test_cpu_float32_products() -> None:
    job = cpu_profile(job__bf16=True, job__models__0__conv2d=0, ceilings=ceilings(CPU_BF16, "cpu"))
    job = of(job, operator("aten::addmm", Kind.MATMUL, 200.0))
    finding = only("cpu-float32-products", job)
    assert (finding.code, finding.boost) == ("KERN004", "bf16-autocast")
    assert saved_ms(finding, job) == pytest.approx(200 * (1 - 0.5 / 2.1), rel=0.01)
    slower = ceilings({**CPU_BF16, "matmul-cpu-bf16": (0.4, "TFLOP/s")}, "cpu")
    assert findings("cpu-float32-products", changed(job, ceilings=slower)) == ()
    for facts in ({"job__bf16": False}, {"job__bf16": None}, {"job__autocast": "bfloat16"}):
        assert findings("cpu-float32-products", changed(job, **facts)) == ()


def test_dimension_of_the_vocabulary() -> None:
    logits = operator(
        "aten::mm",
        Kind.TENSOR_CORES,
        30.0,
        shapes=("8192x768, 768x50257",),
        dtypes=HALF,
        where=Place("gpt.py", 88, "forward", "logits = self.head(x)"),
    )
    finding = only("dimensions-misaligned", of(profile(), logits))
    assert (finding.code, finding.where) == ("KERN005", "gpt.py:88")
    assert "50257 = 8 * 6282 + 1" in finding.evidence
    assert "size = 50264" in changes(finding)
    padded = dataclasses.replace(logits, shapes=("8192x768, 768x50304",))
    assert findings("dimensions-misaligned", of(profile(), padded)) == ()
    rows = dataclasses.replace(logits, shapes=("8191x768, 768x50304",))
    assert findings("dimensions-misaligned", of(profile(), rows)) == (), "rows may be of any number"
    small = dataclasses.replace(logits, shapes=("8192x768, 768x10",))
    assert findings("dimensions-misaligned", of(profile(), small)) == ()


def test_convolutions_channels_first_on_a_gpu() -> None:
    job = profile(job__models__0__channels_last=False)
    moving = Kernel("void cudnn::nchwToNhwcKernel<__nv_bfloat16>", Kind.CONVERSION, 106.0, 6.0)
    job = changed(job, kernels=(*job.kernels, moving))
    finding = only("convolutions-reordered", job)
    assert (finding.code, finding.boost) == ("KERN006", "channels-last")
    took = 34.6 + 17.3
    assert saved_ms(finding, job) == pytest.approx(6 + (took - 6) * (1 - 118 / 171), rel=0.01)
    assert "nchwToNhwcKernel" in finding.evidence


def test_convolutions_channels_first_on_a_cpu() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    assert only("convolutions-reordered", job).boost == "channels-last"
    measured = {"conv-cpu-nchw-fp32": (0.40, "TFLOP/s"), "conv-cpu-nhwc-fp32": (0.40, "TFLOP/s")}
    even = changed(job, ceilings=ceilings(measured, "cpu"))
    assert findings("convolutions-reordered", even) == ()
    assert findings("convolutions-reordered", without_job(job)) == ()


def test_elementwise_unfused() -> None:
    job = profile({Kind.ELEMENTWISE: 40.0}, job__models__0__compiled=False)
    chain = operator("aten::add_", Kind.ELEMENTWISE, 25.0)
    job = of(job, chain)
    finding = only("elementwise-unfused", job)
    assert (finding.code, finding.where, finding.boost) == ("KERN007", "model.py:30", "compile")
    assert saved_ms(finding, job) == pytest.approx(20.0, rel=0.01)
    assert findings("elementwise-unfused", changed(job, job__models__0__compiled=True)) == ()
    few = profile({Kind.ELEMENTWISE: 5.0}, job__models__0__compiled=False)
    assert findings("elementwise-unfused", of(few, chain)) == ()


def test_random_numbers_of_a_cpu_are_not_fused() -> None:
    job = cpu_profile({Kind.ELEMENTWISE: 200.0}, job__models__0__compiled=False)
    drawn = operator("aten::bernoulli_", Kind.ELEMENTWISE, 190.0)
    assert only("elementwise-unfused", of(job, operator("aten::add", Kind.ELEMENTWISE, 190.0)))
    assert findings("elementwise-unfused", of(job, drawn)) == ()


def test_what_a_boost_cures_already_is_not_told() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    assert only("convolutions-reordered", job).boost == "channels-last"
    assert findings("convolutions-reordered", changed(job, boosts=("channels-last",))) == ()


def attention(**facts: Any) -> tuple[Operator, ...]:
    """Eight heads of a batch of four, 512 long."""
    scores = "4x8x512x512"
    line = Place("attention.py", 21, "forward", "weights = scores.softmax(-1)")
    parts = (
        Operator("aten::bmm", Kind.TENSOR_CORES, 12, 1, 9.0, ("32x512x64, 32x64x512",), HALF, line),
        Operator(
            "aten::bmm", Kind.TENSOR_CORES, 12, 1, 9.0, ("32x512x512, 32x512x64",), HALF, line
        ),
        Operator("aten::_softmax", Kind.REDUCTION, 12, 1, 8.0, (f"{scores}",), FLOAT, line),
        Operator("aten::div", Kind.ELEMENTWISE, 12, 1, 4.0, (scores,), HALF, line),
    )
    return tuple(dataclasses.replace(part, **facts) for part in parts)


def test_attention_by_hand() -> None:
    job = of(profile(), *attention())
    finding = only("attention-by-hand", job)
    assert (finding.code, finding.where) == ("KERN008", "attention.py:21")
    assert saved_ms(finding, job) == pytest.approx(15.0, rel=0.01)
    assert "- weights = scores.softmax(-1)" in changes(finding)
    assert "scaled_dot_product_attention" in changes(finding)


def test_attention_by_hand_without_shapes_or_without_lines() -> None:
    assert only("attention-by-hand", of(profile(), *attention(shapes=())))
    assert only("attention-by-hand", of(profile(), *attention(where=None))).where is None
    assert findings("attention-by-hand", of(profile(), *attention(where=None, shapes=()))) == ()


def test_softmax_and_batched_products_that_do_not_meet() -> None:
    first, second, softmax, div = attention()
    classes = dataclasses.replace(softmax, shapes=("4096x1000",))
    assert findings("attention-by-hand", of(profile(), first, second, div)) == ()
    elsewhere = dataclasses.replace(classes, where=Place("loss.py", 3, "loss"))
    assert findings("attention-by-hand", of(profile(), first, second, elsewhere)) == ()
    other = dataclasses.replace(softmax, shapes=("4x8x512x500",))
    assert findings("attention-by-hand", of(profile(), first, second, other)) == ()
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0)
    assert findings("attention-by-hand", of(profile(), *attention(), fallback)) == ()


def test_attention_on_the_math_path() -> None:
    line = Place("attention.py", 9, "forward", "y = F.scaled_dot_product_attention(q, k, v, mask)")
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0, where=line)
    job = of(profile(), fallback, *attention(where=line))
    finding = only("attention-on-math-path", job)
    assert (finding.code, finding.where) == ("KERN020", "attention.py:9")
    assert "float32" in finding.cure.text
    flash = dataclasses.replace(fallback, name="aten::_scaled_dot_product_flash_attention")
    assert findings("attention-on-math-path", of(profile(), flash, *attention())) == ()


def by_hand(*names: str, line: int = 12) -> tuple[Operator, ...]:
    place = Place("norm.py", line, "forward", "return x * torch.rsqrt(x.pow(2).mean(-1) + eps)")
    return tuple(operator(name, Kind.ELEMENTWISE, 5.0, where=place) for name in names)


def test_normalisation_by_hand() -> None:
    job = profile(job__models__0__compiled=False)
    rms = of(job, *by_hand("aten::pow", "aten::mean", "aten::rsqrt", "aten::mul"))
    finding = only("normalisation-by-hand", rms)
    assert (finding.code, finding.where) == ("KERN009", "norm.py:12")
    assert saved_ms(finding, rms) == pytest.approx(12.0, rel=0.01)
    assert findings("normalisation-by-hand", of(job, *by_hand("aten::mean", "aten::mul"))) == ()
    compiled = changed(rms, job__models__0__compiled=True)
    assert findings("normalisation-by-hand", compiled) == ()


def test_optimizer_unfused() -> None:
    job = profile(
        {Kind.OPTIMIZER: 9.0},
        job__optimizers__0__kind="AdamW",
        job__optimizers__0__fused=None,
        job__optimizers__0__parameters=110_000_000,
    )
    finding = only("optimizer-unfused", job)
    assert (finding.code, finding.where) == ("KERN010", str(STEP))
    assert finding.boost == "fused-optimizer"
    needed = 110e6 * 4 * 7 / (1620e9 * 0.7) * 1e3
    assert saved_ms(finding, job) == pytest.approx(9.0 - needed, rel=0.01)
    for facts in ({"fused": True}, {"from_torch": False}, {"kind": "LBFGS"}):
        named = {f"job__optimizers__0__{key}": value for key, value in facts.items()}
        assert findings("optimizer-unfused", changed(job, **named)) == ()
    quick = profile({Kind.OPTIMIZER: 0.4}, job__optimizers__0__fused=None)
    assert findings("optimizer-unfused", quick) == ()


def test_deterministic_algorithms() -> None:
    filling = operator("aten::fill_", Kind.ELEMENTWISE, 7.0)
    job = changed(of(profile(), filling), seen__deterministic=True)
    finding = only("deterministic-algorithms", job)
    assert (finding.code, finding.severity) == ("KERN011", Severity.WARNING)
    assert saved_ms(finding, job) == pytest.approx(7.0, rel=0.01)
    assert only("deterministic-algorithms", profile(job__deterministic=True)).gain is None
    assert findings("deterministic-algorithms", of(profile(), filling)) == ()


def test_cudnn_not_searching() -> None:
    job = profile(job__cudnn_benchmark=False)
    finding = only("cudnn-not-searching", job)
    assert (finding.code, finding.where) == ("KERN012", str(CONV))
    assert finding.boost == "cudnn-benchmark"
    for facts in ({"seen__input_shapes": 6}, {"job__deterministic": True}, {"job__hip": True}):
        assert findings("cudnn-not-searching", changed(job, **facts)) == ()


def test_cudnn_searching_again() -> None:
    job = profile(seen__input_shapes=9, operators__1__host_ms=40.0)
    finding = only("cudnn-searching-again", job)
    assert (finding.code, finding.where) == ("KERN013", str(FORWARD))
    assert saved_ms(finding, job) == pytest.approx(40.0 - 5.3, rel=0.01)
    assert findings("cudnn-searching-again", profile(seen__input_shapes=2)) == ()
    off = changed(job, job__cudnn_benchmark=False)
    assert findings("cudnn-searching-again", off) == ()


def test_kernels_fill_gpu_badly() -> None:
    low = Kernel(
        "reduce_kernel<512, 1>", Kind.REDUCTION, 40.0, 20.0, "aten::sum", CONV, False, 0.05
    )
    job = profile(kernels=(low,))
    finding = only("kernels-fill-gpu-badly", job)
    assert (finding.code, finding.where) == ("KERN014", str(CONV))
    assert saved_ms(finding, job) == pytest.approx(20 * (1 - 0.05 / 0.4) / 2, rel=0.01)
    for facts in ({"occupancy": 0.9}, {"occupancy": None}, {"kind": Kind.TENSOR_CORES}):
        other = dataclasses.replace(low, **facts)
        assert findings("kernels-fill-gpu-badly", profile(kernels=(other,))) == ()
    short = dataclasses.replace(low, calls=4000.0)
    assert findings("kernels-fill-gpu-badly", profile(kernels=(short,))) == ()


def test_heat_slows_the_gpu() -> None:
    job = profile(
        devices__0__throttled=("sw_thermal_slowdown",),
        devices__0__clock_mhz=987.0,
        devices__0__temperature_c=93.0,
    )
    finding = only("heat-slows-gpu", job)
    assert finding.code == "KERN015"
    assert "sw_thermal_slowdown, 93 C, 352 of 400 W, 987 of 1410 MHz" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(94.0 * 0.3, rel=0.01)
    for reasons in ((), ("sw_power_cap",)):
        assert findings("heat-slows-gpu", changed(job, devices__0__throttled=reasons)) == ()


def test_power_limit_slows_the_gpu() -> None:
    job = profile(
        devices__0__throttled=("sw_power_cap",),
        devices__0__clock_mhz=1128.0,
        devices__0__power_limit_w=300.0,
    )
    finding = only("power-limit-slows-gpu", job)
    assert finding.code == "KERN016"
    assert "the data sheet says 400 W" in finding.evidence
    assert "sudo nvidia-smi -i 0 -pl 400" in changes(finding)
    own = changed(job, devices__0__power_limit_w=400.0)
    assert findings("power-limit-slows-gpu", own) == (), "at its own limit a GPU is healthy"
    brake = changed(own, devices__0__throttled=("hw_power_brake_slowdown",))
    assert only("power-limit-slows-gpu", brake)


def test_clocks_held_low() -> None:
    job = profile(devices__0__clock_mhz=705.0)
    finding = only("clocks-held-low", job)
    assert finding.code == "KERN017"
    assert saved_ms(finding, job) == pytest.approx(94.0 / 2, rel=0.01)
    for facts in ({"throttled": ("thermal",)}, {"utilisation": 0.2}, {"clock_max_mhz": None}):
        named = {f"devices__0__{key}": value for key, value in facts.items()}
        assert findings("clocks-held-low", changed(job, **named)) == ()


def test_onednn_unused() -> None:
    slow = operator("aten::_slow_conv2d_forward", Kind.MATMUL, 120.0, where=CONV)
    job = of(cpu_profile(), slow)
    finding = only("onednn-unused", job)
    assert (finding.code, finding.where) == ("KERN018", str(CONV))
    assert saved_ms(finding, job) == pytest.approx(60.0, rel=0.01)
    counted = changed(job, operators__0__flops=6.2e9)
    needed = 6.2e9 / (0.62e12 * 0.4) * 1e3
    assert saved_ms(only("onednn-unused", counted), counted) == pytest.approx(
        120 - needed, rel=0.01
    )
    back = operator("aten::convolution_backward", Kind.MATMUL, 80.0, where=CONV, backward=True)
    both = of(cpu_profile(), slow, back)
    assert saved_ms(only("onednn-unused", both), both) == pytest.approx(100.0, rel=0.01)
    assert findings("onednn-unused", changed(job, operators__0__dtypes=DOUBLE)) == ()
    assert findings("onednn-unused", of(profile(), slow)) == ()


def test_tensors_copied_for_layout() -> None:
    line = Place("model.py", 44, "forward", "x = x.permute(0, 2, 1).contiguous()")
    copy = operator("aten::copy_", Kind.CONVERSION, 12.0, where=line)
    finding = only("tensors-copied-for-layout", of(profile(), copy))
    assert (finding.code, finding.where) == ("KERN019", "model.py:44")
    assert "+ x = x.permute(0, 2, 1)" in changes(finding)
    moved = dataclasses.replace(copy, where=BACKWARD)
    assert findings("tensors-copied-for-layout", of(profile(), moved)) == ()
    cast = dataclasses.replace(copy, dtypes=("float", "c10::BFloat16"))
    assert findings("tensors-copied-for-layout", of(profile(), cast)) == (), "autocast's own"
    cheap = dataclasses.replace(copy, device_ms=0.5)
    assert findings("tensors-copied-for-layout", of(profile(), cheap)) == ()


def test_what_the_device_waits_for_hides_what_is_saved() -> None:
    bound = float32_job(anatomy=profile({Kind.WAIT_HOST: 104.0}).anatomy)
    gain = only("tensor-cores-idle", bound).gain
    assert "waits 104 ms" in gain.reason
    free = saved_ms(only("tensor-cores-idle", float32_job()), float32_job())
    assert saved_ms(only("tensor-cores-idle", bound), bound) < 0.6 * free
