import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class KeywordSpotter(L.LightningModule):
    def __init__(self, classes=6, c=112, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv1d(20, c, 5, padding=2),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.Conv1d(c, c, 5, padding=2),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(c, 2 * c, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(2 * c, classes),
        )
        self.accuracy = MulticlassAccuracy(classes)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.accuracy(self.net(x), y)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def features(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (n,), generator=g)
    t = torch.linspace(0, 6.28, 80)
    x = torch.sin((1 + y)[:, None, None] * t + torch.arange(20)[:, None] / 5)
    return TensorDataset(x + 0.6 * torch.randn(x.shape, generator=g), y)


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=50,
    )
    trainer.fit(
        KeywordSpotter(),
        DataLoader(features(1600, 0), batch_size=32, shuffle=True),
        DataLoader(features(320, 1), batch_size=160),
    )
    print({k: round(v.item(), 3) for k, v in trainer.callback_metrics.items()})
