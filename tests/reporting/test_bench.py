"""What `flatout bench` prints and writes: 80 columns, no figure invented, JSON whole."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flatout.nouns.ceiling import Benched, Ceiling, Device, Point
from flatout.nouns.identity import Identity
from flatout.reporting.bench import BenchView, bench, bench_document

HERE = Identity("Linux", "Intel(R) Xeon(R) Platinum 8480+", 112, 2**40)
ROWS = (
    Ceiling(
        "matmul-bf16",
        "matrix product, bf16",
        "cuda:0",
        748.2,
        "TFLOP/s",
        989.4,
        "8192x8192x8192",
        (Point("4096x4096x4096", 690.0), Point("8192x8192x8192", 748.2)),
    ),
    Ceiling("launch-rate", "tiny kernels in a row", "cuda:0", 182_345.6, "launches/s"),
    Ceiling("matmul-cpu-fp64", "matrix product, fp64", "cpu", 0.3512, "TFLOP/s"),
    Ceiling("jpeg-decode-core", "JPEG", "cpu", None, "images/s", note="no decoder"),
)
BENCHED = Benched(
    HERE,
    "2.9.1+cu128",
    ROWS,
    (),
    wall_s=12.3,
    date="2026-11-21T20:00:00+00:00",
    devices=(Device("cuda:0", "NVIDIA H100 80GB HBM3", 80 * 2**30),),
)


def printed(benched: Benched, width: int = 80) -> str:
    file = io.StringIO()
    bench(benched, Console(file=file, width=width, color_system=None))
    return file.getvalue()


def test_the_table() -> None:
    text = printed(BENCHED)
    assert max(map(len, text.splitlines())) <= 80
    assert "cuda:0    NVIDIA H100 80GB HBM3" in text
    assert "748 TFLOP/s" in text
    assert "76% of 989.4" in text
    assert "182,346 launches/s" in text
    assert "cpu       Intel(R) Xeon(R) Platinum 8480+" in text
    assert "351 GFLOP/s" in text
    assert "no figure JPEG on cpu: no decoder" in text
    assert "with torch 2.9.1+cu128, all sizes, in 12 s" in text


def test_foreign_text_cannot_reach_the_terminal() -> None:
    evil = Device("cuda:0", "GPU\x1b[31m\nred")
    assert "\x1b" not in printed(dataclasses.replace(BENCHED, devices=(evil,)))


def test_the_document() -> None:
    answer = json.loads(json.dumps(bench_document(BENCHED)))
    assert answer["schema"] == "flatout.bench/1"
    first = answer["ceilings"][0]
    assert (first["id"], first["value"], first["unit"]) == ("matmul-bf16", 748.2, "TFLOP/s")
    assert first["datasheet"] == 989.4
    assert first["share"] == 748.2 / 989.4
    assert first["curve"][0] == {"size": "4096x4096x4096", "value": 690.0}
    assert answer["ceilings"][3]["value"] is None
    assert answer["ceilings"][1]["datasheet"] is None
    assert (answer["passed"], answer["interrupted"]) == (None, False)


finite = st.floats(0.0, 1e12, allow_nan=False)
texts = st.text(max_size=60)
ceilings = st.builds(
    Ceiling,
    id=texts,
    title=texts,
    device=st.sampled_from(["cuda:0", "cpu", ""]),
    value=st.none() | finite,
    unit=st.sampled_from(["TFLOP/s", "GB/s", "us", "launches/s", "images/s", "x"]),
    datasheet=st.none() | st.floats(0.1, 1e5),
    best=texts,
    note=texts,
)


@given(st.lists(ceilings, max_size=6), st.sampled_from([80, 100, 140]))
def test_whatever_was_measured_fits(rows: list[Ceiling], width: int) -> None:
    benched = dataclasses.replace(BENCHED, ceilings=tuple(rows))
    text = printed(benched, width)
    tables = [line for line in text.splitlines() if line.startswith("  ")]
    assert all(len(line) <= width for line in tables)
    json.dumps(bench_document(benched), allow_nan=False)


def test_a_terminal_is_given_back() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    file = Terminal()
    console = Console(file=file, width=80, force_terminal=True, force_interactive=True)
    view: Any = BenchView(console)
    with view:
        view.planned(1)
        view.begun(dataclasses.replace(ROWS[0], value=None))
        view.point(ROWS[0])
        view.ended(ROWS[0])
    assert file.getvalue().rstrip().endswith("\x1b[?25h")
