"""The figures of every form of PyTorch's out-of-memory message, and what they decide."""

from __future__ import annotations

import pytest

from flatout.explaining import memory_figures
from flatout.explaining.explaining import explain_text
from flatout.explaining.memory_figures import MemoryFigures

GIB = 1 << 30
TORCH_2 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted} GiB. GPU 0 has a "
    "total capacity of 24.00 GiB of which {free} GiB is free. {others}Including non-PyTorch "
    "memory, this process has {own} GiB memory in use. Of the allocated memory {allocated} GiB is "
    "allocated by PyTorch, and {unused} GiB is reserved by PyTorch but unallocated."
)
TORCH_1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate {wanted} GiB (GPU 0; 24.00 GiB total "
    "capacity; {allocated} GiB already allocated; {free} GiB free; {reserved} GiB reserved in "
    "total by PyTorch)"
)
TORCH_1_0 = (
    "RuntimeError: CUDA out of memory. Tried to allocate {wanted} GiB (GPU 0; 24.00 GiB total "
    "capacity; {allocated} GiB already allocated; {free} GiB free; {unused} GiB cached)"
)


def read(text: str) -> MemoryFigures:
    figures = memory_figures.read(text)
    assert figures is not None
    return figures


def test_every_form_is_read() -> None:
    new = read(
        TORCH_2.format(
            wanted="2.00", free="0.50", own="3.00", allocated="2.50", unused="0.25",
            others="Process 77 has 16.00 GiB memory in use. "
            "Process 78 has 4.50 GiB memory in use. ",
        )
    )  # fmt: skip
    assert (new.wanted, new.total, new.free) == (2 * GIB, 24 * GIB, GIB / 2)
    assert (new.own, new.allocated, new.idle) == (3 * GIB, 2.5 * GIB, GIB / 4)
    assert new.others == 20.5 * GIB
    old = read(TORCH_1.format(wanted="2.00", allocated="10.00", free="1.00", reserved="15.00"))
    assert (old.allocated, old.reserved, old.idle) == (10 * GIB, 15 * GIB, 5 * GIB)
    oldest = read(TORCH_1_0.format(wanted="2.00", allocated="10.00", free="1.00", unused="4.00"))
    assert (oldest.allocated, oldest.idle) == (10 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("text", "decided"),
    [
        (
            TORCH_2.format(
                wanted="2.00", free="0.10", own="23.50", allocated="22.90", unused="0.20", others=""
            ),
            "really needs",
        ),
        (
            TORCH_2.format(
                wanted="2.00", free="1.00", own="22.50", allocated="12.00", unused="10.0", others=""
            ),
            "fragmented",
        ),
        (TORCH_1.format(wanted="1.00", allocated="2.00", free="0.10", reserved="3.00"), "Other"),
        (TORCH_1.format(wanted="40.0", allocated="2.00", free="0.10", reserved="3.00"), "alone"),
        (
            TORCH_1.format(wanted="1.00", allocated="18.00", free="0.10", reserved="19.00"),
            "cannot tell",
        ),
    ],
    ids=["too big", "fragmented", "held by others", "one tensor", "undecided"],
)
def test_what_they_decide(text: str, decided: str) -> None:
    answer = explain_text(text)
    assert decided in answer.observations[0].en
    assert "根据文中的数字" in answer.observations[0].zh


def test_a_missing_figure_is_named() -> None:
    text = (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total "
        "capacity; 20.00 GiB already allocated)"
    )
    said = [wording.en for wording in explain_text(text).observations]
    assert any("lacks what other processes hold" in sentence for sentence in said)
    assert explain_text("RuntimeError: Torch not compiled with CUDA enabled").observations == ()
