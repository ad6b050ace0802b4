"""Where float64 data was made, by the text of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout_agent import wire
from flatout_agent.watch.profile.wide_data import made_line, with_made_lines

PLAIN = """
def run(n):
    inputs = torch.from_numpy(np.stack([a, b]))  # made
    targets = torch.from_numpy(labels)
    train = TensorDataset(inputs[:n], targets[:n])
    loader = DataLoader(train, batch_size=16)
    for epoch in range(3):
        for x, y in tqdm(loader):  # used
            pass
"""
GIVEN = """
class Rows(Dataset):
    def __init__(self, table):
        self.table = torch.tensor(table, dtype=torch.float64)  # made

    def __getitem__(self, index):
        return {"x": self.table[index].clone(), "y": self.labels[index]}

def train(model, loader):
    for batch in loader:  # used
        pass

rows, rest = random_split(Rows(table), [100, 20])
train(net, DataLoader(rows, shuffle=True))
"""
RETURNED = """
class Rows(Dataset):
    def __getitem__(self, index):
        return self.array[index], self.labels[index]  # made

for x, y in DataLoader(Rows()):  # used
    pass
"""
COLLATED = """
train = TensorDataset(torch.from_numpy(a), torch.from_numpy(b))
for x, y in DataLoader(train, collate_fn=gather):  # used
    pass
"""
TWICE = """
train = TensorDataset(torch.from_numpy(a))
if large:
    train = TensorDataset(torch.from_numpy(b))
for x, in DataLoader(train):  # used
    pass
"""
MADE = """
def read():
    return frame.values, frame["y"].values

def loaders(size):
    x, y = read()
    rows = TensorDataset(torch.as_tensor(x), torch.as_tensor(y))  # made
    return DataLoader(rows, batch_size=size), DataLoader(rest)

class Trainer:
    def __init__(self):
        self.loader, self.rest = loaders(64)

    def train(self):
        for step, (x, y) in enumerate(self.loader):  # used
            pass
"""
UNKNOWN = """
x = elsewhere.read()
y = torch.from_numpy(labels)
loss = F.cross_entropy(model(x), y)  # used
"""
PARAMETER = """
y = torch.from_numpy(labels)
def step(x):
    return F.cross_entropy(model(x), y)  # used
"""
TENSOR = """
x, y = torch.as_tensor(array).view(-1, 3), labels.long()  # made
index = torch.randperm(10)

def step():
    picked = index[:5]
    loss = model(x[picked]).sum() + y.sum()  # used
"""
TWO_TENSORS = """
x = torch.from_numpy(a)
y = torch.from_numpy(b)
loss = (model(x) - y).square().mean()  # used
"""
NARROW = """
x = torch.tensor(array, dtype=torch.float32)
y = torch.tensor(array, torch.float32)
z = torch.from_numpy(array).float()
loss = (model(x) - y * z).square().mean()  # used
"""


def program(source: str, folder: Path) -> dict[str, str]:
    """Mark -> file:line, of a program in this folder."""
    path = folder / "wide.py"
    path.write_text(source)
    lines = enumerate(source.splitlines(), 1)
    return {line.rpartition("# ")[2]: f"{path}:{number}" for number, line in lines if "# " in line}


@pytest.mark.parametrize(
    ("source", "what", "part"),
    [
        (PLAIN, "batch", "[0]"),
        (GIVEN, "batch", '["x"]'),
        (RETURNED, "batch", "[0]"),
        (COLLATED, "batch", "[0]"),
        (TWICE, "batch", "[0]"),
        (MADE, "batch", "[0]"),
        (PLAIN, "batch", "[7]"),
        (PLAIN, "batch", ""),
        (TENSOR, "tensor", ""),
        (TWO_TENSORS, "tensor", ""),
        (NARROW, "tensor", ""),
        (UNKNOWN, "tensor", ""),
        (PARAMETER, "tensor", ""),
        (TENSOR, "parameter", ""),
    ],
)
def test_the_line_that_made_the_data(source: str, what: str, part: str, tmp_path: Path) -> None:
    marks = program(source, tmp_path)
    used = marks["used"]
    row = wire.DoubleSeen(what, used if what != "batch" else None, part, 4, 0.01)
    clear = part not in ("[7]", "") if what == "batch" else what == "tensor"
    assert made_line(row, used) == (marks.get("made") if clear else None)


def test_the_rows_of_a_flow_get_their_lines(tmp_path: Path) -> None:
    marks = program(PLAIN, tmp_path)
    rows = (wire.DoubleSeen("batch", None, "[0]"), wire.DoubleSeen("parameter", marks["used"]))
    flow = wire.FlowSeen(steps=2, operators=3, operators_s=0.1, doubles=rows)
    seen = with_made_lines(flow, marks["used"])
    assert seen is not None
    assert [row.made_where for row in seen.doubles] == [marks["made"], None]
    assert with_made_lines(None, marks["used"]) is None
    assert with_made_lines(flow, "elsewhere.py:3") == flow
