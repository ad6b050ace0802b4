"""Conversion prediction with a DCN-v2 network, Lightning."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAUROC

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

N_FIELDS = 16
CARD = 500
DIM = 16


class CrossLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)

    def forward(self, x0, x):
        return x0 * self.lin(x) + x


class DCN(nn.Module):
    def __init__(self):
        super().__init__()
        d = N_FIELDS * DIM
        self.emb = nn.Embedding(N_FIELDS * CARD, DIM)
        self.register_buffer("offset", torch.arange(N_FIELDS) * CARD)
        self.cross = nn.ModuleList(CrossLayer(d) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        self.head = nn.Linear(d + 128, 1)

    def forward(self, ids):
        x0 = self.emb(ids + self.offset).flatten(1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return self.head(torch.cat([x, self.deep(x0)], dim=1)).squeeze(1)


class ConversionModule(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = DCN()
        self.loss_fn = nn.BCEWithLogitsLoss()
        self.train_auc = BinaryAUROC()
        self.valid_auc = BinaryAUROC()
        self.train_loss = MeanMetric()
        self.seen = []

    def training_step(self, batch, batch_idx):
        ids, y = batch
        logits = self.net(ids)
        loss = self.loss_fn(logits, y)
        self.train_loss.update(loss.detach())
        self.train_auc.update(logits.detach().sigmoid(), y.long())
        self.log("train_auc", self.train_auc.compute())
        if self.global_step % 50 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} train loss {self.train_loss.compute():.4f}")
        self.train_loss.reset()
        self.train_auc.reset()

    def validation_step(self, batch, batch_idx):
        ids, y = batch
        self.valid_auc.update(self.net(ids).sigmoid(), y.long())

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} valid auc {self.valid_auc.compute():.4f}")
        self.valid_auc.reset()

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def make_data(n):
    ids = torch.randint(0, CARD, (n, N_FIELDS))
    w = torch.randn(N_FIELDS, CARD) * 0.4
    logit = w.gather(1, ids.t()).sum(0) - 1.0
    return TensorDataset(ids, torch.bernoulli(torch.sigmoid(logit)))


class BatchIndex(torch.utils.data.Sampler):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n // self.size

    def __iter__(self):
        return iter(torch.randperm(self.n)[: len(self) * self.size].view(-1, self.size).tolist())


def main():
    L.seed_everything(5, verbose=False)
    train, valid = make_data(153_600), make_data(8_192)
    train_loader = DataLoader(train, sampler=BatchIndex(len(train), 512), batch_size=None)
    valid_loader = DataLoader(valid, sampler=BatchIndex(len(valid), 1024), batch_size=None)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(ConversionModule(), train_loader, valid_loader)


if __name__ == "__main__":
    main()
