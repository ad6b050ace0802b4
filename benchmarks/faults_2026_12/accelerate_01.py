import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Matcher(nn.Module):
    """Do two sets of attributes belong to the same product?"""

    def __init__(self, width=512):
        super().__init__()
        self.side = nn.Sequential(
            nn.Linear(80, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width)
        )
        self.top = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, a, b):
        a, b = self.side(a), self.side(b)
        return self.top(torch.cat([a * b, (a - b).abs()], 1)).squeeze(1)


def offers(n=12_000, seed=0):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(n, 80, generator=g)
    same = torch.rand(n, generator=g) < 0.5
    other = torch.where(same[:, None], a, a.roll(1, 0))
    return TensorDataset(a, other + 0.3 * torch.randn(n, 80, generator=g), same.float())


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Matcher()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(offers(), batch_size=128, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total, seen = torch.zeros(()), 0
    for epoch in range(2):
        for a, b, same in loader:
            with accelerator.accumulate(model):
                loss = F.binary_cross_entropy_with_logits(model(a, b), same)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
            seen += 1
        accelerator.print(f"epoch {epoch} mean loss {total.item() / seen:.4f}")


if __name__ == "__main__":
    main()
