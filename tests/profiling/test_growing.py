"""Arrays and tables that grow by copies: by the text of their statements."""

from __future__ import annotations

import ast

import pytest

from flatout.profiling import growing

NAMES = {"np": "numpy", "pd": "pandas", "torch": "torch"}


def growing_lines(text: str) -> frozenset[int]:
    return growing.lines(ast.parse(text), NAMES)


@pytest.mark.parametrize(
    "statement",
    [
        "self.rows = np.concatenate([self.rows, new])[-self.capacity :]",
        "self.rows = np.concatenate((self.rows[len(new) :], new))",
        "self.rows = np.append(self.rows, new)",
        "self.rows['x'] = np.vstack([self.rows['x'], new])",
        "self.table = pd.concat([self.table, row], ignore_index=True)",
        "memory.rows = np.insert(memory.rows, 0, new)",
    ],
)
def test_what_stays_from_step_to_step(statement: str) -> None:
    assert growing_lines(f"def add(self, new):\n    {statement}\n") == {2}


def test_a_statement_of_several_lines() -> None:
    text = "def add(self, new):\n    self.rows = np.concatenate(\n        [self.rows, new]\n    )\n"
    assert growing_lines(text) == {2, 3, 4}


@pytest.mark.parametrize(
    "text",
    [
        "for x in loader:\n    rows = np.append(rows, x)\n    train(rows)\n",
        "for x in loader:\n    rows = np.append(rows, x)\n    rows = rows[-100:]\n",
        "for x in loader:\n    if rows is None:\n        rows = x\n    else:\n"
        "        rows = np.append(rows, x)\n",
        "rows = {}\ndef add(x):\n    rows['x'] = np.append(rows['x'], x)\n",
        "rows = start()\ndef add(x):\n    global rows\n    rows = np.append(rows, x)\n",
    ],
)
def test_a_name_that_keeps_its_value_in_the_loop(text: str) -> None:
    assert len(growing_lines(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def pad(x, zeros):\n    x = np.concatenate([x, zeros])\n    return x\n",
        "for x in loader:\n    x = np.concatenate([x, zeros])\n    train(x)\n",
        "for x in loader:\n    y = load(x)\n    y = np.append(y, x)\n",
        "def add(self, new):\n    self.batch = np.concatenate([new, old])\n",
        "def add(self, new):\n    self.rows = np.concatenate([f(self.rows), g(self.rows)])\n",
        "def add(self, new):\n    self.rows = torch.cat([self.rows, new])\n",
        "def add(self, new):\n    self.rows.append(new)\n",
        "def add(self, new):\n    self.rows = append(self.rows, new)\n",
        "def pad(sample, zeros):\n    sample['x'] = np.concatenate([sample['x'], zeros])\n",
        "def pad(data, zeros):\n    data.x = np.concatenate([data.x, zeros])\n",
        "for i in order:\n    x = load(i)\n    x[0] = np.append(x[0], 1)\n",
        "for axis in (0, 1):\n    x = np.roll(x, 1, axis)\n",
    ],
    ids=[
        *("parameter", "of the loop", "made anew", "of others", "computed", "torch", "list", "own"),
        *("padded field", "padded attribute", "padded item", "rolled"),
    ],
)
def test_what_is_made_anew_does_not_grow(text: str) -> None:
    assert growing_lines(text) == frozenset()
