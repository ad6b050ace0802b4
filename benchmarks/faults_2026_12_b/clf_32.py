"""Which standard-library module does this line come from? (Lightning)"""
import glob
import os
import re
import tempfile
from collections import Counter

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, random_split

CHUNK = 40


class Snippets(L.LightningDataModule):
    def __init__(self, modules=12, batch_size=24, limit=2000):
        super().__init__()
        self.modules, self.batch_size, self.limit = modules, batch_size, limit

    def setup(self, stage=None):
        paths = glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py"))
        paths = sorted(paths, key=lambda p: (-os.path.getsize(p), p))[:self.modules]
        rows = []
        for label, path in enumerate(paths):
            with open(path, encoding="utf-8", errors="ignore") as f:
                words = re.findall(r"[A-Za-z_]+", f.read())
            chunks = [words[i:i + CHUNK] for i in range(0, len(words) - CHUNK, CHUNK)]
            rows += [(c, label) for c in chunks[:self.limit // self.modules]]
        counts = Counter(w for c, _ in rows for w in c)
        vocab = {w: i + 2 for i, (w, _) in enumerate(counts.most_common(4000))}
        self.n_words, self.n_classes = len(vocab) + 2, self.modules
        data = [(torch.tensor([vocab.get(w, 1) for w in c]), y) for c, y in rows]
        gen = torch.Generator().manual_seed(0)
        n_valid = len(data) // 12
        self.train, self.valid = random_split(data, [len(data) - n_valid, n_valid], generator=gen)

    @staticmethod
    def collate(rows):
        xs, ys = zip(*rows)
        return pad_sequence(xs, batch_first=True), torch.tensor(ys)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, collate_fn=self.collate, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.valid, 2 * self.batch_size, collate_fn=self.collate)


class Classifier(L.LightningModule):
    def __init__(self, n_words, n_classes, dim=96, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.emb = nn.Embedding(n_words, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(CHUNK, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, 0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, n_classes))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=n_classes)

    def forward(self, x):
        h = self.encoder(self.emb(x) + self.pos[:x.size(1)])
        return self.head(h.mean(1))

    def training_step(self, batch, i):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        logits = self(x)
        self.accuracy(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", self.accuracy)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.05)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.trainer.estimated_stepping_batches)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Report(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, i):
        if trainer.global_step % 25 == 0:
            print(f"step {trainer.global_step} loss {outputs['loss'].item():.4f}")

    def on_validation_epoch_end(self, trainer, module):
        if not trainer.sanity_checking:
            print(f"epoch {trainer.current_epoch} val_acc {trainer.callback_metrics['val_acc'].item():.3f}")


def main():
    L.seed_everything(5)
    data = Snippets()
    data.setup()
    model = Classifier(data.n_words, data.n_classes)
    folder = tempfile.mkdtemp(prefix="snippets_")
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, default_root_dir=folder,
        gradient_clip_val=1.0, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, monitor="val_acc", mode="max", save_top_k=1), Report()])
    trainer.fit(model, datamodule=data)


if __name__ == "__main__":
    main()
