"""The screen of a profile: what it says, that it fits, and that it is plain where it must be."""

from __future__ import annotations

import dataclasses
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from flatout.nouns.anatomy import Anatomy, Kind, Part
from flatout.nouns.finding import Gain
from flatout.nouns.profile import Profile, Profiled
from flatout.reporting import plain, terminal
from flatout.reporting.paragraphs import LABEL
from flatout.reporting.profile.screen import NAME
from reporting import profiled_examples as examples

BAR = LABEL + NAME + 9 + 6 + 2
"""Where bars begin."""


def drawn(profiled: Profiled, width: int = 80, height: int | None = None, **more: object) -> str:
    file = io.StringIO()
    more = {"force_terminal": height is not None, **more}
    terminal.profile(profiled, Console(file=file, width=width, height=height, **more))  # type: ignore[arg-type]
    return file.getvalue()


def bars(text: str) -> list[str]:
    """The bar of each part, from the first column of bars on."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("anatomy"))
    last = next(
        n
        for n, line in enumerate(lines)
        if line.split()[:1] in (["step"], ["recorded"]) and n > first
    )
    return [line[BAR:] for line in lines[first:last]]


def test_the_whole_screen() -> None:
    assert drawn(examples.naive()).splitlines() == [
        "step      412 ms per step, 232 ms of it waiting for data; GPU idle 69%",
        "verdict   1 finding worth more than 10% (46 checks): cure DATA001 at",
        "          train.py:80: 412 -> 180 ms per step, 2.29x (2.09x to 2.54x)",
        "on        NVIDIA A100-SXM4-80GB, 6 steps recorded",
        "",
        "anatomy   waiting for data             232 ms   56%  ###############",
        "          tensor cores                61.0 ms   15%                 ####",
        "          waiting after a sync        38.0 ms  9.2%                     ###",
        "          elementwise                 24.0 ms  5.8%                        #",
        "          normalisation               19.0 ms  4.6%                         ##",
        "          waiting for launches        14.0 ms  3.4%                           |",
        "          layout and dtype changes    9.00 ms  2.2%                           #",
        "          host-device copies          8.50 ms  2.1%                            #",
        "          optimizer                   3.50 ms  0.9%                            |",
        "          reductions                  2.10 ms  0.5%                            |",
        "          other work                  0.60 ms  0.1%                            |",
        "          waiting, cause unknown      0.04 ms <0.1%                            |",
        "          step                         412 ms  100%",
        "reached   15 TFLOP/s; MFU 5.9% of the measured matmul ceiling; 1.0 of 16 cores",
        "          busy; 622 samples/s; of their ceilings: tensor cores 40%, elementwise",
        "          81%, normalisation 77%",
        "parallel  0.30 ms of copies",
        "",
        "2.29x     DATA001 train.py:80: the loader has no worker processes: the GPU waits",
        "          while one process decodes",
        "  cure    Let worker processes make the batches, and keep them from one epoch to",
        "          the next.",
        "          loader = DataLoader(dataset, num_workers=8, persistent_workers=True)",
        "1.10x     SYNC001 train.py:88: loss.item() in each step lets the GPU run dry for",
        "          38 ms",
        "  cure    Keep the loss as a tensor and read it every 50 steps.",
        "1.02x     KERN014 layout conversions around convolutions take 2% of the step",
        "  cure    model.to(memory_format=torch.channels_last)",
        "          1 more with --json and in the report",
        "",
        "report    /runs/1/profile.html",
        "boosts    loader-workers, channels-last (no edit needed)",
        "next      flatout tune python train.py",
    ]


@pytest.mark.parametrize("height", [24, 30, 40])
@pytest.mark.parametrize("name", [name for name in examples.ALL if name != "hostile"])
def test_it_is_one_screen_with_the_prompt_below(name: str, height: int) -> None:
    lines = plain.lines(drawn(examples.ALL[name](), height=height))
    assert len(lines) < height
    labels = [line.split()[0] for line in lines if line.strip()]
    assert labels[0] == "step" and "verdict" in labels and "anatomy" in labels
    if examples.ALL[name]().findings:
        assert any(examples.NO_WORKERS.code in line for line in lines[labels.index("anatomy") :])


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", [name for name in examples.ALL if name != "hostile"])
def test_lines_fit(name: str, width: int) -> None:
    copied = ("report ", "next ")
    for line in drawn(examples.ALL[name](), width).splitlines():
        code = line.strip().startswith("loader = ")
        assert len(line) <= max(width, BAR) or line.startswith(copied) or code, line


@given(
    st.lists(st.floats(0.001, 1000), min_size=1, max_size=len(Kind)),
    st.sampled_from([60, 80, 100]),
)
def test_bars_add_up_whatever_the_parts(shares: list[float], width: int) -> None:
    parts = tuple(Part(kind, ms) for kind, ms in zip(Kind, shares, strict=False))
    anatomy = Anatomy("cuda", sum(shares), parts, steps=1)
    text = drawn(Profiled(Profile((), anatomy), ()), width)
    bar_texts = bars(text)
    room = width - BAR
    assert sum(bar.count("#") for bar in bar_texts) == room
    begun = 0
    for bar in bar_texts:  # each begins where the one above ended
        assert len(bar) - len(bar.lstrip()) == min(begun, room - 1)
        begun += bar.count("#")


def test_a_pipe_and_a_dumb_terminal_get_plain_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = drawn(examples.naive())
    assert piped.isascii() and "\x1b" not in piped
    monkeypatch.setenv("TERM", "dumb")
    dumb = drawn(examples.naive(), height=40)
    assert dumb.isascii() and "\x1b" not in dumb
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn_on_terminal = drawn(examples.naive(), height=40)
    assert "█" in drawn_on_terminal and "\x1b[" in drawn_on_terminal
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = drawn(examples.naive(), height=40)
    assert "█" in colourless
    assert not any(f"\x1b[{colour}m" in colourless for colour in range(30, 48))


@pytest.mark.parametrize("ratio", [0.0, float("nan"), float("inf"), 1.0])
def test_odd_predictions_do_not_break_the_screen(ratio: float) -> None:
    odd = dataclasses.replace(examples.ITEM, gain=Gain(ratio, "odd"))
    profiled = dataclasses.replace(examples.naive(), findings=(odd, examples.NO_WORKERS))
    assert "DATA001" in drawn(profiled)


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_foreign_text_cannot_reach_the_terminal(text: str) -> None:
    hostile = f"\x1b[31m{text}\x1b]0;owned\x07"
    finding = dataclasses.replace(examples.NO_WORKERS, title=hostile, where=hostile, boost=hostile)
    profile = dataclasses.replace(examples.naive().profile, device_name=hostile)
    shown = drawn(Profiled(profile, (finding,), (hostile,), report_path=hostile))
    assert "\x1b" not in shown and "\x07" not in shown
