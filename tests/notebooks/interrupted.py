# The square in the tool bar is pressed in the middle of the training, which then goes on.

# %%
import signal

import torch
from torch import nn

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.randn(128, 20)
targets = inputs.prod(1, keepdim=True).clamp(-1, 1)

# %%
done = 0
for step in range(100):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    if step == 9:
        signal.raise_signal(signal.SIGINT)
    optimizer.step()
    done = step
    print(step, loss.item())

# %%
print("interrupted after", done)
for step in range(done + 1, done + 8):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
