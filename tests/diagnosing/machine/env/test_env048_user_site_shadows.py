from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.diagnosing.machine.env.env048_user_site_shadows import USER_SITE
from flatout.nouns.interpreter import Package

CHECK = "user-site-shadows"
NAME = "user-site-in-front"


def test_the_folder_is_hidden_and_torch_comes_into_the_environment() -> None:
    finding = only(CHECK, broken(NAME))
    assert "torch 2.9.1" in finding.evidence
    assert "/home/user/.local/lib/python3.12/site-packages" in finding.evidence
    text = commands(finding)
    assert "PYTHONNOUSERSITE=1" in text
    assert "conda install" in text


def test_with_a_copy_in_the_environment_hiding_is_enough() -> None:
    own = Package("torch", "2.9.1", "/home/user/miniconda3/envs/job/lib/python3.12", "pip")
    copies = (broken(NAME).interpreter.packages[0], own)
    assert "conda install" not in commands(
        only(CHECK, broken(NAME, interpreter__duplicates=copies))
    )


@pytest.mark.parametrize(
    "change",
    [
        {"interpreter__user_site": False},
        {"interpreter__user_site": None},
        {"interpreter__conda": False},
        {"interpreter__packages__all__location": "/opt/conda/lib/python3.12/site-packages"},
        {"interpreter__packages__all__location": None},
    ],
    ids=str,
)
def test_nothing_otherwise(change: dict[str, object]) -> None:
    assert not findings(CHECK, broken(NAME, **change))


def test_the_folder_on_each_system() -> None:
    assert USER_SITE.search("C:\\Users\\user\\AppData\\Roaming\\Python\\Python312\\site-packages")
    assert USER_SITE.search("/Users/user/Library/Python/3.12/lib/python/site-packages")
    assert not USER_SITE.search("/home/user/.local/share/uv/tools/x/lib/python3.12/site-packages")
