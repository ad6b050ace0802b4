"""Behaviour cloning of a 7-joint arm from demonstration logs (one file per episode)."""
import argparse
import pathlib
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

JOINTS, HISTORY, CHUNK = 7, 16, 8


def record_demonstrations(root, episodes, length, seed):
    """Scripted expert: PD control towards random way-points, with tactile and wrench readings."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(JOINTS * 2, 50)).astype(np.float32) * 0.3
    for e in range(episodes):
        q, v = rng.uniform(-1, 1, JOINTS), np.zeros(JOINTS)
        goal = rng.uniform(-1, 1, JOINTS)
        rows, acts = [], []
        for t in range(length):
            if t % 60 == 59:
                goal = rng.uniform(-1, 1, JOINTS)
            u = 6.0 * (goal - q) - 1.5 * v
            state = np.concatenate([q, v])
            touch = np.tanh(state @ mix) + 0.02 * rng.normal(size=50)
            rows.append(np.concatenate([state, goal, touch]))
            acts.append(u)
            v = v + 0.02 * u
            q = q + 0.02 * v
        np.savez_compressed(
            root / f"episode_{e:04d}.npz",
            obs=np.asarray(rows, dtype=np.float32),
            act=np.asarray(acts, dtype=np.float32),
        )


class Demonstrations(Dataset):
    def __init__(self, root):
        self.files = sorted(pathlib.Path(root).glob("episode_*.npz"))
        self.index = []
        sums, squares, count = 0.0, 0.0, 0
        for i, f in enumerate(self.files):
            with np.load(f) as log:
                obs = log["obs"]
            self.index += [(i, t) for t in range(HISTORY, len(obs) - CHUNK)]
            sums = sums + obs.sum(0)
            squares = squares + (obs ** 2).sum(0)
            count += len(obs)
        self.mean = sums / count
        self.std = np.sqrt(squares / count - self.mean ** 2) + 1e-4

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        episode, t = self.index[i]
        with np.load(self.files[episode]) as log:
            obs = log["obs"][t - HISTORY : t]
            act = log["act"][t : t + CHUNK]
        return (obs - self.mean) / self.std, act


class ChunkPolicy(nn.Module):
    def __init__(self, d_obs, hidden=192):
        super().__init__()
        self.encoder = nn.GRU(d_obs, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 256), nn.SiLU(), nn.Linear(256, CHUNK * JOINTS))

    def forward(self, obs):
        _, h = self.encoder(obs)
        return self.head(h[-1]).view(-1, CHUNK, JOINTS)


def train(args, root):
    torch.manual_seed(args.seed)
    data = Demonstrations(root)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    print(f"{len(data.files)} episodes, {len(data)} windows, {len(loader)} batches")
    policy = ChunkPolicy(d_obs=data.mean.shape[0])
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=1e-4)
    decay = 0.97 ** torch.arange(CHUNK).view(1, CHUNK, 1)
    step = 0
    while step < args.steps:
        for obs, act in loader:
            loss = ((policy(obs) - act).abs() * decay).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            if step % 50 == 0:
                print(f"step {step:4d}  l1 {loss.item():.4f}")
            step += 1
            if step == args.steps:
                break
    return policy


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        record_demonstrations(root, args.episodes, args.length, args.seed)
        train(args, root)
