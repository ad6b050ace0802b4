"""Seeds of one rank's calls."""

import torch

from flatout_agent.ranks.own_numbers import OwnNumbers


def drawn(numbers: OwnNumbers) -> list[float]:
    with numbers.drawn():
        return torch.rand(3).tolist()


def test_the_program_draws_as_if_nothing_had_been_drawn() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    torch.manual_seed(3)
    numbers = OwnNumbers(0)
    for _ in range(3):
        drawn(numbers)
    assert torch.rand(4).tolist() == expected


def test_each_rank_and_each_call_has_its_own_and_a_seeded_program_the_same_again() -> None:
    def all_of(seed: int) -> list[list[float]]:
        torch.manual_seed(seed)
        ranks = [OwnNumbers(rank) for rank in range(3)]
        return [drawn(numbers) for numbers in ranks for _ in range(4)]

    first = all_of(1)
    assert len({tuple(each) for each in first}) == 12
    assert all_of(1) == first
    assert all_of(2)[0] != first[0]


def test_two_integers_are_all_that_is_needed_to_go_on() -> None:
    torch.manual_seed(5)
    numbers = OwnNumbers(1)
    for _ in range(3):
        drawn(numbers)
    again = OwnNumbers(1)
    again.root, again.calls = numbers.root, numbers.calls
    torch.manual_seed(999)
    assert drawn(again) == drawn(numbers)
