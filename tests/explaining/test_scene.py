"""What a run recorded of its crash enters the explanation, and decides between causes."""

from __future__ import annotations

import pytest

from flatout.explaining import scene
from flatout.explaining.explaining import of_crash
from flatout_agent import wire

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 24.00 GiB of which 0.10 GiB is free."
)
LABEL = "IndexError: Target 10 is out of bounds."
TARGET = wire.TensorSeen("labels", (16,), "int64", "cpu", 0.0, 10.0)
MISFIT = wire.Misfit("label", "labels", 10.0, (5,), 1, 16, 10)


def history(*gib: float, **fields: object) -> wire.HistorySeen:
    bytes_ = tuple(int(value * (1 << 30)) for value in gib)
    given: dict[str, object] = {
        "steps": tuple(range(1, len(gib) + 1)),
        "memory_bytes": bytes_,
        "device": "cuda",
        **fields,
    }
    return wire.HistorySeen(**given)  # type: ignore[arg-type]


def told(text: str, *records: wire.Record) -> tuple[list[str], str]:
    """The observations in English, and the id of the root cause."""
    everything = (wire.Crashed(text), *records)
    answer = of_crash([text.encode()], lambda: None, [(7, record) for record in everything])
    return [said.en for said in answer.observations], answer.matches[0].id


def test_which_label_and_which_sample() -> None:
    frames = (wire.SceneFrame("train.py:12", "step", (TARGET,)),)
    recorded = history(1.0, batch=2, batch_size=16, in_order=True)
    said, _ = told(LABEL, wire.CrashScene(frames, MISFIT), recorded)
    assert said[0].startswith("Label 10 at position 5 of labels (int64 [16] 0..10)")
    assert "labels must be 0 to 9" in said[0]
    assert "sample 37 of the data set (batch 2" in said[1]


def test_a_shuffled_loader_tells_the_batch_but_no_sample() -> None:
    recorded = history(1.0, batch=2, batch_size=16)
    said, _ = told(LABEL, wire.CrashScene((), MISFIT), recorded)
    assert said[1].startswith("It is in batch 2")
    assert not any("sample" in sentence for sentence in said)


def test_shapes_and_types_where_it_failed() -> None:
    linear = wire.SceneFrame(
        "/x/site-packages/torch/nn/modules/linear.py:134",
        "forward",
        (wire.TensorSeen("input", (2, 144), "float64", "cpu", 0.0, 1.0),),
        "Linear",
        own=False,
    )
    text = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x144 and 100x10)"
    said, _ = told(text, wire.CrashScene((linear,)))
    expected = "In Linear.forward (torch/nn/modules/linear.py:134): input float64 [2, 144] 0..1."
    assert said == [expected]


def test_memory_that_grows_is_a_leak() -> None:
    said, root = told(OUT_OF_MEMORY, history(*(1 + 0.5 * step for step in range(40))))
    assert root == "cuda-oom-grows"
    assert "512 MiB a step" in said[0]


def test_what_needs_no_records_of_this_kind_gets_none() -> None:
    frames = (wire.SceneFrame("train.py:12", "step", (TARGET,)),)
    text = "FileNotFoundError: [Errno 2] No such file or directory: 'a.pt'"
    assert told(text, wire.CrashScene(frames))[0] == []
    assert scene.record_of([(7, wire.Crashed(LABEL))]) is None
    assert told(LABEL)[0] == []


def test_one_long_batch_and_one_that_did_not_fit_from_the_start() -> None:
    recorded = history(4.0, batch_elements=5000, most_elements=1000)
    assert "larger than any before: 5000 elements" in told(OUT_OF_MEMORY, recorded)[0][0]
    usual = history(4.0, batch_elements=1000, most_elements=1000)
    assert not any("larger" in said for said in told(OUT_OF_MEMORY, usual)[0])
    assert "No step was complete" in told(OUT_OF_MEMORY, history())[0][0]


@pytest.mark.parametrize("gib", [[4.0] * 40, [1, 9, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]])
def test_memory_that_stays_is_no_leak(gib: list[float]) -> None:
    said, root = told(OUT_OF_MEMORY, history(*gib))
    assert root == "cuda-oom"
    assert "It is no leak" in said[0]
