"""Whatever Kineto and others have written over the years, and what is no trace."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.nouns.errors import UserError
from flatout.profiling.trace import decoding, stream
from flatout.profiling.trace.analysing import analyse
from flatout.profiling.trace.reading import read
from flatout.profiling.trace.recording import Category
from profiling.trace.making import REAL, Trace, real

FEW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def equal(one, other) -> bool:
    """The same recording, apart from the file's name."""
    assert one.names == other.names
    assert (one.threads, one.shapes, one.dtypes, one.concrete, one.rank, one.event_count) == (
        (other.threads, other.shapes, other.dtypes, other.concrete, other.rank, other.event_count)
    )
    assert one.metadata == other.metadata
    for part in ("events", "memory"):
        for field in dataclasses.fields(getattr(one, part)):
            mine, theirs = (getattr(getattr(each, part), field.name) for each in (one, other))
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_reads_what_json_reads(name):
    (found,) = read([real(name)])
    events = json.loads(gzip.decompress(real(name).read_bytes()))["traceEvents"]
    lasting = [event for event in events if event.get("ph") == "X"]
    assert found.event_count == len(events)
    assert len(found.events) == len(lasting)
    assert not found.truncated
    assert sorted(found.names[number] for number in found.events.name) == sorted(
        event["name"] for event in lasting
    )
    total = sum(float(event["dur"]) for event in lasting)
    assert (found.events.end - found.events.begin).sum() / 1e3 == pytest.approx(total, rel=1e-6)
    base = min(float(event["ts"]) for event in lasting)
    assert found.events.end.max() / 1e3 == pytest.approx(
        max(float(event["ts"]) + float(event["dur"]) for event in lasting) - base, abs=2
    )


@pytest.mark.slow
def test_the_columns_are_those_of_the_file():
    (found,) = read([real("v100_train")])
    events = json.loads(gzip.decompress(real("v100_train").read_bytes()))["traceEvents"]
    kernel = next(event for event in events if event.get("cat") == "kernel")
    rows = found.rows(Category.KERNEL)
    row = rows[found.events.correlation[rows] == kernel["args"]["correlation"]][0]
    assert found.names[found.events.name[row]] == kernel["name"]
    assert found.events.stream[row] == kernel["args"]["stream"]
    assert found.events.external[row] == kernel["args"]["External id"]
    assert found.events.occupancy[row] == kernel["args"]["est. achieved occupancy %"]
    assert found.metadata["deviceProperties"][0]["name"] == "Tesla V100-SXM2-32GB"


@pytest.mark.parametrize("name", ["mi250_toy", "sampled_rank0"])
def test_event_by_event_it_is_the_same(name, monkeypatch):
    (whole,) = read([real(name)])
    monkeypatch.setattr(decoding, "decode", lambda text: None)
    (singly,) = read([real(name)])
    assert equal(whole, singly)


@pytest.mark.slow
@FEW
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["mi250_toy", "a100_alexnet"]))
def test_it_does_not_matter_where_the_stream_is_cut(seed, name):
    (whole,) = read([real(name)])
    sizes = random.Random(seed)
    cuts = stream.Stream._pieces

    def cut(self):
        for piece in cuts(self):
            while piece:
                size = sizes.choice((1, 7, 100, 3000, 50_000))
                yield piece[:size]
                piece = piece[size:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream.Stream, "_pieces", cut)
        (found,) = read([real(name)])
    assert equal(whole, found)


def small() -> Trace:
    trace = Trace(facts={"distributedInfo": {"rank": 3}}).steps(0, 50, 100)
    trace.op("aten::mm", 10, 20, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", ""]})
    return trace.kernel("volta_sgemm_64x64_nt", 12, 30, 11)


def test_packed_plain_and_in_several_members_are_the_same(tmp_path):
    text = small().text().encode()
    plain = small().recording(tmp_path)
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(text))
    half = len(text) // 2
    (tmp_path / "two.json.gz").write_bytes(gzip.compress(text[:half]) + gzip.compress(text[half:]))
    for found in read([tmp_path / "packed.json.gz", tmp_path / "two.json.gz"]):
        assert equal(plain, found) and not found.truncated


def test_a_bare_list_one_element_and_nothing_but_events(tmp_path):
    events = small().events
    (tmp_path / "list.json").write_text(json.dumps(events))
    (tmp_path / "one.json").write_text(json.dumps({"traceEvents": events[:1]}))
    bare, one = read([tmp_path / "list.json", tmp_path / "one.json"])
    assert len(bare.events) == len(events) and not bare.truncated
    assert len(one.events) == 1 and (one.rank, bare.rank) == (1, 0)


def test_shapes_and_rank(tmp_path):
    found = small().recording(tmp_path)
    row = found.rows(Category.OPERATOR)[0]
    assert found.shapes[found.events.shapes[row]] == "2x3, 3x4"
    assert found.dtypes[found.events.dtypes[row]] == "float, "
    assert found.rank == 3


def test_facts_that_stand_after_the_events(tmp_path):
    trace = small()
    facts = {"distributedInfo": {"rank": 5}, "more": [{"a": 1}, {"b": 2}]}
    (tmp_path / "after.json").write_text(json.dumps({"traceEvents": trace.events, **facts}))
    (found,) = read([tmp_path / "after.json"])
    assert found.rank == 5 and found.metadata == facts and not found.truncated


def test_rank_from_the_name(tmp_path):
    trace = small()
    trace.facts.clear()
    assert trace.recording(tmp_path, "job_rank-12.json").rank == 12


def test_a_folder_stands_for_its_traces_in_order_of_rank(tmp_path):
    for rank in (2, 0, 1):
        trace = small()
        trace.facts = {"distributedInfo": {"rank": rank}}
        trace.recording(tmp_path, f"{9 - rank}.json")
    assert [found.rank for found in read([tmp_path])] == [0, 1, 2]


ODD = [
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": "15.5", "dur": 2},
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 15, "dur": 2, "args": None},
    {"ph": "X", "cat": None, "name": "k", "pid": 0, "tid": 7, "ts": 15, "dur": 2, "args": {}},
    {"ph": "X", "name": 5, "pid": None, "tid": [1], "ts": 15, "dur": 2, "args": {"stream": {}}},
    {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": 7, "ts": 15, "dur": 2,
     "args": {"correlation": 2**64 - 1, "bytes": "many", "stream": "0x0"}},
    {"ph": "X", "cat": "cuda_runtime", "name": "hipMemcpyWithStream", "pid": 1, "tid": 1, "ts": 15,
     "dur": 1, "args": {"stream": "0x0", "size": "2560", "correlation": 7}},
    {"ph": "b", "cat": "x", "name": "unknown phase", "ts": 1, "id": "0x1"},
    {"ph": "??", "ts": {}},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_events_that_are_not_as_expected_cost_the_others_nothing(odd, tmp_path):
    trace = small()
    trace.events.insert(2, odd)
    with_odd = trace.recording(tmp_path)
    assert with_odd.event_count == len(trace.events) and not with_odd.truncated
    assert analyse(with_odd).anatomy.parts
    assert {"aten::mm", "volta_sgemm_64x64_nt"} <= set(with_odd.names)
    assert len(with_odd.events) == sum(event.get("ph") == "X" for event in trace.events)


def test_what_hip_copies_is_said_by_the_call(tmp_path):
    trace = small()
    trace.events.append(ODD[5])
    found = trace.recording(tmp_path)
    (row,) = np.flatnonzero(found.events.correlation == 7)
    assert found.events.moved[row] == 2560


def test_nan_and_infinity(tmp_path):
    text = small().text().replace('"dur": 18', '"dur": NaN').replace('"device": 0', '"x": Infinity')
    (tmp_path / "odd.json").write_text(text)
    (found,) = read([tmp_path / "odd.json"])
    assert found.event_count == len(small().events) and not found.truncated


def test_order_in_the_file_does_not_matter(tmp_path):
    trace = small()
    ordered = trace.recording(tmp_path)
    trace.events.reverse()
    turned = trace.recording(tmp_path)
    for name in ("begin", "end", "correlation"):
        np.testing.assert_array_equal(getattr(ordered.events, name), getattr(turned.events, name))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("packed", [True, False])
def test_what_breaks_off_is_read_up_to_there(share, packed, tmp_path):
    data = real("v100_train").read_bytes()
    data = data if packed else gzip.decompress(data)
    (tmp_path / "cut.json").write_bytes(data[: int(len(data) * share)])
    (found,) = read([tmp_path / "cut.json"])
    assert found.truncated
    assert found.event_count == pytest.approx(68692 * share, rel=0.1)


def test_damage_in_the_middle_leaves_what_stands_before(tmp_path):
    text = gzip.decompress(real("mi250_toy").read_bytes())
    half = text.index(b'"ph"', len(text) // 2)
    (tmp_path / "bad.json").write_bytes(text[:half] + b"\x00\xff{{{" + text[half:])
    (found,) = read([tmp_path / "bad.json"])
    assert found.truncated and 50 < len(found.events) < 113


def test_strings_that_look_like_borders_between_events(tmp_path):
    trace = small()
    trace.op('tricky }, {"ph": "X", "name": 1}, {"a": [', 20, 21, note='},{"', more="},{")
    trace.op("nested", 22, 23, list=[{"a": 1}, {"b": 2}, {"ph": "X"}])
    found = trace.recording(tmp_path)
    assert 'tricky }, {"ph": "X", "name": 1}, {"a": [' in found.names
    assert found.event_count == len(trace.events)


def test_text_in_other_alphabets(tmp_path):
    trace = small().op("größe → 尺寸", 20, 21)
    path = tmp_path / "u.json"
    path.write_text(json.dumps({"traceEvents": trace.events}, ensure_ascii=False), encoding="utf-8")
    (found,) = read([path])
    assert "größe → 尺寸" in found.names


NO_TRACES = [
    b"",
    b"   ",
    b"{}",
    b"[]",
    b"[1, 2]",
    b"null",
    b'"traceEvents"',
    b'{"traceEvents": {}}',
    b'{"traceEvents": []}',
    b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}',
    b"\x1f\x8b",
    b"\x1f\x8b\x08\x00garbage",
    gzip.compress(b"hello", mtime=0),
    b"\x89PNG\r\n",
    b"[" * 100_000,
    b'{"traceEvents": [' + b'{"a":' * 100_000,
]


@pytest.mark.parametrize("content", NO_TRACES, ids=range(len(NO_TRACES)))
def test_what_is_no_trace_is_one_clear_error(content, tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read([path])
    assert str(path) in error.value.message and error.value.next_step


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read([tmp_path / "missing.json"])


def test_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match=r"no \.json"):
        read([tmp_path])


@pytest.mark.slow
@FEW
@given(data=st.data())
def test_garbage_is_never_more_than_a_user_error(data, tmp_path):
    text = bytearray(gzip.decompress(real("mi250_toy").read_bytes()))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=20))
    path = tmp_path / "garbage.json"
    path.write_bytes(gzip.compress(bytes(text)) if data.draw(st.booleans()) else bytes(text))
    with contextlib.suppress(UserError):
        (found,) = read([path])
        anatomy = analyse(found).anatomy
        assert sum(part.ms for part in anatomy.parts) == pytest.approx(anatomy.step_ms)


def test_memory_is_bounded_by_the_columns(tmp_path, monkeypatch):
    """No more text is held than one piece and the event that it cuts."""
    buffer_sizes = []
    complete_events = stream.Stream._complete_events

    def spy(self):
        buffer_sizes.append(len(self._buffer))
        return complete_events(self)

    monkeypatch.setattr(stream.Stream, "_complete_events", spy)
    (found,) = read([real("a100_train")])
    assert found.event_count == 109_123
    assert len(buffer_sizes) > 10 and max(buffer_sizes) < 4 * stream.PIECE
