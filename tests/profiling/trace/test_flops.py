"""Against torch's own counter, from shapes that torch's own profiler recorded."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as f
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from flatout.profiling.trace import flops
from flatout.profiling.trace.reading import read
from flatout.profiling.trace.recording import Category


def image(*size):
    return torch.randn(*size, requires_grad=True)


CASES = {
    "mm": lambda: image(3, 5) @ image(5, 7),
    "linear": lambda: f.linear(image(4, 3, 5), image(7, 5), image(7)),
    "bmm": lambda: image(2, 3, 5) @ image(2, 5, 7),
    "baddbmm": lambda: torch.baddbmm(image(2, 3, 7), image(2, 3, 5), image(2, 5, 7)),
    "conv1d": lambda: f.conv1d(image(2, 4, 17), image(6, 4, 3), stride=2, padding=1),
    "conv2d": lambda: f.conv2d(image(2, 4, 17, 13), image(6, 4, 3, 5), image(6), padding=(1, 2)),
    "conv2d dilated": lambda: f.conv2d(image(2, 4, 17, 13), image(6, 4, 3, 3), dilation=2),
    "conv3d": lambda: f.conv3d(image(1, 2, 5, 6, 7), image(3, 2, 2, 2, 2)),
    "transposed": lambda: f.conv_transpose2d(image(2, 4, 5, 5), image(4, 6, 3, 3), stride=2),
}


# What torch's counter does not count on a CPU, or counts twice: by hand.
OTHERS = {
    # 2 * images * pixels * channels out * channels in of the group * kernel; thrice
    "groups": (
        lambda: f.conv2d(image(2, 4, 9, 9), image(8, 2, 3, 3), groups=2),
        3 * 2 * 2 * 7 * 7 * 8 * 2 * 9,
    ),
    # 2 * heads * queries * keys * (their size + values' size); once, and 2.5 times back
    "attention": (
        lambda: f.scaled_dot_product_attention(*(image(2, 4, 16, 8) for _ in "qkv")),
        2 * 2 * 4 * 16 * 16 * (8 + 8) * 3.5,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward(case, tmp_path):
    with FlopCounterMode(display=False) as counter:
        CASES[case]().sum().backward()
    assert counted(CASES[case], tmp_path) == counter.get_total_flops()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", OTHERS)
def test_what_torch_counts_otherwise(case, tmp_path):
    run, expected = OTHERS[case]
    assert counted(run, tmp_path) == expected


def counted(run, tmp_path) -> int:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        run().sum().backward()
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    (found,) = read([path])
    events, total = found.events, 0
    for row in found.rows(Category.OPERATOR):
        if events.shapes[row] >= 0 and flops.counts(found.names[events.name[row]]):
            concrete = found.concrete[events.concrete[row]] if events.concrete[row] >= 0 else ""
            shapes = found.shapes[events.shapes[row]]
            total += flops.of_operator(found.names[events.name[row]], shapes, concrete)
    return total


@pytest.mark.parametrize("shapes", ["", "3", "axb, 1", "2x3", "2x3, ", ", , , "])
@pytest.mark.parametrize("name", ["aten::mm", "aten::convolution", "aten::convolution_backward"])
def test_shapes_that_do_not_tell_count_nothing(name, shapes):
    assert flops.of_operator(name, shapes, json.dumps([])) == 0
