import torch
import torch.nn as nn
import torch.nn.functional as F


class AutoRec(nn.Module):
    def __init__(self, items, hidden=512):
        super().__init__()
        self.enc = nn.Linear(items, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.dec = nn.Linear(hidden, items)

    def forward(self, x):
        h = torch.tanh(self.enc(F.dropout(x, 0.3, self.training)))
        return self.dec(torch.tanh(self.mid(h)))


def hit_rate(scores, liked, k=20):
    hits = 0
    for s, l in zip(scores.tolist(), liked.tolist()):
        ranking = sorted(range(len(s)), key=s.__getitem__, reverse=True)[:k]
        hits += any(l[i] > 0 for i in ranking)
    return hits / len(scores)


def interactions(users=2000, items=900, groups=12):
    g = torch.Generator().manual_seed(0)
    u, v = torch.randn(users, groups, generator=g), torch.randn(items, groups, generator=g)
    return ((u @ v.T) > 6.0).float()


torch.manual_seed(0)
likes = interactions()
model = AutoRec(likes.shape[1])
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
hits = []
for epoch in range(4):
    for rows in torch.randperm(len(likes)).split(100):
        x = likes[rows]
        out = model(x)
        loss = -(F.log_softmax(out, 1) * x).sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits.append(hit_rate(out.detach(), x))
    print(f"epoch {epoch} loss {loss.item():.3f} hit@20 {sum(hits[-20:]) / 20:.3f}")
