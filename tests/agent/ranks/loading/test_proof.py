"""Whether a batch is made of parts is found out where it is read, with the samples read once."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from flatout_agent.ranks.loading import proof
from flatout_agent.ranks.loading.forms import SAMPLES
from flatout_agent.ranks.loading.packing import unpacked
from flatout_agent.speedups.samples import samples

DICE = torch.Generator().manual_seed(3)


class Data:
    def __init__(self) -> None:
        self.reads: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        return torch.full((2,), index)


class Drawing(Data):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.rand(2)


class OwnDice(Data):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.rand(2, generator=DICE)


class Counted(Data):
    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return super().__getitem__(index)


class AtOnce(Data):
    def __getitems__(self, indices: list[int]) -> Any:
        return [torch.tensor([index, len(indices)]) for index in indices]


def read(data: Any, collate: Any = default_collate) -> tuple[Any, proof.LookFound]:
    fetcher = SimpleNamespace(dataset=data, collate_fn=collate)
    return proof.read(fetcher, list(range(5)), (3, 2))


def test_the_batch_is_torchs_and_read_once() -> None:
    data, before = Data(), torch.get_rng_state()
    batch, found = read(data)
    assert torch.equal(batch, default_collate([torch.full((2,), index) for index in range(5)]))
    assert data.reads == list(range(5))
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.reason, found.random) == ("", False)
    assert found.form is not None


@pytest.mark.parametrize("data", [Drawing(), OwnDice()])
def test_random_numbers_of_the_rows_are_seen(data: Data) -> None:
    _, found = read(data)
    assert (found.reason, found.random) == ("", True)


def shuffled(rows: list[Any]) -> Any:
    return torch.stack(rows)[torch.randperm(len(rows))]


def in_place(rows: list[Any]) -> Any:
    return torch.stack([row.sub_(min(map(int, (each[0] for each in rows)))) for row in rows])


class Keeping:
    def __init__(self) -> None:
        self.widest = 0

    def __call__(self, rows: list[Any]) -> Any:
        self.widest += 1
        return torch.stack(rows)


def failing(rows: list[Any]) -> Any:
    if len(rows) < 5:
        raise RuntimeError("five rows or none")
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("collate", "why"),
    [
        (shuffled, "its collate function draws random numbers"),
        (failing, "RuntimeError: five rows or none"),
        (in_place, "depends on the others"),
        (lambda rows: [object() for _ in rows], "depends on the others"),
        (lambda rows: object(), "a object, which is not known"),
    ],
)
def test_what_must_be_collated_together(collate: Any, why: str) -> None:
    before = torch.get_rng_state()
    _, found = read(Data(), collate)
    assert (found.reason, found.form, found.random) == ("", SAMPLES, False)
    assert why in found.uncut
    assert torch.equal(torch.get_rng_state(), before) or collate is shuffled
    sent = [row for rows in found.rows for row in unpacked(rows)[0]]
    assert samples.same(sent, [torch.full((2,), index) for index in range(5)])


def test_only_samples_are_asked_for() -> None:
    fetcher = SimpleNamespace(dataset=Data(), collate_fn=default_collate)
    _, found = proof.read(fetcher, [0, 1], (1, 1), collated=False)
    assert found.form == SAMPLES
    assert [unpacked(rows)[0][0].tolist() for rows in found.rows] == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("data", "collate", "why"),
    [
        (Data(), Keeping(), "keeps what it has seen"),
        (Counted(), default_collate, r"counts what is read \(dataset.count\)"),
        (AtOnce(), default_collate, "its rows depend on each other"),
        ([object()] * 5, lambda rows: torch.ones(len(rows)), "a sample holds builtins.object"),
    ],
)
def test_why_not(data: Any, collate: Any, why: str) -> None:
    _, found = read(data, collate)
    assert re.search(why, found.reason), found.reason
    assert found.form is None


def test_what_collating_prints_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def loud(rows: list[Any]) -> Any:
        print("rows", len(rows))
        return torch.stack(rows)

    assert "prints" in read(Data(), loud)[1].reason
    assert capsys.readouterr().out == "rows 5\n"


def test_an_error_of_the_programs_own_is_raised() -> None:
    with pytest.raises(KeyError):
        read({0: 1})
