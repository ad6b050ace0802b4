"""What each device needs: exact where there is nothing to estimate, less with each strategy."""

from __future__ import annotations

import dataclasses

import pytest

from flatout.measuring import parallelism
from flatout.measuring.parallelism import Devices, Strategy
from flatout_agent.wire import MemoryAtRows, MemorySeen

MIB = 2**20


def point(rows: int) -> MemoryAtRows:
    """8 MiB of activations, and 2 for each sample, of which the blocks keep 1.5."""
    activations = (8 + 2 * rows) * MIB
    return MemoryAtRows(
        rows,
        peak_bytes=activations + MIB,
        activations_bytes=activations,
        gradients_then_bytes=MIB,
        kept_bytes=rows * MIB // 4,
        update_bytes=100 * MIB,
        saved_bytes=rows * 3 * MIB // 2,
        outputs_bytes=rows * MIB // 8,
        again_bytes=(4 + rows) * MIB,
    )


SEEN = MemorySeen(
    model="Net",
    optimizer="AdamW",
    device="cpu",
    parameters_bytes=100 * MIB,
    buffers_bytes=MIB,
    gradients_bytes=100 * MIB,
    state_bytes=200 * MIB,
    blocks=8,
    blocks_bytes=80 * MIB,
    largest_block_bytes=10 * MIB,
    points=(point(16), point(32)),
    batch_rows=64,
)


def need(strategy: Strategy, per_node: int = 8, nodes: int = 1, memory: int = 2**40):
    return parallelism.need(SEEN, Devices(per_node, memory, nodes), strategy)


def test_a_line_through_two_points_and_through_one() -> None:
    of = lambda found: found.activations_bytes  # noqa: E731
    assert parallelism.line(SEEN.points, of) == (8 * MIB, 2 * MIB)
    assert parallelism.at(SEEN, 64, of) == (8 + 128) * MIB
    one = dataclasses.replace(SEEN, points=(point(16),))
    assert parallelism.at(one, 32, of) == 2 * (8 + 32) * MIB
    falling = dataclasses.replace(SEEN, points=(point(32), dataclasses.replace(point(16), rows=64)))
    assert parallelism.at(falling, 1000, of) == (8 + 64) * MIB


def test_one_device_needs_what_was_measured() -> None:
    found = need(Strategy.DP, per_node=1)
    assert found.rows == 64
    assert found.pass_peak == (100 + 1 + 200 + 8 + 128 + 1) * MIB
    assert found.update_peak == (100 + 1 + 200 + 100 + 16 + 100) * MIB
    assert found.peak == found.update_peak


def test_rows_are_divided_and_buckets_stay() -> None:
    found = need(Strategy.DP)
    assert found.rows == 8
    assert found.pass_peak == (100 + 1 + 200 + 100 + 8 + 16) * MIB


def test_recomputation_keeps_outputs_and_one_block() -> None:
    found = need(Strategy.DP_RECOMPUTE, per_node=1)
    assert found.activations == max(8 + 128 - 96 + 8, 4 + 64) * MIB


def test_shards_hold_their_part_and_what_is_gathered() -> None:
    found = need(Strategy.FSDP)
    assert found.state == 25 * MIB
    assert found.gradients == 12.5 * MIB
    assert found.parameters == (12.5 + 1 + 20 + 20) * MIB
    within_nodes = need(Strategy.HSDP, per_node=4, nodes=2)
    assert within_nodes.state == 50 * MIB
    assert within_nodes.rows == found.rows


def test_blocks_are_divided_within_a_node_or_in_stages() -> None:
    divided, staged = need(Strategy.TP), need(Strategy.PP)
    assert divided.state == staged.state == 2 * 30 * MIB
    assert divided.rows == staged.rows == 64
    assert staged.activations == (8 + 128) * MIB / 8


def test_what_comes_into_question() -> None:
    def names(found: MemorySeen, devices: Devices) -> list[str]:
        return [strategy.value for strategy in parallelism.strategies(found, devices)]

    assert names(SEEN, Devices(1, MIB)) == ["dp", "dp+recompute"]
    assert names(dataclasses.replace(SEEN, blocks=0), Devices(8, MIB)) == ["dp", "fsdp"]
    in_one_node = ["dp", "dp+recompute", "fsdp", "fsdp+recompute", "tp", "pp"]
    assert names(SEEN, Devices(8, MIB)) == in_one_node
    two = [*in_one_node[:2], "hsdp", "hsdp+recompute", *in_one_node[2:]]
    assert names(SEEN, Devices(4, MIB, 2)) == two


@pytest.mark.parametrize(
    ("memory_mib", "chosen"), [(2000, "dp"), (400, "fsdp"), (140, "fsdp+recompute"), (20, None)]
)
def test_the_first_that_fits_with_its_margin(memory_mib: int, chosen: str | None) -> None:
    devices = Devices(8, memory_mib * MIB)
    needs = [
        parallelism.need(SEEN, devices, strategy)
        for strategy in parallelism.strategies(SEEN, devices)
    ]
    found = parallelism.choice(needs)
    assert (found.strategy.value if found else None) == chosen
    for item in needs:
        assert item.fits == (item.peak + item.margin <= memory_mib * MIB)


def test_the_margin_is_a_tenth_and_the_context() -> None:
    found = need(Strategy.DP, memory=80 * 2**30)
    assert found.margin == round(0.1 * found.peak + parallelism.CONTEXT_BYTES)
