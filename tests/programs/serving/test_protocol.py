"""Requests and answers: what is right comes out as it went in, and all else is refused in words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flatout_programs.serving.protocol import DATATYPES, MOST_JSON, Spec, answer, parse, specs
from flatout_programs.serving.saying import HttpRefusal

X = Spec("x", np.dtype("float32"), (None, 3))
IDS = Spec("ids", np.dtype("int64"), (2,))
MASK = Spec("mask", np.dtype("bool"), (2,))
Y, Z = Spec("y", np.dtype("float32"), (None, 5)), Spec("z", np.dtype("float32"), ())


def row(name: str = "x", **facts: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1, 3], "datatype": "FP32", "data": [1, 2.5, -3], **facts}


def body(*rows: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(rows), **more}).encode()


def refusal(text: bytes, size: int | None = None, inputs: list[Spec] | None = None) -> str:
    with pytest.raises(HttpRefusal) as caught:
        parse(text, size, inputs or [X], [Y, Z])
    assert caught.value.status == 400
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("data", [[1, 2.5, -3], [[1, 2.5, -3]]])
def test_flat_and_nested_data_are_the_same(data: Any) -> None:
    request = parse(body(row(data=data), id="7"), None, [X], [Y])
    assert request.id == "7"
    assert request.wanted == [("y", False)]
    (array,) = request.arrays
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, [[1, 2.5, -3]])


def test_arrays_come_in_the_order_of_the_model() -> None:
    ids = row("ids", shape=[2], datatype="INT64", data=[2**62, -1])
    mask = row("mask", shape=[2], datatype="BOOL", data=[True, False])
    request = parse(body(mask, row(), ids), None, [X, IDS, MASK], [Y])
    assert [array.dtype.name for array in request.arrays] == ["float32", "int64", "bool"]
    assert request.arrays[1].tolist() == [2**62, -1]
    assert request.arrays[2].tolist() == [True, False]


def test_binary_and_json_inputs_in_one_request() -> None:
    text = body(
        row("ids", shape=[2], datatype="INT64", parameters={"binary_data_size": 16}, data=None),
        row(),
        row("mask", shape=[2], datatype="BOOL", parameters={"binary_data_size": 2}, data=None),
    )
    whole = text + np.array([5, -6], "<i8").tobytes() + b"\x00\x01"
    request = parse(whole, len(text), [X, IDS, MASK], [Y])
    assert request.arrays[1].tolist() == [5, -6]
    assert request.arrays[2].tolist() == [False, True]
    assert all(array.flags.aligned and array.flags.writeable for array in request.arrays)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"name": "w"}, "'w'"),
        ({"datatype": "FP64"}, "it is FP32"),
        ({"datatype": None}, "it is FP32"),
        ({"shape": [1, 4], "data": [1, 2, 3, 4]}, "[-1, 3]"),
        ({"shape": [3]}, "[-1, 3]"),
        ({"shape": [0, 3], "data": []}, "positive"),
        ({"shape": [True, 3]}, "positive"),
        ({"shape": [1.0, 3]}, "positive"),
        ({"shape": "13"}, "positive"),
        ({"shape": [10**40, 3]}, "not ("),
        ({"data": [1, 2]}, "(2,)"),
        ({"data": [[1], [2], [3]]}, "(3, 1)"),
        ({"data": [[1, 2], [3]]}, "regular"),
        ({"data": [1, 2, "3"]}, "regular array of FP32"),
        ({"data": [1, 2, None]}, "regular array of FP32"),
        ({"data": [1, 2, {}]}, "regular array of FP32"),
        ({"data": [1, 2, True]}, "regular array of FP32"),
        ({"data": [1, 2, 1e39]}, "out of the range"),
        ({"data": [1, 2, 10**400]}, "out of the range"),
        ({"data": {}}, "neither data"),
        ({"data": None}, "neither data"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"binary_data_size": 12}}, "0 bytes left"),
        ({"parameters": {"binary_data_size": -12}}, "-12"),
        ({"parameters": {"binary_data_size": True}}, "True"),
    ],
)
def test_what_is_wrong_with_an_input_is_said(facts: dict[str, Any], word: str) -> None:
    assert word in refusal(body(row(**facts)))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "inputs"),
        (b'{"inputs": {}}', "inputs"),
        (b'{"inputs": [1]}', "inputs"),
        (b'{"inputs": []}', "['x']"),
        (body(row(), row()), "['x']"),
        (body(row(), id=7), "id"),
        (body(row(), outputs=[{"name": "w"}]), "'w'"),
        (body(row(), outputs=[{"name": ["y"]}]), "['y']"),
        (body(row(), outputs=[{"name": "y"}, {"name": "y"}]), "'y'"),
        (body(row(), outputs="y"), "outputs"),
        (body(row(), parameters=1), "parameters"),
        (b'{"inputs": ' + b"[" * 100_000, "deeply"),
        (body(row()).replace(b"2.5", b"NaN"), "NaN"),
        (body(row()).replace(b"2.5", b"-Infinity"), "Infinity"),
        (body(row()).replace(b"2.5", b"1e999"), "range"),
        (body(row()).replace(b"2.5", b"9" * 5000), ""),
    ],
)
def test_what_is_wrong_with_a_request_is_said(text: bytes, word: str) -> None:
    assert word in refusal(text)


def test_bytes_that_do_not_add_up_are_refused() -> None:
    text = body(row(parameters={"binary_data_size": 12}))
    data = np.ones(3, "<f4").tobytes()
    assert "1 bytes are left" in refusal(text + data + b"!", len(text))
    assert "11 bytes left" in refusal(text + data[:-1], len(text))
    assert "Content-Length" in refusal(text, len(text) + 1)
    mask = body(row("mask", shape=[2], datatype="BOOL", parameters={"binary_data_size": 2}))
    assert "0 or 1" in refusal(mask + b"\x00\x02", len(mask), [MASK])


def test_a_float_of_a_mask_may_be_infinite_where_it_is_binary() -> None:
    text = body(row(parameters={"binary_data_size": 12}))
    data = np.array([0, -np.inf, np.nan], "<f4").tobytes()
    (array,) = parse(text + data, len(text), [X], [Y]).arrays
    np.testing.assert_array_equal(array, [[0, -np.inf, np.nan]])


def test_small_integers_do_not_wrap() -> None:
    small = Spec("s", np.dtype("uint8"), (2,))
    for data in ([0, 256], [-1, 0], [2**70, 0]):
        text = body(row("s", shape=[2], datatype="UINT8", data=data))
        assert "out of the range of UINT8" in refusal(text, None, [small])
    text = body(row("s", shape=[2], datatype="UINT8", data=[0, 1.0]))
    assert "regular array of UINT8" in refusal(text, None, [small])


def test_one_long_string_does_not_widen_all_elements() -> None:
    """numpy alone would make 100,000 strings of 100,000 signs of it: 40 GB."""
    assert "regular" in refusal(body(row(data=["a" * 100_000, *[""] * 100_000])))


def test_large_json_is_refused_before_it_is_read() -> None:
    with pytest.raises(HttpRefusal, match="send the tensors binary") as caught:
        parse(b" " * (MOST_JSON + 1), None, [X], [Y])
    assert caught.value.status == 413


def test_outputs_are_chosen_and_may_be_binary() -> None:
    named = [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}]
    request = parse(body(row(), outputs=named), None, [X], [Y, Z])
    assert request.wanted == [("z", True), ("y", False)]
    every = parse(body(row(), parameters={"binary_data_output": True}), None, [X], [Y, Z])
    assert every.wanted == [("y", True), ("z", True)]
    arrays = {"y": np.ones((1, 5), "float32"), "z": np.array(2.5, "float32")}
    text, headers = answer("m", request, arrays)
    size = int(headers["Inference-Header-Content-Length"])
    message = json.loads(text[:size])
    assert [item["name"] for item in message["outputs"]] == ["z", "y"]
    assert message["outputs"][0]["shape"] == []
    assert message["outputs"][0]["parameters"] == {"binary_data_size": 4}
    assert np.frombuffer(text[size:], "<f4").tolist() == [2.5]


def test_what_json_lacks_is_not_sent_as_json() -> None:
    request = parse(body(row()), None, [X], [Z])
    with pytest.raises(HttpRefusal, match="NaN or infinity") as caught:
        answer("m", request, {"z": np.array(np.nan, "float32")})
    assert caught.value.status == 500


def test_types_that_the_protocol_lacks_are_named() -> None:
    with pytest.raises(ValueError, match=r"x \(bfloat16\)"):
        specs([{"name": "x", "dtype": "bfloat16", "shape": []}])


shapes = arrays.array_shapes(min_dims=1, max_dims=4, max_side=4)
tensors = st.sampled_from(sorted(DATATYPES)).flatmap(
    lambda name: arrays.arrays(np.dtype(name), shapes)
)


@given(tensors, st.booleans(), st.booleans())
def test_every_tensor_goes_there_and_back(
    tensor: np.ndarray[Any, Any], binary: bool, flat: bool
) -> None:
    """Bit for bit where it is binary, NaN too; through JSON where JSON has such numbers."""
    spec = Spec("t", tensor.dtype, tuple(tensor.shape))
    finite = tensor.dtype.kind != "f" or bool(np.isfinite(tensor).all())
    facts: dict[str, Any] = {"shape": list(tensor.shape), "datatype": spec.datatype}
    if binary or not finite:
        facts.update(parameters={"binary_data_size": tensor.nbytes}, data=None)
    else:
        facts["data"] = (tensor.ravel() if flat else tensor).tolist()
    text = body(row("t", **facts), parameters={"binary_data_output": not finite or binary})
    size = len(text) if "parameters" in facts else None
    request = parse(text + (tensor.tobytes() if size else b""), size, [spec], [spec])
    back, headers = answer("m", request, {"t": request.arrays[0]})
    if "Inference-Header-Content-Length" in headers:
        start = int(headers["Inference-Header-Content-Length"])
        assert back[start:] == tensor.tobytes()
    else:
        (found,) = json.loads(back)["outputs"]
        assert found["shape"] == list(tensor.shape)
        np.testing.assert_array_equal(np.array(found["data"], tensor.dtype), tensor.ravel())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
keys = st.sampled_from(
    [
        "name",
        "shape",
        "datatype",
        "data",
        "parameters",
        "binary_data_size",
        "inputs",
        "outputs",
        "x",
    ]
)
near = st.dictionaries(keys, values | st.just("x") | st.just("FP32") | st.just([1, 3]), max_size=6)


@settings(max_examples=200)
@given(
    st.lists(near, max_size=3), st.dictionaries(keys, values, max_size=3), st.binary(max_size=20)
)
def test_whatever_comes_ends_in_a_request_or_a_refusal(
    rows: list[Any], more: dict[str, Any], tail: bytes
) -> None:
    text = json.dumps({**more, "inputs": rows}).encode()
    for whole, size in ((text, None), (text + tail, len(text)), (tail, None), (text, len(tail))):
        try:
            request = parse(whole, size, [X], [Y])
        except HttpRefusal as refused:
            assert refused.status == 400
        else:
            assert request.arrays[0].shape[1] == 3
