"""Message passing on batches of small graphs: predicts a spectral property of random graphs."""
import networkx as nx
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class GraphSet(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.items = []
        for i in range(count):
            n = int(rng.integers(30, 60))
            if i % 3 == 0:
                g = nx.erdos_renyi_graph(n, 0.12, seed=int(rng.integers(1 << 30)))
            elif i % 3 == 1:
                g = nx.barabasi_albert_graph(n, 3, seed=int(rng.integers(1 << 30)))
            else:
                g = nx.watts_strogatz_graph(n, 6, 0.2, seed=int(rng.integers(1 << 30)))
            a = nx.to_numpy_array(g)
            target = float(np.linalg.eigvalsh(a)[-1]) / 10
            src, dst = np.nonzero(a)
            deg = a.sum(1, keepdims=True)
            x = np.concatenate([deg / 10, np.log1p(deg), rng.normal(size=(n, 6)) * 0.1], axis=1)
            self.items.append((
                torch.from_numpy(x.astype(np.float32)),
                torch.from_numpy(np.stack([src, dst])),
                target,
            ))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    xs, edges, targets = zip(*items)
    sizes = torch.tensor([len(x) for x in xs])
    starts = sizes.cumsum(0) - sizes
    edge = torch.cat([e + s for e, s in zip(edges, starts.tolist())], dim=1)
    owner = torch.repeat_interleave(torch.arange(len(xs)), sizes)
    return torch.cat(xs), edge, owner, torch.tensor(targets)


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Linear(dim, dim)
        self.update = nn.GRUCell(dim, dim)

    def forward(self, h, edge):
        src, dst = edge
        m = F.relu(self.message(h))
        total = torch.zeros_like(h).index_add_(0, dst, m[src])
        return self.update(total, h)


class Net(nn.Module):
    def __init__(self, d_in, dim=96, layers=3):
        super().__init__()
        self.embed = nn.Linear(d_in, dim)
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x, edge, owner, n_graphs):
        h = F.relu(self.embed(x))
        for layer in self.layers:
            h = layer(h, edge)
        total = torch.zeros(n_graphs, h.size(1)).index_add_(0, owner, h)
        count = torch.bincount(owner, minlength=n_graphs).unsqueeze(1)
        peak = torch.full_like(total, -1e9).scatter_reduce(0, owner.unsqueeze(1).expand_as(h), h, "amax")
        return self.readout(torch.cat([total / count, peak], dim=1)).squeeze(1)


def evaluate(model, loader):
    model.eval()
    err, n = 0.0, 0
    with torch.no_grad():
        for x, edge, owner, y in loader:
            err += (model(x, edge, owner, len(y)) - y).abs().sum().item()
            n += len(y)
    model.train()
    return err / n


torch.manual_seed(9)
train = DataLoader(GraphSet(1600, 1), batch_size=32, shuffle=True, collate_fn=collate, drop_last=True)
valid = DataLoader(GraphSet(160, 2), batch_size=80, collate_fn=collate)
model = Net(8)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=2)
best, best_state = float("inf"), None

for epoch in range(8):
    running = torch.zeros(())
    for step, (x, edge, owner, y) in enumerate(train):
        loss = F.smooth_l1_loss(model(x, edge, owner, len(y)), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        running += loss.detach()
        if step % 25 == 0:
            print(f"epoch {epoch} step {step:3d}  loss {loss.item():.4f}")
    mae = evaluate(model, valid)
    sched.step(mae)
    if mae < best:
        best = mae
        best_state = {k: v.clone() for k, v in model.state_dict().items()}
    print(f"epoch {epoch}  train {running.item() / len(train):.4f}  valid mae {mae:.4f}")

model.load_state_dict(best_state)
print(f"best {evaluate(model, valid):.4f}")
