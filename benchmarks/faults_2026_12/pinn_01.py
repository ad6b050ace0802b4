# %% [markdown]
# # Poisson equation with a manufactured solution
# $-u'' = f$ on $[0,1]$, $u(0)=u(1)=0$

# %%
import sympy as sp
import torch
from torch import nn

# %%
X = sp.Symbol("x")
U = sp.sin(sp.pi * X) * sp.exp(-X) + X * (1 - X) * sp.cos(3 * X)
F = sp.simplify(-sp.diff(U, X, 2))


# %%
def source(x):
    values = [float(F.subs(X, v).evalf(8)) for v in x.flatten().tolist()]
    return torch.tensor(values).view_as(x)


# %%
class Field(nn.Module):
    def __init__(self, width=256, depth=4):
        super().__init__()
        sizes = [1] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        h = x
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return x * (1 - x) * self.last(h)


# %%
torch.manual_seed(0)
u = Field()
optimizer = torch.optim.Adam(u.parameters(), lr=1e-3)
history = []
for it in range(70):
    x = torch.rand(8, 1).repeat_interleave(40, 0)
    x = (x + 0.01 * torch.randn_like(x)).clamp(0, 1)
    anchor = x[::40]
    f = source(anchor).repeat_interleave(40, 0)
    x.requires_grad_(True)
    value = u(x)
    du = torch.autograd.grad(value.sum(), x, create_graph=True)[0]
    ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
    loss = ((-ddu - f) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())

# %%
print("first", history[0], "last", history[-1])
