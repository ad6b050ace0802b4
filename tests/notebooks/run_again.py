# The cell that trains is run again and again, and once with the model made anew.

# %%
import torch
from torch import nn

torch.manual_seed(6)
data = torch.randn(256, 10)

# %%
encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
decoder = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-2)

# %%
for _ in range(10):
    batch = data[torch.randperm(256)[:64]]
    loss = nn.functional.mse_loss(decoder(encoder(batch)), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

# %% again
# %% again
# %%
for module in (*encoder, *decoder):
    if isinstance(module, nn.Linear):
        module.reset_parameters()
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
for _ in range(10):
    batch = data[torch.randperm(256)[:64]]
    loss = nn.functional.mse_loss(decoder(encoder(batch)), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
