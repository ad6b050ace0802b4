"""What was captured stands in texts and commands; a log cannot smuggle a command into a cure."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.explaining import filling


@pytest.mark.parametrize(
    ("template", "captured", "said"),
    [
        ("port {port}", {"port": "29500"}, "port 29500"),
        ("port {port|29500}", {}, "port 29500"),
        ("port {port}", {}, "port PORT"),
        ("driver{version|}", {}, "driver"),
        ("CUDA {v!cuda}", {"v": "11060"}, "CUDA 11.6"),
        ("CUDA {v!cuda}", {"v": "12.4"}, "CUDA 12.4"),
        ("{v!cudnn}", {"v": "7605"}, "7.6.5"),
        ("{v!cudnn}", {"v": "90100"}, "9.1.0"),
        ("{v!cudnn|another}", {}, "another"),
        ("awk '{print $1}' ${HOME}", {}, "awk '{print $1}' ${HOME}"),
    ],
)
def test_texts(template: str, captured: dict[str, str], said: str) -> None:
    assert filling.text(template, captured) == said


@given(st.text(min_size=1))
def test_a_captured_text_is_one_word_of_a_shell(value: str) -> None:
    command = filling.command("kill {pid}", {"pid": value})
    assert shlex.split(command) == ["kill", value]
