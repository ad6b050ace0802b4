# A transformer whose classes are defined in cells, and one of them a second time, corrected.

# %%
import math

import torch
from torch import nn

torch.manual_seed(7)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.project, self.out = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.project(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)).masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.norm = Attention(width, 4), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


# %%
def attend(self, x):
    b, t, c = x.shape
    q, k, v = self.project(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # forgotten above
    scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
    return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


Attention.forward = attend
model = nn.Sequential(
    nn.Embedding(32, 32), Block(32), Block(32), nn.LayerNorm(32), nn.Linear(32, 32)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

# %%
starts = torch.arange(64)[:, None]
tokens = (starts + torch.arange(17) * (1 + starts % 3)) % 32
for step in range(12):
    batch = tokens[torch.randperm(64)[:16]]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item())
