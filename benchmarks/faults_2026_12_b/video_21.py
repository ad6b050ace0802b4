"""Action recognition on moving-blob clips of varying length."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIZE = 24
MAX_FRAMES = 48
ACTIONS = ("left", "right", "up", "down", "grow", "circle")


class MovingBlobs(Dataset):
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.clips = [self.draw(i % len(ACTIONS)) for i in range(n)]

    def draw(self, action):
        t = int(np.clip(self.rng.gamma(3.0, 4.0), 6, MAX_FRAMES))
        u = np.linspace(0, 1, t)
        cx = np.full(t, 0.5)
        cy = np.full(t, 0.5)
        r = np.full(t, 0.12)
        if action == 0:
            cx = 0.8 - 0.6 * u
        elif action == 1:
            cx = 0.2 + 0.6 * u
        elif action == 2:
            cy = 0.8 - 0.6 * u
        elif action == 3:
            cy = 0.2 + 0.6 * u
        elif action == 4:
            r = 0.05 + 0.2 * u
        else:
            cx, cy = 0.5 + 0.25 * np.cos(6 * u), 0.5 + 0.25 * np.sin(6 * u)
        ys, xs = np.mgrid[0:1:SIZE * 1j, 0:1:SIZE * 1j]
        d = (xs[None] - cx[:, None, None]) ** 2 + (ys[None] - cy[:, None, None]) ** 2
        clip = np.exp(-d / (r[:, None, None] ** 2)) + self.rng.normal(0, 0.2, (t, SIZE, SIZE))
        return torch.from_numpy(clip.astype(np.float32)[:, None]), action

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        return self.clips[i]


def collate(samples):
    lengths = torch.tensor([len(c) for c, _ in samples])
    clips = torch.zeros(len(samples), MAX_FRAMES, 1, SIZE, SIZE)
    for row, (clip, _) in zip(clips, samples):
        row[: len(clip)] = clip
    return clips, lengths, torch.tensor([a for _, a in samples])


class FrameEncoder(nn.Sequential):
    def __init__(self, dim):
        super().__init__(
            nn.Conv2d(1, 16, 3, 1, 1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Conv2d(32, dim, 3, 2, 1), nn.GroupNorm(4, dim), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )


class ClipClassifier(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.frames = FrameEncoder(dim)
        self.temporal = nn.Conv1d(dim, dim, 3, padding=1)
        self.score = nn.Linear(dim, 1)
        self.head = nn.Linear(dim, len(ACTIONS))

    def forward(self, clips, lengths):
        b, t = clips.shape[:2]
        valid = torch.arange(t)[None] < lengths[:, None]
        h = self.frames(clips.flatten(0, 1)).view(b, t, -1) * valid[..., None]
        h = F.relu(self.temporal(h.transpose(1, 2))).transpose(1, 2)
        w = self.score(h).squeeze(-1).masked_fill(~valid, float("-inf")).softmax(1)
        return self.head((h * w[..., None]).sum(1))


def train_one(model, loader, opt):
    total, hits, seen = 0.0, 0, 0
    for clips, lengths, y in loader:
        logits = model(clips, lengths)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(y)
        hits += int((logits.argmax(1) == y).sum())
        seen += len(y)
    return total / seen, hits / seen


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits = sum(int((model(c, n).argmax(1) == y).sum()) for c, n, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(2)
    train = DataLoader(MovingBlobs(240, 0), batch_size=8, shuffle=True, collate_fn=collate)
    val = DataLoader(MovingBlobs(48, 1), batch_size=16, collate_fn=collate)
    model = ClipClassifier()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(7):
        loss, acc = train_one(model, train, opt)
        print(f"epoch {epoch}: loss {loss:.3f} train {acc:.2f} val {validate(model, val):.2f}")


if __name__ == "__main__":
    main()
