import torch
from torch import nn
import torch.nn.functional as F


class FocalPerLabel(nn.Module):
    """Focal loss with its own weight and gamma for each label."""

    def __init__(self, frequencies):
        super().__init__()
        self.weights = (1 / frequencies).clamp(max=10)
        self.gammas = 1 + frequencies

    def forward(self, logits, target):
        total = logits.new_zeros(())
        for c in range(logits.shape[1]):
            bce = F.binary_cross_entropy_with_logits(
                logits[:, c],
                target[:, c],
                pos_weight=self.weights[c],
                reduction="none",
            )
            p = torch.sigmoid(logits[:, c])
            pt = p * target[:, c] + (1 - p) * (1 - target[:, c])
            total = total + ((1 - pt) ** self.gammas[c] * bce).mean()
        return total / logits.shape[1]


class Tags(nn.Module):
    def __init__(self, words, labels, width=512):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, mode="mean")
        self.net = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.out = nn.Linear(width, labels)

    def forward(self, ids):
        return self.out(self.net(self.bag(ids)))


def documents(n=6000, words=2000, labels=120, length=30):
    topic = torch.randint(0, labels, (n, 3))
    ids = (topic.repeat(1, length // 3) * 16 + torch.randint(0, 16, (n, length))) % words
    y = torch.zeros(n, labels).scatter_(1, topic, 1.0)
    return ids, y


def main():
    torch.manual_seed(0)
    ids, y = documents()
    model = Tags(2000, 120)
    criterion = FocalPerLabel(y.mean(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(130):
        pick = torch.randint(0, len(ids), (256,))
        loss = criterion(model(ids[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 26 == 0:
            print(step, loss.item())


main()
