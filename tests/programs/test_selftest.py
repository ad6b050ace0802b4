"""What the self-tests catch, with the real torch on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_programs import selftest
from flatout_programs.tell import MARK
from probing.fake_packages import bare, install, site

PROGRAM = Path(selftest.__file__)


def told(python: str, *arguments: str) -> list[dict[str, Any]]:
    command = [python, str(PROGRAM), *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    return [json.loads(line.partition(MARK)[2]) for line in done.stdout.splitlines()]


def run(test: Any) -> dict[str, Any]:
    said: list[dict[str, Any]] = []
    selftest._run("it", test, said.append)
    assert said[0] == {"begin": "it", "slow": False}
    return said[1]


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_matrix_products(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(selftest.LARGE, "cpu", 64)
    figure = selftest.multiply("cpu", kind)
    assert figure.endswith("FLOP/s")
    assert float(figure.split()[0]) >= 0


@pytest.mark.parametrize("test", [selftest.convolve, selftest.train, selftest.copy])
def test_the_others_pass_on_the_cpu(test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "COPIED_BYTES", 2**20)
    said = run(lambda: test("cpu"))
    assert (said["passed"], said["message"]) == (True, None)
    assert said["figure"]
    assert said["seconds"] > 0


@pytest.mark.slow
def test_allocate() -> None:
    assert selftest.allocate("cpu") == "1 GiB"


def test_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest.Pictures, "__getitem__", lambda self, i: torch.full((1, 1, 1), i))
    assert selftest.load().endswith(" samples/s")


def test_a_wrong_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.Tensor.__matmul__

    def one_bad_row(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found = right(self, other)
        if found.dtype == torch.float32:
            found[7] = 0
        return found

    monkeypatch.setattr(torch.Tensor, "__matmul__", one_bad_row)
    said = run(lambda: selftest.multiply("cpu", "float32"))
    assert said["passed"] is False
    assert said["message"].startswith("the result is wrong: relative error 4")


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "zero_grad", lambda self: None)
    monkeypatch.setattr(torch.nn.Module, "zero_grad", lambda self, set_to_none: None)
    assert run(lambda: selftest.train("cpu"))["message"].startswith("the result is wrong")


def test_not_a_number_is_wrong() -> None:
    bad = torch.full((2, 2), float("nan"))
    with pytest.raises(selftest.WrongResultError):
        selftest._compare(bad, torch.ones(2, 2), 1.0)


@pytest.mark.parametrize(
    ("error", "passed"),
    [
        ("InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config", None),
        ("Cannot find a working triton installation. Either the package", None),
        ("torch.compile is not supported on Python 3.14+", None),
        ("CUDA error: operation not supported", False),
        ("C++ compile error: fatal error: Python.h: No such file or directory", False),
    ],
)
def test_what_cannot_compile(
    error: str, passed: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(function: Any) -> Any:
        raise RuntimeError(f"{error}\n\nSet TORCHDYNAMO_VERBOSE=1 for more")

    monkeypatch.setattr(torch, "compile", fails)
    said = run(lambda: selftest.compile_("cpu"))
    assert said["passed"] is passed
    assert error in said["message"]


def test_a_torch_from_before_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "compile")
    assert run(lambda: selftest.compile_("cpu"))["passed"] is None


def test_the_tests_of_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    names = [name for name, _ in selftest.tests()]
    assert len(names) == len(set(names))
    assert "copy, cuda:0 to cuda:1" in names
    assert "matrix product float16, cuda:1" in names
    assert "matrix product bfloat16, cuda:0" not in names  # emulated there
    assert [name for name in names if "compile" in name] == [
        "torch.compile, cuda:0",
        "torch.compile, cpu",
    ]


def test_torch_is_not_installed(tmp_path: Path) -> None:
    lines = told(bare(tmp_path / "venv"))
    assert [line.get("passed", "") for line in lines] == ["", None, ""]
    assert lines[1]["message"] == "torch is not installed"
    assert lines[2] == {"done": True}


def test_torch_cannot_be_imported(tmp_path: Path) -> None:
    python = bare(tmp_path / "venv")
    install(site(python), "torch", "2.7.1", __init__="print('noise'); import missing")
    begun, failed, done = told(python)
    assert begun == {"begin": "import torch", "slow": True}
    assert failed["passed"] is False
    assert failed["message"] == "ModuleNotFoundError: No module named 'missing'"
    assert done == {"done": True}


@pytest.mark.slow
def test_what_was_tried_already_is_left_out() -> None:
    names = [name for name, _ in selftest.tests()]
    first = ["import torch", "find devices"]
    lines = told(sys.executable, *first, *(name for name in names if "convolution" not in name))
    begun = [line["begin"] for line in lines if "begin" in line]
    assert begun == [name for name in names if "convolution" in name]
    assert lines[-1] == {"done": True}
