import torch
import torch.nn.functional as F
from torch import nn


def gestures(n=1500, seed=0):
    g = torch.Generator().manual_seed(seed)
    data = []
    for _ in range(n):
        length = int(torch.randint(12, 28, (1,), generator=g))
        label = int(torch.randint(0, 5, (1,), generator=g))
        t = torch.linspace(0, 1, length).unsqueeze(1)
        base = torch.cat([torch.sin((label + 1) * 3 * t), torch.cos((label + 1) * 3 * t), t], 1)
        data.append((base + 0.1 * torch.randn(length, 3, generator=g), label))
    return data


class Gesture(nn.Module):
    def __init__(self, hidden=160, classes=5):
        super().__init__()
        self.gru = nn.GRU(3, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, sequence):
        h, _ = self.gru(sequence.unsqueeze(0))
        return self.out(h[0, -1])


class Learner:
    def __init__(self, data, batch=6):
        self.data, self.batch = data, batch
        self.model = Gesture()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def logits(self, rows):
        return torch.stack([self.model(s) for s, _ in rows])

    def epoch(self):
        order = torch.randperm(len(self.data)).tolist()
        for at in range(0, len(order) - self.batch + 1, self.batch):
            rows = [self.data[i] for i in order[at : at + self.batch]]
            y = torch.tensor([label for _, label in rows])
            loss = F.cross_entropy(self.logits(rows), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    learner = Learner(gestures())
    for epoch in range(1):
        print(epoch, learner.epoch())


if __name__ == "__main__":
    main()
