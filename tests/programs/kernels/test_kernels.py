"""Each family on the CPU, with small sizes: plausible figures, random operands that rotate."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_programs import ceilings as program
from flatout_programs.kernels import (
    attention,
    convolution,
    exchange,
    jpeg,
    matmul,
    memory,
    sizes,
)
from flatout_programs.kernels.kernel import CeilingKernel, Setup, Slice

FOLDER = Path(program.__file__).with_name("kernels")
MACHINERY = {"__init__", "kernel", "sizes", "stopwatch", "timing"}


@pytest.fixture
def here() -> Setup:
    return Setup(torch, quick=True, cores=2)


def kernel(here: Setup, family: Any, kernel_id: str) -> CeilingKernel:
    (found,) = [one for one in family.kernels(here) if one.id == kernel_id]
    return found


def best(here: Setup, family: Any, kernel_id: str, seconds: float = 0.15) -> float:
    points = list(kernel(here, family, kernel_id).curve(Slice(seconds)))
    assert points
    assert all(value > 0 for _, value in points)
    return max(value for _, value in points)


def test_the_folder_is_the_table() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - MACHINERY
    assert files == set(program.FAMILIES)


def test_ids_are_unique_on_each_device(here: Setup) -> None:
    found = [
        (one.id, one.device)
        for name in program.FAMILIES
        for one in importlib.import_module(f"flatout_programs.kernels.{name}").kernels(here)
    ]
    assert len(found) == len(set(found))
    assert {device for _, device in found} == {"cpu"}
    wanted = {f"matmul-cpu-{name}" for name in ("fp32", "bf16", "fp64")}
    wanted |= {"memory-cpu", "attention-cpu-fp32", "jpeg-decode-core"}
    assert wanted <= {kernel_id for kernel_id, _ in found}


@pytest.mark.parametrize("name", ["fp32", "fp64", "bf16"])
def test_matrix_products(here: Setup, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(matmul, "CPU_QUICK", ((64, 64, 64), (256, 256, 256)))
    assert 0 < best(here, matmul, f"matmul-cpu-{name}") < 100  # TFLOP/s; busy machines are slow


@pytest.mark.parametrize("name", ["fp32", "fp64", "bf16"])
def test_a_product_is_one_of_its_own_random_operands(here: Setup, name: str) -> None:
    operands: list[tuple[Any, Any]] = []
    mm = torch.mm

    def spy(one: Any, two: Any, out: Any) -> Any:
        operands.append((one, two))
        return mm(one, two, out=out)

    library = type("Spied", (), {**vars(torch), "mm": staticmethod(spy)})
    spied = Setup(library, quick=True, cores=2)
    act = matmul.product(spied, "cpu", name, (128, 128, 128))
    for call in range(4):
        act(call)
    assert len({id(one) for one, _ in operands}) == 4  # small ones rotate
    for one, two in operands:
        for values in (one.float(), two.float()):
            assert float(values.std()) == pytest.approx(1.0, abs=0.1)
            assert (values == 0).float().mean() < 0.01


def test_float32_stays_float32_unless_tf32_is_meant() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul.precise(torch, "tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    with matmul.precise(torch, "fp32"):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == before


def test_operands_together_are_larger_than_the_cache(here: Setup) -> None:
    size = 2**20
    found = here.sets("cpu", lambda: torch.zeros(1), size)
    assert len(found) == min(64, -(-3 * here.cache_bytes("cpu") // size))
    assert len({one.data_ptr() for one in found}) == len(found)
    assert len(here.sets("cpu", lambda: torch.zeros(1), 2**40)) == 1


def test_random_operands_are_drawn_once_and_lie_as_the_first_ones(here: Setup) -> None:
    """Drawing them took longer than all measurements of an H200's host."""
    drawn: list[Any] = []

    def make() -> Any:
        drawn.append((torch.randn(4, 8), torch.randn(16, 8).t()))
        return drawn[-1]

    found = here.sets("cpu", make, 2**20)
    assert len(found) > 1
    assert len(drawn) == 1
    for one, two in found:
        assert torch.equal(one, drawn[0][0])
        assert two.stride() == drawn[0][1].stride()


def test_filled_arrays_hold_random_values_everywhere(here: Setup) -> None:
    values = here.filled(3 * 2**20 + 17, "cpu")
    assert (values == 0).float().mean() < 0.01
    assert float(values[-17:].std()) > 0.1


def test_memory(here: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CPU_BYTES", 2**25)
    monkeypatch.setattr(Setup, "cache_bytes", lambda self, device: 2**20)
    assert 0.01 < best(here, memory, "memory-cpu") < 20_000  # GB/s


@pytest.mark.parametrize("name", memory.ARRAYS)
def test_traffic_is_what_is_counted(
    here: Setup, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Setup, "cache_bytes", lambda self, device: 2**16)
    arrays: list[Any] = []
    filled = Setup.filled

    def keep(self: Setup, count: int, device: str) -> Any:
        arrays.append(filled(self, count, device))
        return arrays[-1]

    monkeypatch.setattr(Setup, "filled", keep)
    act = memory.traffic(here, "cpu", name, 2**20)
    assert sum(one.nbytes for one in arrays[: memory.ARRAYS[name]]) == memory.ARRAYS[name] * 2**20
    act(0)
    target, *sources = arrays[: memory.ARRAYS[name]]
    right = sources[0] if name == "copy" else sources[0] + 0.5 * sources[1]
    assert torch.equal(target, right)


@pytest.mark.parametrize("kernel_id", ["attention-cpu-fp32", "attention-cpu-bf16"])
def test_attention(here: Setup, monkeypatch: pytest.MonkeyPatch, kernel_id: str) -> None:
    monkeypatch.setattr(attention, "CPU_QUICK", ((1, 2, 64, 32),))
    assert 0 < best(here, attention, kernel_id) < 100


@pytest.mark.parametrize("layout", convolution.LAYOUTS)
def test_convolution(here: Setup, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setattr(convolution, "CPU_QUICK", ((2, 16, 14),))
    before = torch.backends.cudnn.benchmark
    assert 0 < best(here, convolution, f"conv-cpu-{layout}-fp32") < 100
    assert torch.backends.cudnn.benchmark == before


def test_pictures_are_decoded(here: Setup) -> None:
    data = jpeg.encoded(torch, jpeg.WIDTH, jpeg.HEIGHT, 0)
    assert data[:2] == b"\xff\xd8"
    assert 40_000 < len(data) < 250_000  # a photograph's, not a blank's
    threads = torch.get_num_threads()
    assert 20 < best(here, jpeg, "jpeg-decode-core") < 20_000
    assert torch.get_num_threads() == threads


def test_without_a_decoder_it_says_so(here: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg, "installed_decoders", lambda torch: {})
    (told,) = jpeg.kernels(here)
    assert "pip install pillow" in told.impossible


def test_one_device_exchanges_nothing(here: Setup) -> None:
    assert exchange.kernels(here) == []


def test_sizes_that_would_take_too_long_are_left_out() -> None:
    tried: list[int] = []

    def measure(size: int, seconds: float) -> tuple[str, float, float]:
        tried.append(size)
        return str(size), 1.0, size * 0.001

    assert [name for name, _ in sizes.over([1, 10, 100, 1000], float, measure, Slice(1.0))] == [
        "1",
        "10",
    ]
    assert tried == [1, 10]


def test_the_first_size_is_always_measured() -> None:
    def measure(size: int, seconds: float) -> tuple[str, float, float]:
        assert seconds > 0
        return "it", 1.0, 100.0

    assert len(list(sizes.over([5, 6], float, measure, Slice(-1.0)))) == 1


def test_further_devices_are_looked_at_shortly() -> None:
    two = Setup(torch, quick=True, accelerators=("cuda:0", "cuda:1"))

    def seen(kernel_id: str, device: str) -> bool:
        return two.has_time_for(CeilingKernel(kernel_id, "", device, "", lambda _: iter(())))

    assert seen("launch-rate", "cuda:0")
    assert seen("memory-cpu", "cpu")
    assert seen("copy-device", "cuda:1")
    assert not seen("launch-rate", "cuda:1")
