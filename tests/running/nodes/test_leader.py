"""Nodes that meet, in one process: who is let in, who is gone, what all are told."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from flatout.nouns.errors import UserError
from flatout.nouns.nodes import (
    NativeProgram,
    NodeLayout,
    NodeRound,
    NodesStill,
    NodeVerdict,
    StandStill,
)
from flatout.nouns.ranks import RankFailure
from flatout.running.nodes import connections
from flatout.running.nodes.connections import NodeLimits
from flatout.running.nodes.leader import NodeLeader
from flatout.running.nodes.link import NodeLink
from ports import free_port
from running.waiting import until

QUICK = NodeLimits(wait_s=20, hello_s=2, beat_s=0.05, silent_s=60, settle_s=0.3, leave_s=0.2)
"""What a test waits out is short; what only a fault may reach is long."""
FAILURE = RankFailure(1, 3, "error", 7, "ValueError: no such label", 41, "train.py:8")


class Cluster:
    """So many nodes on this machine."""

    def __init__(
        self, stack: ExitStack, count: int, limits: NodeLimits = QUICK, restarts: int = 0
    ) -> None:
        self.layout = NodeLayout(count, 0, "127.0.0.1", free_port(), "test", "secret")
        self.limits, self.stack = limits, stack
        self.leader = NodeLeader(self.layout, 77, limits, restarts, lambda failure: True)
        stack.callback(self.leader.close)
        self.links: list[NodeLink] = []

    def link(self, index: int, **changes: str) -> NodeLink:
        layout = replace(self.layout, index=index, name=f"host-{index}", **changes)
        link = NodeLink(layout, self.leader.address, self.limits)
        self.stack.callback(link.close)
        return link

    def join(self, ranks: list[int], native: NativeProgram | None = None) -> list[NodeRound]:
        """All nodes, with so many ranks each. native: what node 0 has seen of the program."""
        self.links = [self.link(index) for index in range(len(ranks))]
        rounds: dict[int, NodeRound] = {}

        def join(index: int) -> None:
            seen = native if index == 0 else None
            rounds[index] = self.links[index].join(ranks[index], "program", seen)

        threads = [threading.Thread(target=join, args=(index,)) for index in range(len(ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [rounds[index] for index in range(len(ranks))]


def verdict(link: NodeLink) -> NodeVerdict:
    """What this node is told, once it is."""
    until(lambda: link.verdict is not None)
    assert link.verdict is not None
    return link.verdict


def failure(link: NodeLink) -> RankFailure:
    found = verdict(link).failure
    assert found is not None
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack: ExitStack) -> Cluster:
    """Two nodes with a rank each, which have met."""
    cluster = Cluster(stack, 2)
    cluster.join([1, 1])
    return cluster


def test_nodes_with_different_numbers_of_ranks_agree(stack: ExitStack) -> None:
    rounds = Cluster(stack, 3).join([2, 1, 4])
    assert {round.firsts for round in rounds} == {(0, 2, 3)}
    assert {(round.total, round.seed) for round in rounds} == {(7, 77)}
    assert {round.names for round in rounds} == {("host-0", "host-1", "host-2")}
    (store,) = {round.store for round in rounds}
    host, _, port = store.rpartition(":")
    assert host == "127.0.0.1"
    with socket.socket() as rank_0:  # kept free for it
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind((host, int(port)))
        rank_0.listen()


def test_all_nodes_hear_what_node_0_has_seen_of_the_program(stack: ExitStack) -> None:
    seen = NativeProgram("accelerate", "it normalises", (64, 32), scale_batch=True)
    rounds = Cluster(stack, 3).join([2, 1, 4], seen)
    assert [(round.native, round.sizes) for round in rounds] == [(seen, (2, 1, 4))] * 3


def test_nodes_whose_ranks_stand_still_know_which_of_them_is_behind(stack: ExitStack) -> None:
    cluster = Cluster(stack, 3)
    cluster.join([1, 2, 1])
    first, second, third = cluster.links
    first.still = StandStill(waits=True, behind=None)
    second.still = StandStill(waits=True, behind=411)
    third.still = StandStill(waits=False, behind=412)
    others = NodesStill(waits=True, least=411, most=412)
    until(lambda: first.others == second.others == third.others == others)
    first.still, second.still = None, StandStill(waits=True, behind=411)
    until(lambda: not second.others.waits)  # its own ranks are none of the others
    assert third.others.waits
    second.still = third.still = None
    until(lambda: third.others == NodesStill())


def test_what_node_0_needs_before_it_joins_is_no_time_of_the_others(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2, replace(QUICK, wait_s=0.5))
    cluster.leader.wait_anew(20.0)
    rounds: list[NodeRound] = []
    other = threading.Thread(target=lambda: rounds.append(cluster.link(1).join(1, "program")))
    other.start()
    time.sleep(1.0)
    cluster.leader.wait_anew(10.0)
    rounds.append(cluster.link(0).join(1, "program"))
    other.join()
    assert [round.total for round in rounds] == [2, 2]


@pytest.mark.parametrize("lost", [False, True])
def test_the_first_cause_is_told_to_all_with_its_node(stack: ExitStack, lost: bool) -> None:
    cluster = Cluster(stack, 3, replace(QUICK, settle_s=60))
    cluster.join([1, 1, 1])
    if lost:  # others notice before the rank's own node has said so
        reset = replace(FAILURE, rank=2, error="Connection reset by peer")
        cluster.links[2].failed(reset, "", lost=True)
        until(lambda: cluster.leader._book._failures)
    cluster.links[1].failed(FAILURE, "Traceback: ValueError", lost=False)
    for link in cluster.links:
        assert verdict(link).failure == replace(FAILURE, node="host-1")
        assert verdict(link).crash == "Traceback: ValueError"


@pytest.mark.parametrize("left", [False, True])
def test_a_rank_that_lost_others_is_named_only_where_there_is_no_cause(
    pair: Cluster, left: bool
) -> None:
    """left: the other has ended in order, while this one still trained."""
    if left:
        pair.links[0].send(ended=0)
        until(lambda: pair.leader._book.nodes[0].ended == 0)
    lost = replace(FAILURE, size=2, error="Connection reset by peer")
    pair.links[1].failed(lost, "", lost=True)
    found = failure(pair.links[1 if left else 0])
    if left:
        assert (found.rank, found.ending, found.node) == (0, "early", "host-0")
    else:
        assert found == replace(lost, node="host-1")


def test_an_orderly_end_waits_for_all(pair: Cluster) -> None:
    pair.links[0].send(ended=0)
    until(lambda: pair.leader._book.nodes[0].ended == 0)
    assert pair.links[0].verdict is None
    pair.links[1].send(ended=0)
    assert verdict(pair.links[0]).failure is None


@pytest.mark.parametrize("how", ["breaks", "silent"])
def test_a_node_that_is_gone_is_named_with_its_last_step(stack: ExitStack, how: str) -> None:
    cluster = Cluster(stack, 3, replace(QUICK, silent_s=3) if how == "silent" else QUICK)
    cluster.join([2, 2, 1])
    gone = cluster.links[1]
    gone.step = 412
    until(lambda: cluster.leader._book.nodes[1].step == 412)
    if how == "breaks":
        gone.close()
    else:
        gone._closed = True  # its thread stops, its connection stays: no power
    found = failure(cluster.links[0])
    assert (found.ending, found.node, found.rank, found.step) == ("gone", "host-1", 2, 412)
    assert ("broke" if how == "breaks" else "it has sent nothing") in found.error


def test_when_node_0_is_gone_each_other_node_says_so(pair: Cluster) -> None:
    pair.leader._closing_at = 0.0  # ends without a word
    found = failure(pair.links[1])
    assert (found.ending, found.node, found.rank) == ("gone", "host-0", 0)


def test_a_signal_reaches_the_other_nodes_and_ends_are_no_failures_then(pair: Cluster) -> None:
    first, second = pair.links
    second.send(signal=15, ends=True)
    until(lambda: first.signals)
    assert (list(first.signals), list(second.signals)) == ([15], [])
    second.close()
    first.send(ended=143)
    assert verdict(first).failure is None


def test_a_refusal_is_told_to_all(pair: Cluster) -> None:
    pair.links[1].send(refused="batches differ", next="seed the loader")
    assert verdict(pair.links[0]).refused == ("batches differ", "seed the loader")


def test_all_start_again_with_a_node_that_was_gone_and_has_come_back(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2, restarts=1)
    before = cluster.join([1, 2])
    first, second = cluster.links
    second.close()  # its engine starts it anew
    assert verdict(first).again
    rounds: dict[int, NodeRound] = {}
    again = threading.Thread(target=lambda: rounds.update({0: first.rejoin()}))
    again.start()
    back = cluster.link(1)
    rounds[1] = back.join(2, "program")
    again.join()
    assert rounds[0].firsts == rounds[1].firsts == (0, 1)
    assert rounds[0].store == rounds[1].store != before[0].store
    back.close()
    assert not verdict(first).again  # once was all


# Who is let in ----------------------------------------------------------------------------------


def test_another_token_is_refused_on_both_sides(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    with pytest.raises(UserError, match="another job: FLATOUT_JOB differs"):
        cluster.link(1, job="guess").join(1, "program")
    # A leader that does not know the token convinces no node.
    with socket.socket() as impostor:
        impostor.bind(("127.0.0.1", 0))
        impostor.listen()

        def pretend() -> None:
            connection, _ = impostor.accept()
            stack.callback(connection.close)
            connection.sendall(b'{"nonce":"00"}\n')
            connection.recv(4096)
            connection.sendall(b'{"welcome":"00"}\n{"start":{}}\n')

        threading.Thread(target=pretend, daemon=True).start()
        layout = replace(cluster.layout, index=1)
        link = NodeLink(layout, impostor.getsockname(), replace(QUICK, wait_s=1.0))
        with pytest.raises(UserError, match="not node 0 of this job"):
            link.join(1, "program")


def test_a_node_that_never_comes_is_named_to_all_that_wait(stack: ExitStack) -> None:
    cluster = Cluster(stack, 3, replace(QUICK, wait_s=1.0))
    said: dict[int, str] = {}

    def join(index: int) -> None:
        try:
            cluster.link(index).join(1, "program")
        except UserError as error:
            said[index] = error.message

    threads = [threading.Thread(target=join, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 2
    assert all("node 2 has not come within 1 s; 2 of 3 nodes" in text for text in said.values())


def test_nobody_at_the_leader_is_told_with_the_address() -> None:
    layout = NodeLayout(2, 1, "127.0.0.1", free_port(), "test", "secret")
    link = NodeLink(layout, ("127.0.0.1", layout.port), replace(QUICK, wait_s=0.5))
    with pytest.raises(UserError, match=f"did not reach node 0 at 127.0.0.1:{layout.port}"):
        link.join(1, "program")


def test_the_same_number_twice_and_another_program_are_refused(stack: ExitStack) -> None:
    cluster = Cluster(stack, 3)
    first = cluster.link(1)

    def wait() -> None:
        with suppress(UserError):  # the others never come
            first.join(1, "program")

    threading.Thread(target=wait).start()
    until(lambda: cluster.leader._book.connected)
    with pytest.raises(UserError, match="two nodes say that they are node 1"):
        cluster.link(1).join(1, "program")
    with pytest.raises(UserError, match="another program than host-1"):
        cluster.link(2).join(1, "other")
    cluster.leader.close()


def test_who_comes_while_the_others_train_waits_for_their_next_start(stack: ExitStack) -> None:
    """As a pod does that was made anew before node 0 has noticed the loss of the old one."""
    cluster = Cluster(stack, 2)
    cluster.join([1, 1])
    cluster.limits = replace(QUICK, wait_s=0.6)
    late = cluster.link(1)
    with pytest.raises(UserError, match=r"within 1 s: the job has started without it"):
        late.join(1, "program")
    for link in cluster.links:  # the old ones end, and with them node 0
        link.send(ended=0)
        link.close()
    cluster.leader.close()
    again: list[NodeRound] = []
    cluster.limits = QUICK
    late = cluster.link(1)
    waiting = threading.Thread(target=lambda: again.append(late.join(1, "program")))
    waiting.start()
    cluster.leader = NodeLeader(cluster.layout, 78, QUICK)
    stack.callback(cluster.leader.close)
    cluster.link(0).join(1, "program")
    waiting.join()
    assert [round.seed for round in again] == [78]


@pytest.mark.parametrize(
    "line",
    [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"x" * (connections.MOST_BYTES + 2000), b'{"proof":1}\n'],
)
def test_strangers_are_dropped_and_disturb_nobody(stack: ExitStack, line: bytes) -> None:
    cluster = Cluster(stack, 2)
    with socket.create_connection(cluster.leader.address, 5) as stranger:
        assert json.loads(stranger.makefile("rb").readline())["nonce"]
        stranger.sendall(line)
        assert _rest(stranger) is not None
    assert len(cluster.join([1, 1])) == 2


def _rest(connection: socket.socket) -> bytes:
    """What is said until it is closed."""
    connection.settimeout(30)
    said = b""
    try:
        while data := connection.recv(4096):
            said += data
    except ConnectionResetError:
        pass
    return said


def test_who_only_connects_takes_no_place(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    silent = [socket.create_connection(cluster.leader.address, 5) for _ in range(40)]
    for connection in silent:
        stack.callback(connection.close)
    until(lambda: len(cluster.leader._guests) <= 12)
    time.sleep(QUICK.hello_s)  # for those in between
    assert len(cluster.join([1, 1])) == 2


def test_a_port_that_is_taken_is_told(stack: ExitStack) -> None:
    cluster = Cluster(stack, 2)
    taken = replace(cluster.layout, leader="nowhere.invalid")
    with pytest.raises(UserError, match=f"port {taken.port} of nowhere.invalid cannot be used"):
        NodeLeader(taken, 1, QUICK)
