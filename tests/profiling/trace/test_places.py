"""Lines of kernels, gaps, waits and copies: from the stacks of another recording."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from flatout.nouns.anatomy import Kind
from flatout.profiling.trace import places
from flatout.profiling.trace.analysing import analyse
from profiling.trace.making import BACKWARD, Trace

RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu>"
SOURCE = textwrap.dedent(
    """\
    def step(model, x):
        loss = model(x.cuda())
        loss.backward()
        return loss.item()

    def forward(self, x):
        return x.relu()
    """
)


def job(*, stacks: bool) -> Trace:
    """Two steps: a copy, a kernel, its backward, and a result that is waited for."""
    trace = Trace().steps(0, 1000, 2000)
    for at in (0, 1000):
        if stacks:
            trace.add("python_function", "train.py(1): step", at + 1, at + 990)
            trace.add("python_function", "nn.Module: Net_0", at + 90, at + 150)
            trace.add("python_function", "torch/nn/module.py(9): _call", at + 91, at + 149)
            trace.add("python_function", "pkg/net.py(6): forward", at + 95, at + 145)
        shapes = {"Input Dims": [[8, at + 1]], "Input type": ["float"]} if stacks else {}
        number = {"Sequence number": 7 + at, "Fwd thread id": 0}
        trace.op("aten::to", at + 10, at + 30, **number).op("aten::copy_", at + 11, at + 29)
        trace.call("cudaMemcpyAsync", at + 12, at + 14)
        trace.work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 20, at + 40, bytes=64)
        trace.op("aten::relu", at + 100, at + 120, **number, **shapes)
        trace.kernel(RELU, at + 130, at + 230, at + 105)
        name = "autograd::engine::evaluate_function: ReluBackward0"
        number = {"Sequence number": 7 + at, "Fwd thread id": 1}
        trace.op(name, at + 200, at + 260, BACKWARD, **number)
        trace.op("aten::threshold_backward", at + 210, at + 250, BACKWARD)
        trace.call("cudaLaunchKernel", at + 212, at + 215, BACKWARD)
        trace.work("kernel", RELU + "_backward", at + 300, at + 400)
        if stacks:
            trace.add("python_function", "torch/_tensor.py(5): backward", at + 190, at + 270)
            item = "<built-in method item of Tensor object at 0x7f0e1a3cd9f0>"
            trace.add("python_function", item, at + 340, at + 410)
        trace.op("aten::item", at + 345, at + 405)
        trace.call("cudaStreamSynchronize", at + 350, at + 404)
    return trace


@pytest.fixture(params=["other", "own", "none"])
def profile(request, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "pkg" / "net.py").write_text(SOURCE)
    times = job(stacks=request.param == "own").recording(tmp_path, "times.json")
    detail = job(stacks=True).recording(tmp_path, "detail.json")
    found = analyse(times, detail if request.param == "other" else None, roots=[tmp_path])
    return request.param != "none", found


def place(known: bool, text: str) -> str:
    return text if known else "None"


def test_kernels(profile):
    known, found = profile
    places = {kernel.name: str(kernel.where) for kernel in found.kernels}
    line = place(known, "pkg/net.py:7")
    assert places == {RELU: line, RELU + "_backward": line}


def test_copies_waits_and_gaps(profile):
    known, found = profile
    assert [str(copy.where) for copy in found.copies] == [place(known, "train.py:2")]
    assert [(sync.name, str(sync.where)) for sync in found.syncs] == [
        ("aten::item", place(known, "train.py:4"))
    ]
    waits = {(gap.kind, str(gap.where)) for gap in found.gaps if gap.doing == "aten::item"}
    assert waits == {(Kind.WAIT_SYNC, place(known, "train.py:4"))}


def test_operators_with_shapes_and_direction(profile):
    known, found = profile
    operators = {one.name: one for one in found.operators}
    assert str(operators["aten::relu"].where) == place(known, "pkg/net.py:7")
    assert operators["aten::threshold_backward"].backward
    assert not operators["aten::relu"].backward
    assert bool(operators["aten::relu"].shapes) == known
    assert operators["aten::relu"].device_ms == pytest.approx(0.1)
    if known:
        assert operators["aten::relu"].where.source == "return x.relu()"
        assert operators["aten::relu"].where.function == "forward"


def test_files_of_packages_are_not_the_users(tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "lib.py").write_text(SOURCE)
    (tmp_path / "train.py").write_text(SOURCE)
    trace = Trace().steps(0, 1000)
    trace.add("python_function", "train.py(1): step", 1, 990)
    trace.add("python_function", "site-packages/lib.py(6): forward", 90, 150)
    trace.add("python_function", "torch/lib.py(6): forward", 91, 149)
    trace.op("aten::relu", 100, 120)
    (found,) = analyse(trace.recording(tmp_path), roots=[tmp_path]).operators
    assert found.where and found.where.file == "train.py"


def test_names_that_count_from_a_folder_above(tmp_path):
    root = tmp_path / "examples" / "text"
    root.mkdir(parents=True)
    (root / "train.py").write_text(SOURCE)
    trace = Trace().steps(0, 1000)
    trace.add("python_function", "examples/text/train.py(6): forward", 90, 150)
    trace.op("aten::relu", 100, 120)
    (found,) = analyse(trace.recording(tmp_path), roots=[root]).operators
    assert str(found.where) == "train.py:7"


def test_each_call_of_an_operator_finds_its_own_line(tmp_path):
    (tmp_path / "train.py").write_text("def f(x):\n    x.relu()\n    x.abs()\n    x.relu()\n")

    def repeated(count: int, *, stacks: bool) -> Trace:
        trace = Trace().steps(0, 1000)
        if stacks:
            trace.add("python_function", "train.py(1): f", 1, 999)
        for number, name in enumerate(["relu", "abs", *["relu"] * (count - 1)]):
            at = 100 + 50 * number
            if stacks:
                built_in = f"<built-in method {name} of Tensor object>"
                trace.add("python_function", built_in, at - 2, at + 22)
            trace.op(f"aten::{name}", at, at + 20)
        return trace

    times = repeated(3, stacks=False).recording(tmp_path, "times.json")
    detail = repeated(2, stacks=True).recording(tmp_path, "detail.json")
    found = analyse(times, detail, roots=[tmp_path])
    calls = {(one.name, str(one.where)): one.calls for one in found.operators}
    # Which of the two last ones is the one of line 4 cannot be known.
    assert calls == {
        ("aten::relu", "train.py:2"): 1,
        ("aten::abs", "train.py:3"): 1,
        ("aten::relu", "None"): 2,
    }


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("forward (/home/me/job/pkg/model.py:9): 0/0", "forward (pkg/model.py:9): 0/0"),
        ('print() File "/home/me/job/train.py", line 7', 'print() File "train.py", line 7'),
        # Torch, in /opt/torch, has cut "/h" off, or, in /home/me/env, all but the last folder.
        ("x # fault # ome/me/job/train.py:9 in f", "x # fault # train.py:9 in f"),
        ("x # job/pkg/model.py:9 in f", "x # pkg/model.py:9 in f"),
        ("x # ome/me/other/model.py:9 in f", "x # ome/me/other/model.py:9 in f"),
    ],
)
def test_lines_in_torchs_words_are_named_as_everywhere(text: str, short: str) -> None:
    assert places.short_paths(text, Path("/home/me/job")) == short
