"""What was captured stands in texts and commands; a log cannot smuggle a command into a cure."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.explaining import filling
from flatout.knowledge import signatures


@pytest.mark.parametrize(
    ("template", "captured", "said"),
    [
        ("port {port}", {"port": "29500"}, "port 29500"),
        ("port {port|29500}", {}, "port 29500"),
        ("port {port}", {}, "port PORT"),
        ("driver{version|}", {}, "driver"),
        ("Triton {version|} brings its own", {}, "Triton brings its own"),
        ("the driver {version|}: new", {}, "the driver: new"),
        ("the GPU ({card|card} {cc|}) and ({more|}) {last|}", {}, "the GPU (card) and"),
        ("CUDA {v!cuda}", {"v": "11060"}, "CUDA 11.6"),
        ("CUDA {v!cuda}", {"v": "12.4"}, "CUDA 12.4"),
        ("{v!cudnn}", {"v": "7605"}, "7.6.5"),
        ("{v!cudnn}", {"v": "90100"}, "9.1.0"),
        ("{v!cudnn|another}", {}, "another"),
        ("在容量 {total|有限} 的设备上", {}, "在容量有限的设备上"),
        ("在容量 {total|有限} 的设备上", {"total": "8 GiB"}, "在容量 8 GiB 的设备上"),
        ("用 {lib|NCCL} 时", {}, "用 NCCL 时"),
        ("awk '{print $1}' ${HOME}", {}, "awk '{print $1}' ${HOME}"),
    ],
)
def test_texts(template: str, captured: dict[str, str], said: str) -> None:
    assert filling.text(template, captured) == said


def test_no_text_has_a_hole_where_nothing_was_captured() -> None:
    texts = [
        words
        for item in signatures.every()
        for wording in (item.title, item.cause, *(step.text for step in item.cure))
        for words in (wording.en, wording.zh)
    ]
    found = [filling.text(words, {}) for words in texts]
    holes = re.compile(r"[^\s.]  +\S|\( | [;)]|[\0\1]|[一-鿿] [一-鿿]")
    assert [words for words in found if holes.search(words)] == []


@given(st.text(min_size=1))
def test_a_captured_text_is_one_word_of_a_shell(value: str) -> None:
    command = filling.command("kill {pid}", {"pid": value})
    assert shlex.split(command) == ["kill", value]
