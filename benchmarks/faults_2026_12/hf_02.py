import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

MODULES = ["argparse", "typing", "inspect", "tarfile", "datetime", "decimal"]


class Snippets(Dataset):
    """Which module is this snippet from?"""

    def __init__(self, train, length=64):
        folder = Path(os.__file__).parent
        ids, labels = [], []
        for k, name in enumerate(MODULES):
            path = folder / f"{name}.py"
            raw = path.read_bytes() if path.exists() else b" "
            raw = raw[: len(raw) // length * length]
            for j, at in enumerate(range(0, len(raw), length)):
                if (j % 10 != 0) == train:
                    ids.append(list(raw[at : at + length]))
                    labels.append(k)
        self.ids = torch.tensor(ids)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=256,
        dim=128,
        hidden_dim=384,
        n_layers=3,
        n_heads=4,
        max_position_embeddings=64,
        num_labels=len(MODULES),
    )
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=150,
            per_device_train_batch_size=12,
            per_device_eval_batch_size=64,
            learning_rate=1e-3,
            warmup_steps=15,
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=DistilBertForSequenceClassification(config),
            args=args,
            train_dataset=Snippets(True),
            eval_dataset=torch.utils.data.Subset(Snippets(False), range(60)),
            compute_metrics=accuracy,
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
