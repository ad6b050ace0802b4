from accelerate import Accelerator
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class TextCNN(nn.Module):
    def __init__(self, vocab=2000, dim=64, filters=64, classes=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(dim, filters, k, padding=k // 2) for k in (3, 5, 7))
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(3 * filters, classes)

    def forward(self, ids):
        x = self.emb(ids).transpose(1, 2)
        x = torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], 1)
        return self.fc(self.drop(x))


def dataset(n=3200, length=100):
    y = torch.randint(0, 4, (n,))
    x = torch.randint(1, 2000, (n, length))
    marker = torch.rand(n, length) < 0.1
    x[marker] = (y[:, None] * 5 + torch.randint(1, 6, (n, length)))[marker]
    return TensorDataset(x, y)


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = TextCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset(), batch_size=64, shuffle=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(3):
        for step, (ids, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(ids), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step % 25 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
