"""Lines of calls, against the source."""

from __future__ import annotations

import textwrap

import pytest

from flatout.measuring.trace import lines

SOURCE = textwrap.dedent(
    '''\
    import torch

    def step(model, loss_fn, optimizer, x, y):
        """A step."""
        optimizer.zero_grad()
        out = model(
            x,
        )
        loss = loss_fn(out, y) + 0.1 * out.abs().mean()
        loss.backward()
        optimizer.step()
        if loss > 3:
            print("high")
        return loss.item()

    class Net(torch.nn.Module):
        @torch.no_grad()
        def evaluate(self, loader):
            for x in [1, 2]:
                pass
            for x, y in loader:
                self.a(x)
                self.b(x)
            return torch.stack([self.a(x)])

    def outer():
        def inner(x):
            return x @ x.T
        return inner(x=1)

    double = lambda x: x * 2
    '''
)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "train.py"
    found.write_text(SOURCE)
    return found


def resolved(path, function, line, *events, inside=()):
    return lines.resolve(lines.sites(path, function, line), events, inside)


def test_calls_in_their_order(path):
    events = (
        "torch/_compile.py(53): inner",
        "nn.Module: Net_0",
        "nn.Module: CrossEntropyLoss_0",
        "<built-in method abs of Tensor object at 0x7f0e1a3cd9f0>",
        "<built-in method mean of Tensor object at 0x7f0e1a3cd9f0>",
        "aten::mul",
        "aten::add",
        "torch/_tensor.py(600): backward",
        "torch/optim/optimizer.py(500): wrapper",
        "aten::gt",
        "aten::is_nonzero",
        "<built-in method item of Tensor object at 0x7f0e1a3cd9f0>",
    )
    found = resolved(path, "step", 3, *events)
    assert found == [5, 6, 9, 9, 9, 9, 9, 10, 11, 12, 12, 14]


def test_a_wrapper_is_known_by_what_it_calls(path):
    wrapper = "torch/optim/optimizer.py(500): wrapper"
    events = ("Optimizer.zero_grad#AdamW.zero_grad", "nn.Module: Net_0", wrapper)
    assert resolved(path, "step", 3, *events) == [5, 6, 9]
    inside = (frozenset[str](), frozenset[str](), frozenset({"step", "len"}))
    assert resolved(path, "step", 3, *events, inside=inside) == [5, 6, 11]


def test_a_tensor_that_is_shown_or_asked_for_its_truth(path):
    path.write_text(
        "def f(x):\n    x.log()\n    if x:\n        print(x)\n    return f'{x}', float(x)\n"
    )
    events = (
        "aten::is_nonzero",
        "torch/_tensor.py(500): __repr__",
        "torch/_tensor.py(600): __format__",
        "aten::item",
    )
    assert resolved(path, "f", 1, *events) == [3, 4, 5, 5]


def test_a_loop_begins_anew(path):
    events = (
        "torch/utils/data/dataloader.py(720): __next__",
        "nn.Module: Linear_0",
        "nn.Module: Linear_1",
    )
    # Lines of a decorated function count from the decorator.
    assert resolved(path, "evaluate", 17, *events * 3)[1:3] == [22, 23]


def test_the_loop_is_the_one_whose_body_goes_on(path):
    events = ("torch/utils/data/dataloader.py(720): __next__", "train.py(9): b")
    assert resolved(path, "evaluate", 17, *events) == [21, 23]


def test_functions_inside_of_functions_are_their_own(path):
    assert resolved(path, "inner", 27, "aten::numpy_T", "aten::matmul") == [28, 28]
    assert resolved(path, "outer", 26, "train.py(27): inner") == [29]
    assert resolved(path, "<lambda>", 31, "aten::mul") == [31]


def test_a_frame_that_was_there_before_has_a_line_of_its_body(path):
    assert resolved(path, "step", 10, "<built-in method item of Tensor>") == [14]


@pytest.mark.parametrize("event", ["aten::conv2d", "<built-in method cuda of Tensor object>"])
def test_what_the_source_does_not_say_has_no_line(event, path):
    assert resolved(path, "step", 3, event) == [None]


def test_no_such_function_file_or_syntax(path, tmp_path):
    assert lines.sites(path, "missing", 3) == ()
    assert lines.sites(tmp_path / "missing.py", "step", 3) == ()
    (tmp_path / "bad.py").write_text("def step(:")
    assert lines.sites(tmp_path / "bad.py", "step", 1) == ()


def test_text(path):
    assert lines.text(path, 10) == "loss.backward()"
    assert lines.text(path, 1000) == ""
