from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.diagnosing.machine.env.env049_allocator_setting_unknown import faults
from flatout.nouns.finding import Severity
from machines.healthy import changed, cpu_server, windows, workstation

CHECK = "allocator-setting-unknown"


def with_settings(
    value: str, version: str = "2.9.1", name: str = "PYTORCH_CUDA_ALLOC_CONF"
) -> object:
    return changed(workstation(), environment={name: value}, interpreter__torch__version=version)


def test_a_misspelt_option() -> None:
    finding = only(CHECK, broken("allocator-misspelt"))
    assert finding.severity is Severity.ERROR
    assert "no option 'expandable_segment'" in finding.evidence
    assert "unset PYTORCH_CUDA_ALLOC_CONF" in commands(finding)


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments:True",
        "expandable_segments:True, max_split_size_mb:512",
        "max_split_size_mb:20,garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],garbage_collection_threshold:0.6",
        "backend:cudaMallocAsync",
        "pinned_use_background_threads:True",
    ],
)
def test_what_torch_accepts(value: str) -> None:
    assert faults(value, (2, 9)) == []


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments=True",
        "expandable_segments:true",
        "expandable_segments",
        "max_split_size_mb:10",
        "max_split_size_mb:512MB",
        "garbage_collection_threshold:1.5",
        "garbage_collection_threshold:0.0",
        "backend:async",
        "expandable_segments:True,",
        "C:\\temp",
    ],
)
def test_what_torch_refuses(value: str) -> None:
    assert faults(value, (2, 9))


def test_expandable_segments_came_with_2_1() -> None:
    finding = only(CHECK, with_settings("expandable_segments:True", "2.0.1"))
    assert "needs torch 2.1" in finding.evidence
    assert not findings(CHECK, with_settings("expandable_segments:True", "2.1.0"))


def test_of_a_release_newer_than_known_no_option_is_called_unknown() -> None:
    assert findings(CHECK, with_settings("new_option:1", "2.13.0"))
    assert not findings(CHECK, with_settings("new_option:1", "2.14.1"))


def test_what_is_ignored_is_a_warning() -> None:
    both = "backend:cudaMallocAsync,expandable_segments:True"
    finding = only(CHECK, with_settings(both))
    assert finding.severity is Severity.WARNING
    assert "ignores expandable_segments" in finding.title
    unread = with_settings("expandable_segments:True", "2.6.0", "PYTORCH_ALLOC_CONF")
    assert "does not read PYTORCH_ALLOC_CONF" in only(CHECK, unread).title
    on_windows = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (
        "does nothing on Windows" in only(CHECK, changed(windows(), environment=on_windows)).title
    )


def test_two_variables_that_differ() -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    differ = dict(zip(names, ("expandable_segments:True", "max_split_size_mb:512"), strict=True))
    finding = only(CHECK, changed(workstation(), environment=differ))
    assert finding.severity is Severity.WARNING
    assert "PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF differ" in finding.title
    same = dict.fromkeys(names, "max_split_size_mb:512")
    assert not findings(CHECK, changed(workstation(), environment=same))


def test_nothing_for_a_torch_for_cpu() -> None:
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "nonsense"}
    assert not findings(CHECK, changed(cpu_server(), environment=variables))
