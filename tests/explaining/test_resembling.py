"""What resembles a known error is offered and is no answer; a program's own error gets nothing."""

from __future__ import annotations

import pytest

from flatout.explaining.explaining import explain_text
from flatout.nouns.signature import Confidence

KNOWN = {
    "RuntimeError: mat1 and mat2 could not be multiplied, shapes (3x128 and 256x10)": "shape-",
    "ValueError: Expected more than one value per channel while training, got input [1, 64]": (
        "batchnorm-single-value"
    ),
    "RuntimeError: Your NVIDIA driver on this system is too old for this PyTorch (11040)": (
        "driver-too-old"
    ),
    "RuntimeError: a variable needed for the gradient computation was modified by some inplace "
    "operation": "autograd-inplace",
}
OWN = [
    "ValueError: unknown optimizer name 'adamv' in config section training",
    "study.errors.PipelineError: stage 3 produced no rows for customer 1123",
    "AssertionError: the number of patients in the table is not the number of scans",
    "ValueError: learning rate must be positive, got -0.1",
    "RuntimeError: experiment folder already contains results; pass --overwrite",
    "RuntimeError: The solver did not converge within 500 iterations",
    "ValueError: the model name must be one of resnet18, resnet34, vit",
    "RuntimeError: failed to connect to the postgres database on host db1",
    "ValueError: Image and mask must have the same size: image (512, 512), mask (256, 256)",
    "ValueError: batch size must be divisible by number of accumulation steps",
    "RuntimeError: No checkpoint found in the output directory, cannot resume training",
    "TypeError: compute_reward() takes the state of the environment, not a string",
    "ValueError: split 'dev' is not among the splits of this corpus: train, test",
    "RuntimeError: simulation diverged at step 300, energy 1e9",
    "ValueError: tokens and tags of sentence 12 differ in length",
    "ValueError: invalid literal for int() with base 10: 'abc'",
    "gym3.errors.RewardError: reward out of the range that the environment promised",
]


@pytest.mark.parametrize(("message", "name"), KNOWN.items())
def test_a_like_message_is_offered_and_is_no_answer(message: str, name: str) -> None:
    answer = explain_text(f'Traceback (most recent call last):\n  File "a.py", line 3\n{message}\n')
    assert not answer.recognised
    assert answer.matches == ()
    assert answer.resembling[0].id.startswith(name)
    assert answer.resembling[0].confidence is Confidence.LOW
    assert answer.resembling[0].evidence.text == message


@pytest.mark.parametrize("message", OWN)
def test_a_programs_own_error_resembles_nothing(message: str) -> None:
    answer = explain_text(f'Traceback (most recent call last):\n  File "a.py", line 3\n{message}\n')
    assert answer.matches == ()
    assert answer.resembling == ()


def test_a_log_of_no_error_resembles_nothing() -> None:
    steps = "".join(f"epoch {i}: loss {1 / (i + 1):.3f}, memory 3.1 GiB\n" for i in range(50))
    assert explain_text(steps).resembling == ()
