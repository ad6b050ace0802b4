# Classes that are defined in cells, and a method of one a second time, corrected.

# %%
import torch
from torch import nn

torch.manual_seed(7)


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.out(x * self.gate(x))


# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), Gate(width)

    def forward(self, x):
        return x + self.mix(self.norm(x))


# %%
def gated(self, x):
    return self.out(x * self.gate(x).sigmoid())  # forgotten above


Gate.forward = gated
model = nn.Sequential(nn.Embedding(32, 32), Block(32), Block(32), nn.Linear(32, 32))
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
