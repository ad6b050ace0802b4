import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.metrics import silhouette_score
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitDigits(L.LightningModule):
    def __init__(self, lr=1e-3, width=40):
        super().__init__()
        self.lr = lr
        self.backbone = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 16, 64),
        )
        self.head = nn.Linear(64, 10)
        self.separation = []
        self.bank = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self.backbone(x)
        logits = self.head(F.relu(z))
        loss = F.cross_entropy(logits, y)
        self.track(z, y)
        if batch_idx % 10 == 0:
            print("batch", batch_idx, "loss", loss.item())
        return loss

    def track(self, z, y):
        self.bank = [*self.bank, (z.detach(), y)][-8:]
        points = torch.cat([p for p, _ in self.bank]).numpy()
        labels = torch.cat([t for _, t in self.bank]).numpy()
        self.separation.append(silhouette_score(points, labels))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    L.seed_everything(0)
    d = load_digits()
    ds = TensorDataset(
        torch.tensor(d.images, dtype=torch.float32)[:, None] / 16, torch.tensor(d.target)
    )
    loader = DataLoader(ds, batch_size=256, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=10,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitDigits(), loader)


if __name__ == "__main__":
    main()
