"""Lines of calls, against the source."""

from __future__ import annotations

import textwrap

import pytest

from flatout.profiling.trace import lines
from flatout.profiling.trace.sites import sites, text

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
    return lines.resolve(sites(path, function, line), events, inside)


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
    assert sites(path, "missing", 3) == ()
    assert sites(tmp_path / "missing.py", "step", 3) == ()
    (tmp_path / "bad.py").write_text("def step(:")
    assert sites(tmp_path / "bad.py", "step", 1) == ()


def test_text(path):
    assert text(path, 10) == "loss.backward()"
    assert text(path, 1000) == ""


def written(path, body, *events, head="import torch\nimport torch.nn.functional as F\n\n"):
    """Lines of these events in a function f with this body, counted from its first line as 1."""
    path.write_text(head + "def f(self, x, flag, loader):\n" + textwrap.indent(body, "    "))
    line = head.count("\n") + 1
    return [found and found - line for found in resolved(path, "f", line, *events)]


@pytest.mark.parametrize(
    "call", ["torch.tensor([1.0])", "F.relu(x)", "len(x)", "x.view(-1)", "torch.nn.init.zeros_(x)"]
)
def test_a_module_is_no_function_of_a_librarys(call, path):
    body = f"if flag:\n    x = {call}\nx = self.net(x)\nreturn x\n"
    assert written(path, body, "nn.Module: Net_0") == [3]


def test_a_module_is_no_class_that_was_imported(path):
    head = "from torch.utils.data import DataLoader\nfrom net import build\n"
    body = "DataLoader(x)\nbuild(x)\n"
    assert written(path, body, "nn.Module: Net_0", head=head) == [2]


@pytest.mark.parametrize(
    "body",
    [
        "if flag:\n    y = self.a(x)\nelse:\n    y = self.b(x)\n",
        "y = self.a(x) if flag else \\\n    self.b(x)\n",
        "if flag:\n    y = self.a(x)\ny = self.b(x)\n",
    ],
)
def test_no_line_where_branches_cannot_be_told_apart(body, path):
    assert written(path, body, "nn.Module: Linear_0") == [None]


def test_branches_that_are_told_apart_by_something_else_in_them(path):
    body = "if flag:\n    x = self.a(x)\n    x.exp()\nelse:\n    x = self.b(x)\n    x.log()\n"
    assert written(path, body, "nn.Module: Linear_0", "aten::exp") == [2, 3]
    assert written(path, body, "nn.Module: Linear_0", "aten::log") == [5, 6]
    both = ("nn.Module: Linear_0", "aten::exp", "nn.Module: Linear_1", "aten::log")
    assert written(path, body, *both) == [None, 3, None, 6]


def test_a_branch_without_another_is_taken_when_all_is_called(path):
    body = "x = self.a(x)\nif flag:\n    x = self.b(x)\nx = self.c(x)\n"
    events = [f"nn.Module: Linear_{number}" for number in range(3)]
    assert written(path, body, *events) == [1, 3, 4]
    assert written(path, body, *events[:2])[1] != 3


NEXT = "torch/utils/data/dataloader.py(720): __next__"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("total = [y for y in self.names]\nfor x in loader:\n    self.a(x)\n", 2),
        ("for n in range(9):\n    for x in self.batches:\n        self.a(x)\n", 2),
        ("for n in range(9):\n    x = next(self.batches)\n    self.a(x)\n", 2),
        ("for n, x in enumerate(loader):\n    [self.a(y) for y in x]\n", 1),
        ("while True:\n    yield from loader\n", 2),
        ("return [self.a(y) for y in loader]\n", 1),
    ],
)
def test_who_asks_the_loader(body, line, path):
    assert written(path, body, NEXT, "nn.Module: Linear_0")[0] == line


def test_a_function_of_a_module_of_torchs_is_known_without_its_namespace(tmp_path):
    file = tmp_path / "spectrum.py"
    file.write_text(
        "def spectrum(w):\n"
        "    gram = w @ w.t()\n"
        "    values = torch.linalg.eigvalsh(gram)\n"
        "    return torch.fft.rfft(values)\n"
    )
    events = [
        "<built-in method t of Tensor object at 0x1>",
        "aten::matmul",
        "<built-in function linalg_eigvalsh>",
        "<built-in function fft_rfft>",
    ]
    assert lines.resolve(sites(file, "spectrum", 1), events) == [2, 2, 3, 4]
    assert lines.resolve(sites(file, "spectrum", 1), ["aten::_linalg_eigh"]) == [None]
