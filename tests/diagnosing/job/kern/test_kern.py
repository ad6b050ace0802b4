"""KERN: work of the device that could be less, or run faster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.kern.jobs import attention, of, operator, without_job
from diagnosing.job.made import changes, cpu_profile, findings, flow, only, profile, saved_ms
from diagnosing.job.made_parts import BACKWARD, CONV, FORWARD, STEP, ceilings
from diagnosing.job.telling import JobTold, each_of, told
from flatout.diagnosing.job import operators
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.product import ProductCalls
from flatout.nouns.profile import Kernel, Operator, Place, Profile
from flatout_agent import wire
from machines.healthy import changed

REORDERED, UNFUSED, ATTENTION = "KERN006", "KERN007", "KERN008"
NORMALISED, OPTIMIZER = "KERN009", "KERN010"
DETERMINISTIC, SEARCH, CLOCKS = "KERN011", "KERN012", "KERN015"
COPIED, MATH_PATH = "KERN019", "KERN020"
WHOLE_UPDATE, IGNORED = "KERN022", "KERN023"


def test_convolutions_channels_first_on_a_cpu() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    assert only(REORDERED, job).boost == "channels-last"
    measured = {"conv-cpu-nchw-fp32": (0.40, "TFLOP/s"), "conv-cpu-nhwc-fp32": (0.40, "TFLOP/s")}
    even = changed(job, ceilings=ceilings(measured, "cpu"))
    assert findings(REORDERED, even) == ()
    assert findings(REORDERED, without_job(job)) == ()


def test_what_a_boost_cures_already_is_not_told() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    assert only(REORDERED, job).boost == "channels-last"
    assert findings(REORDERED, changed(job, boosts=("channels-last",))) == ()


def test_convolutions_that_were_timed_again_decide() -> None:
    job = cpu_profile(job__models__0__channels_last=False)
    shapes, dtypes = ((2, 3, 8, 8), (4, 3, 3, 3)), ("float", "float")
    names = {
        operator.name for operator in job.operators if operators.CONVOLVES.fullmatch(operator.name)
    }

    def with_last(seconds: float) -> Profile:
        times = {"now": 0.2, "channels-last": seconds}
        rows = [ProductCalls(n, shapes, dtypes, ("", ""), 1.0, 9.0, seconds=times) for n in names]
        return changed(job, products=tuple(rows))

    assert findings(REORDERED, with_last(0.25)) == ()
    half = only(REORDERED, with_last(0.1))
    assert "made again" in half.gain.reason
    assert half.gain.ratio > only(REORDERED, job).gain.ratio


def test_elementwise_unfused() -> None:
    job = profile({Kind.ELEMENTWISE: 40.0}, job__models__0__compiled=False)
    chain = operator("aten::add_", Kind.ELEMENTWISE, 25.0)
    job = of(job, chain)
    finding = only(UNFUSED, job)
    assert (finding.code, finding.where, finding.boost) == ("KERN007", "model.py:30", "compile")
    assert saved_ms(finding, job) == pytest.approx(20.0, rel=0.01)
    assert findings(UNFUSED, changed(job, job__models__0__compiled=True)) == ()
    few = profile({Kind.ELEMENTWISE: 5.0}, job__models__0__compiled=False)
    assert findings(UNFUSED, of(few, chain)) == ()


def test_random_numbers_of_a_cpu_are_not_fused() -> None:
    job = cpu_profile({Kind.ELEMENTWISE: 200.0}, job__models__0__compiled=False)
    drawn = operator("aten::bernoulli_", Kind.ELEMENTWISE, 190.0)
    assert only(UNFUSED, of(job, operator("aten::add", Kind.ELEMENTWISE, 190.0)))
    assert findings(UNFUSED, of(job, drawn)) == ()


def test_an_update_by_hand_is_not_compiled_with_the_model() -> None:
    update = wire.UpdateSeen("model.py:30", "step", ("model.py:30",), 48, 600)
    job = profile({Kind.ELEMENTWISE: 40.0}, job__models__0__compiled=False, seen__update=update)
    adding = operator("aten::add_", Kind.ELEMENTWISE, 40.0)
    assert findings(UNFUSED, of(job, adding)) == ()


def test_attention_by_hand_without_shapes_or_without_lines() -> None:
    assert only(ATTENTION, of(profile(), *attention(shapes=())))
    assert only(ATTENTION, of(profile(), *attention(where=None))).where is None
    assert findings(ATTENTION, of(profile(), *attention(where=None, shapes=()))) == ()


def test_softmax_and_batched_products_that_do_not_meet() -> None:
    first, second, softmax, div = attention()
    classes = dataclasses.replace(softmax, shapes=("4096x1000",))
    assert findings(ATTENTION, of(profile(), first, second, div)) == ()
    elsewhere = dataclasses.replace(classes, where=Place("loss.py", 3, "loss"))
    assert findings(ATTENTION, of(profile(), first, second, elsewhere)) == ()
    other = dataclasses.replace(softmax, shapes=("4x8x512x500",))
    assert findings(ATTENTION, of(profile(), first, second, other)) == ()
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0)
    assert findings(ATTENTION, of(profile(), *attention(), fallback)) == ()


WHOLE, ROWS = "8x512x1024", "8x512x1"
RMS = {
    "aten::pow": WHOLE,
    "aten::mean": WHOLE,
    "aten::rsqrt": ROWS,
    "aten::mul": f"{WHOLE}, {ROWS}",
}
ROOTS = ("MeanBackward1", "RsqrtBackward0")


def by_hand(
    forward: dict[str, str] = RMS, backward: tuple[str, ...] = ROOTS, line: int = 12
) -> tuple[Operator, ...]:
    """Operators with the shapes of their inputs, 5 ms each, and autograd's for them."""
    place = Place("norm.py", line, "forward", "return x * torch.rsqrt(x.pow(2).mean(-1) + eps)")
    return (
        *(
            operator(name, Kind.ELEMENTWISE, 5.0, where=place, shapes=(shapes,))
            for name, shapes in forward.items()
        ),
        *(
            operator(name, Kind.PYTHON, 0.1, where=place, shapes=(), backward=True)
            for name in backward
        ),
    )


def by_hand_alone(*operators: Operator) -> Profile:
    return of(profile(job__models__0__compiled=False), *operators)


def test_channels_divided_by_their_deviation() -> None:
    forward = {"aten::std": "64x256", "aten::div": "64x256, 256"}
    finding = only(NORMALISED, by_hand_alone(*by_hand(forward, ("MeanBackward1", "StdBackward0"))))
    assert finding.where == "norm.py:12"


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        pytest.param(RMS, (), id="an update of weights, data that is prepared"),
        pytest.param(RMS, ("MeanBackward0", "RsqrtBackward0"), id="the mean is a loss"),
        pytest.param(RMS, ("MeanBackward1",), id="roots of numbers that nothing trains"),
        pytest.param({**RMS, "aten::mul": f"{WHOLE}, {WHOLE}"}, ROOTS, id="no number for each row"),
        pytest.param({**RMS, "aten::mul": f"{WHOLE}, "}, ROOTS, id="one number for all"),
        pytest.param({**RMS, "aten::rms_norm": WHOLE}, ROOTS, id="torch's own"),
        pytest.param({"aten::mean": WHOLE, "aten::mul": f"{WHOLE}, {ROWS}"}, ROOTS, id="no root"),
    ],
)
def test_what_is_no_normalisation_by_hand(
    forward: dict[str, str], backward: tuple[str, ...]
) -> None:
    assert findings(NORMALISED, by_hand_alone(*by_hand(forward, backward))) == ()


def test_the_optimizers_own_square_roots_in_the_same_function() -> None:
    step = Place("norm.py", 14, "forward", "optimizer.step()")
    adam = [
        operator(name, Kind.OPTIMIZER, 9.0, where=step, shapes=(shapes,))
        for name, shapes in (("aten::sqrt", "512x1024"), ("aten::div", "512x1024"))
    ]
    loss = by_hand({"aten::mean": "512x1024"}, ("MeanBackward1",))
    assert findings(NORMALISED, by_hand_alone(*loss, *adam)) == ()
    normalising = by_hand_alone(*by_hand(), *adam)
    assert saved_ms(only(NORMALISED, normalising), normalising) == pytest.approx(12.0, rel=0.01)


UNFUSED_ADAMW = {"kind": "AdamW", "fused": None, "parameters": 110_000_000}


def updating(ms: float = 9.0, **facts: Any) -> Profile:
    """A job whose optimizer has these facts and takes this long."""
    return profile({Kind.OPTIMIZER: ms}, **of_optimizer(**facts))


def of_optimizer(**facts: Any) -> dict[str, Any]:
    return {f"job__optimizers__0__{name}": value for name, value in facts.items()}


FILLING = of(profile(), operator("aten::fill_", Kind.ELEMENTWISE, 7.0))


def test_where_heat_or_power_slows_one_gpu_the_others_are_not_said_to_be_held() -> None:
    held = profile(devices__0__clock_mhz=705.0)
    (sample,) = held.devices
    hot = dataclasses.replace(sample, index=1, throttled=("thermal",))
    finding = only(CLOCKS, changed(held, devices=(sample, hot)))
    assert finding.title == "GPU 1 (NVIDIA A100-SXM4-80GB): slowed down by heat"


def test_tensors_copied_for_layout() -> None:
    line = Place("model.py", 44, "forward", "x = x.permute(0, 2, 1).contiguous()")
    copy = operator("aten::copy_", Kind.CONVERSION, 12.0, where=line)
    finding = only(COPIED, of(profile(), copy))
    assert (finding.code, finding.where) == ("KERN019", "model.py:44")
    assert "+ x = x.permute(0, 2, 1)" in changes(finding)
    moved = dataclasses.replace(copy, where=BACKWARD)
    assert findings(COPIED, of(profile(), moved)) == ()
    cast = dataclasses.replace(copy, dtypes=("float", "c10::BFloat16"))
    assert findings(COPIED, of(profile(), cast)) == (), "autocast's own"
    cheap = dataclasses.replace(copy, device_ms=0.5)
    assert findings(COPIED, of(profile(), cheap)) == ()


@pytest.mark.parametrize(
    ("source", "told"),
    [("return self.layers(x).flatten(1)", False), ("y = self.up(x.mT.contiguous())", True)],
)
def test_copies_of_layers_on_the_same_line(source: str, told: bool) -> None:
    line = Place("model.py", 22, "forward", source)
    copy = operator("aten::copy_", Kind.CONVERSION, 12.0, where=line)
    layer = operator("aten::mm", Kind.MATMUL, 12.0, where=line)
    assert bool(findings(COPIED, of(profile(), copy, layer))) is told


def test_attention_on_the_math_path() -> None:
    line = Place("attention.py", 9, "forward", "y = F.scaled_dot_product_attention(q, k, v, mask)")
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0, where=line)
    job = of(profile(), fallback, *attention(where=line))
    finding = only(MATH_PATH, job)
    assert (finding.code, finding.where) == ("KERN020", "attention.py:9")
    assert "float32" in finding.cure.text
    flash = dataclasses.replace(fallback, name="aten::_scaled_dot_product_flash_attention")
    assert findings(MATH_PATH, of(profile(), flash, *attention())) == ()


def test_other_dropouts_of_the_layer_do_not_count() -> None:
    line = Place("model.py", 39, "forward", "h = self.body(h)")
    fallback = operator("aten::_scaled_dot_product_attention_math", Kind.ATTENTION, 1.0, where=line)
    parts = (fallback, *attention(where=line))
    alone = of(profile(), *parts)
    dropout = operator(
        "aten::mul", Kind.ELEMENTWISE, 30.0, where=line, shapes=("4x512x512, 4x512x512",)
    )
    layer = of(profile(), *parts, dropout)
    told = only(MATH_PATH, layer), only(MATH_PATH, alone)
    assert saved_ms(told[0], layer) == saved_ms(told[1], alone)


WORDS = wire.EmbeddingSeen(
    name="words.weight",
    lines=("model.py:20",),
    rows=100_000,
    width=64,
    indices=2000,
    touched=1500,
)


def embedding(*rows: wire.EmbeddingSeen, update: float = 100.0, **facts: Any) -> Profile:
    """A job on the CPU, half of whose parameters is the embedding."""
    optimizer = {"kind": "Adam", "parameters": 12_800_000, "from_torch": True, **facts}
    made = cpu_profile({Kind.OPTIMIZER: update}, **of_optimizer(**optimizer))
    shapes = ("100000x64, 100000x64",)
    fill = Operator("aten::fill_", Kind.ELEMENTWISE, 1, 10.0, shapes=shapes, backward=True)
    other = Operator("aten::fill_", Kind.ELEMENTWISE, 1, 10.0, shapes=("64x64",), backward=True)
    job: Profile = changed(
        made, seen__flow=flow(embeddings=rows), operators=(fill, other, *made.operators)
    )
    return job


def test_plain_sgd_but_none_with_momentum() -> None:
    made = embedding(WORDS, kind="SGD")
    held = {"seen__optimizer_bytes": 0, "seen__parameter_bytes": 51_200_000}
    assert "optim.SGD(" in changes(only(WHOLE_UPDATE, changed(made, **held)))
    for bytes_held in (51_200_000, None):
        momentum = changed(made, **held | {"seen__optimizer_bytes": bytes_held})
        assert findings(WHOLE_UPDATE, momentum) == ()


LOGITS = wire.IgnoredSeen(
    head_where="model.py:37",
    loss_where="train.py:20",
    classes=4000,
    rows=448,
    used=64,
    ignored=384,
    s=0.15,
    flops=0.5,
)


def masked(made: Profile, **facts: Any) -> Profile:
    row = dataclasses.replace(LOGITS, **facts)
    job: Profile = changed(made, seen__flow=flow(ignored=(row,)))
    return job


def test_few_classes_are_told_only_where_they_take_a_tenth() -> None:
    assert only(IGNORED, masked(cpu_profile(), classes=100))
    assert findings(IGNORED, masked(cpu_profile(), classes=100, s=0.02)) == ()


LOW = {"devices__0__clock_mhz": 705.0}
SILENT = [
    *(
        (OPTIMIZER, updating(**{**UNFUSED_ADAMW, **facts}))
        for facts in ({"fused": True}, {"from_torch": False}, {"kind": "LBFGS"})
    ),
    (OPTIMIZER, updating(0.4, fused=None)),
    (DETERMINISTIC, FILLING),
    *(
        (SEARCH, profile(job__cudnn_benchmark=False, **facts))
        for facts in ({"seen__input_shapes": 6}, {"job__deterministic": True}, {"job__hip": True})
    ),
    (SEARCH, profile(seen__input_shapes=2)),
    (CLOCKS, profile(**LOW, devices__0__utilisation=0.2)),
    (CLOCKS, profile(**LOW, devices__0__clock_max_mhz=None)),
    *(
        (WHOLE_UPDATE, embedding(WORDS, **facts))
        for facts in ({"update": 20.0}, {"kind": "LBFGS"}, {"from_torch": False})
    ),
    (WHOLE_UPDATE, embedding()),
    (WHOLE_UPDATE, changed(embedding(WORDS), job__world_size=2)),
    (IGNORED, masked(cpu_profile(), s=0.001)),
    (IGNORED, changed(masked(cpu_profile()), seen__flow__operators_s=0.0)),  # not timed
    # normalisation by hand
    (NORMALISED, changed(by_hand_alone(*by_hand()), job__models__0__compiled=True)),
    # cudnn searching again
    (SEARCH, profile(seen__input_shapes=9, operators__1__host_ms=40.0, job__cudnn_benchmark=False)),
    # heat slows the gpu
    (
        CLOCKS,
        profile(
            devices__0__throttled=("sw_power_cap",),
            devices__0__clock_mhz=987.0,
            devices__0__temperature_c=93.0,
        ),
    ),
    # power limit slows the gpu
    (
        CLOCKS,
        profile(
            devices__0__throttled=("sw_power_cap",),
            devices__0__clock_mhz=1128.0,
            devices__0__power_limit_w=400.0,
        ),
    ),
]


@pytest.mark.parametrize(("check", "job"), SILENT)
def test_nothing_is_told(check: str, job: Profile) -> None:
    assert findings(check, job) == ()


TOLD = [
    told("convolutions channels first on a gpu", REORDERED,
         profile(job__models__0__channels_last=False,
             kernels=(*profile(job__models__0__channels_last=False).kernels,
             Kernel("void cudnn::nchwToNhwcKernel<__nv_bfloat16>", Kind.CONVERSION, 106.0, 6.0))),
         "nchwToNhwcKernel", boost="channels-last", saves=6 + (34.6 + 17.3 - 6) * (1 - 118 / 171)),
    told("attention by hand", ATTENTION, of(profile(), *attention()),
         "- weights = scores.softmax(-1)", "scaled_dot_product_attention", where="attention.py:21",
         saves=15.0),
    told("normalisation by hand", NORMALISED, by_hand_alone(*by_hand()), "F.rms_norm",
         where="norm.py:12", saves=12.0),
    told("where a mean is subtracted it is a layer norm", NORMALISED,
         by_hand_alone(*by_hand({**RMS, "aten::sub": f"{WHOLE}, {ROWS}"})), "F.layer_norm"),
    told("other operators of the function do not count", NORMALISED,
         by_hand_alone(*by_hand(), *by_hand({"aten::mul": f"{WHOLE}, {WHOLE}"}, (), line=40),
             *by_hand({"aten::mul": "8x512x4096, 8x512x4096"}, (), line=13)),
         saves=12.0),
    told("optimizer unfused", OPTIMIZER, updating(**UNFUSED_ADAMW), where=str(STEP),
         boost="fused-optimizer",
         saves=9.0 - 110e6 * 4 * 7 / (1620e9 * 0.7) * 1e3),
    told("deterministic algorithms", DETERMINISTIC, changed(FILLING, seen__deterministic=True),
         severity=Severity.WARNING, saves=7.0),
    told("deterministic algorithms: 2", DETERMINISTIC, profile(job__deterministic=True),
         saves=None),
    told("cudnn not searching", SEARCH, profile(job__cudnn_benchmark=False), where=str(CONV),
         boost="cudnn-benchmark"),
    told("cudnn searching again", SEARCH, profile(seen__input_shapes=9, operators__1__host_ms=40.0),
         where=str(FORWARD), boost=None, saves=40.0 - 5.3),
    told("heat slows the gpu", CLOCKS,
         profile(devices__0__throttled=("sw_thermal_slowdown",), devices__0__clock_mhz=987.0,
             devices__0__temperature_c=93.0),
         "slowed down by heat", "sw_thermal_slowdown, 93 C, 352 of 400 W, 987 of 1410 MHz",
         saves=94.0 * 0.3),
    told("heat slows the gpu: 2", CLOCKS,
         profile(devices__0__throttled=(), devices__0__clock_mhz=987.0,
             devices__0__temperature_c=93.0),
         "busy at a low clock"),
    told("power limit slows the gpu", CLOCKS,
         profile(devices__0__throttled=("sw_power_cap",), devices__0__clock_mhz=1128.0,
             devices__0__power_limit_w=300.0),
         "slowed down by its power limit", "the data sheet says 400 W",
         "sudo nvidia-smi -i 0 -pl 400"),
    told("power limit slows the gpu: 2", CLOCKS,
         profile(devices__0__throttled=("hw_power_brake_slowdown",), devices__0__clock_mhz=1128.0,
             devices__0__power_limit_w=400.0),
         "slowed down by its power limit"),
    told("clocks held low", CLOCKS, profile(devices__0__clock_mhz=705.0), "busy at a low clock",
         "sudo nvidia-smi -i 0 -rgc", saves=94.0 / 2),
    told("clocks held low: 2", CLOCKS,
         profile(devices__0__clock_mhz=705.0, devices__0__throttled=("thermal",)),
         "slowed down by heat"),
    told("a large embedding under adam", WHOLE_UPDATE, embedding(WORDS),
         "words.weight: 100,000 x 64", "model.py:20", "sparse=True",
         "SparseAdam([model.words.weight", where=str(STEP), saves=(50 + 10) * (1 - 4 * 0.015)),
    told("masked positions alone are in the loss", IGNORED, masked(cpu_profile()),
         "logits of 4,000 classes", "384 targets are ignore_index", "train.py:20",
         "head(hidden[mask])", where="model.py:37",
         saves=0.5 * operators.total(masked(cpu_profile()),
             masked(cpu_profile()).operators) * 384 / 448),
    told("on a gpu by the share of operations", IGNORED, masked(profile()),
         saves=pytest.approx(0.5 * operators.total(masked(profile()),
             operators.products(masked(profile()))) * 384 / 448, rel=0.06)),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
