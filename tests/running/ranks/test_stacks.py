"""What stacks tell of a rank, on texts as faulthandler and Python write them."""

from __future__ import annotations

import pytest

from flatout.running.ranks import endings, stacks

ENGINE = """\
Thread 0x00007f01 (most recent call first):
  File "/venv/lib/python3.11/site-packages/flatout_agent/ranks/group.py", line 70 in all_reduce
  File "/venv/lib/python3.11/site-packages/flatout_agent/ranks/reducer.py", line 40 in _reduce

Current thread 0x00007f02 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 824 in _engine
  File "/home/user/train.py", line 88 in main
  File "/home/user/train.py", line 99 in <module>
"""
INSIDE = """\
Current thread 0x00007f02 (most recent call first):
  File "/home/user/model.py", line 12 in forward
  File "/venv/lib/python3.11/site-packages/flatout_agent/ranks/regions.py", line 70 in call
  File "/home/user/train.py", line 88 in main
"""
COLLECTIVE = """\
Current thread 0x00007f02 (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_gather
  File "/v/site-packages/flatout_agent/ranks/group.py", line 70 in gather
  File "/home/user/train.py", line 88 in main
"""


BARRIER = """\
Current thread 0x00007f02 (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3 in barrier
  File "/home/user/train.py", line 88 in main
"""


def test_a_program_that_exchanges_by_itself_waits_in_torch() -> None:
    assert stacks.waits_for_others(BARRIER, native=True)
    assert not stacks.waits_for_others(BARRIER)
    assert not stacks.waits_for_others(INSIDE, native=True)
    in_backward = ENGINE.split("\n\n")[1]  # where DistributedDataParallel exchanges
    assert stacks.waits_for_others(in_backward, native=True)
    assert not stacks.waits_for_others(in_backward)


@pytest.mark.parametrize(
    ("text", "waits", "place"),
    [
        (ENGINE, True, "train.py:88"),
        (INSIDE, False, "model.py:12"),
        (COLLECTIVE, True, "train.py:88"),
        ("", False, None),
    ],
)
def test_stacks(text: str, waits: bool, place: str | None) -> None:
    assert stacks.waits_for_others(text) is waits
    assert stacks.place(text) == place


CRASH = """\
Traceback (most recent call last):
  File "C:\\\\work\\\\train.py", line 88, in <module>
    main()
  File "/home/user/data.py", line 5, in load
    raise ValueError("no such label")
  File "/usr/lib/python3.11/json/decoder.py", line 337, in decode
ValueError: no such label
found in: shard 3
"""


def test_the_error_and_its_place() -> None:
    assert stacks.place_of_error(CRASH) == "data.py:5"
    assert endings.error_line(CRASH, 1, None) == "ValueError: no such label"
    assert endings.error_line("", -11, None) == "killed by SIGSEGV"
    assert endings.error_line("", 3, None) == "exit code 3"


def test_who_only_lost_another_rank_is_no_cause() -> None:
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1234"
    assert endings.is_consequence(lost, 1)
    assert endings.is_consequence("", 79)
    assert not endings.is_consequence(CRASH, 1)
    assert not endings.is_consequence("", -9)
