from __future__ import annotations

import pytest

from flatout.diagnosing.machine.env import software
from flatout.nouns.interpreter import Torch
from machines.healthy import changed, cpu_server, gpu, laptop, mac, rocm, torch, workstation
from machines.software import arc


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12.8.1", (12, 8)), ("9", (9,)), ("2.9.1+cu128", (2, 9)), ("unknown", None), (None, None)],
)
def test_numbers(text: str | None, expected: tuple[int, ...] | None) -> None:
    assert software.numbers(text) == expected


def test_which_gpus_count_for_training() -> None:
    assert len(software.capable(laptop(), "nvidia")) == 1
    assert software.capable(laptop(), "intel") == ()
    assert len(software.capable(rocm(), "amd")) == 8
    assert software.capable(changed(rocm(), gpus__all__memory_bytes=2**29), "amd") == ()
    assert len(software.capable(mac(), "apple")) == 1
    assert len(software.capable(arc(gpus__0__shared_memory=None), "intel")) == 1


def test_what_a_torch_was_built_for() -> None:
    assert software.cuda_of(torch()) == "12.8"
    assert software.cuda_of(changed(torch(), cuda=None)) == "12.8"
    assert software.cuda_of(Torch("2.9.1", "cu130")) == "13.0"
    assert software.cuda_of(torch("2.9.1", "cpu")) is None
    assert software.rocm_of(torch("2.9.1", "rocm6.4", hip="6.4.43484")) == "6.4"
    assert software.rocm_of(torch()) is None
    assert software.cpu_build(torch("2.9.1", "cpu"))
    assert not software.cpu_build(Torch("2.9.1"))


def test_the_arch_list_of_the_wheel_where_torch_does_not_say() -> None:
    told = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert software.arch_list(workstation()) == told
    silent = changed(workstation(), interpreter__torch__arch_list=None)
    assert "sm_120" in software.arch_list(silent)
    assert software.arch_list(cpu_server()) == ()


def test_what_differs_in_the_numbers_that_both_give() -> None:
    assert software.differ("9.1.0", "9.10.2.21")
    assert not software.differ("9.10.2", "9.10.2.21")
    assert not software.differ("9", "9.10.2")
    assert not software.differ(None, "9.10.2")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [0, 1]),
        ("-1", []),
        ("GPU-00000001", [1]),
        ("5,0", []),
    ],
)
def test_the_gpus_that_a_program_sees(value: str | None, expected: list[int]) -> None:
    machine = changed(
        workstation(),
        gpus=(gpu(), gpu(1)),
        environment={} if value is None else {"CUDA_VISIBLE_DEVICES": value},
    )
    assert [card.index for card in software.visible_gpus(machine)] == expected


def test_where_nothing_fits_the_reason_is_a_remark() -> None:
    lines = software.install_torch(changed(workstation(), system__libc="musl 1.2.5"))
    assert lines
    assert all(line.startswith("# ") for line in lines)


def test_a_line_cut_to_length() -> None:
    assert software.shortened("a\n b") == "a b"
    assert len(software.shortened("word " * 50)) <= 100
