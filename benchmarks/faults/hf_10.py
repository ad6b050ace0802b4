import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments


class CharDataset(Dataset):
    def __init__(self, paths, length=64):
        raw = torch.tensor(list(b"".join(p.read_bytes() for p in paths))[:80_000])
        n = len(raw) // length
        self.ids = raw[: n * length].view(n, length)
        upper = (self.ids >= 65) & (self.ids <= 90)
        lower = (self.ids >= 97) & (self.ids <= 122)
        digit = (self.ids >= 48) & (self.ids <= 57)
        self.labels = upper.long() + 2 * lower.long() + 3 * digit.long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def accuracy(p):
    return {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())}


def main():
    lib = Path(os.__file__).parent
    train, val = (
        CharDataset([lib / "argparse.py", lib / "ast.py"]),
        CharDataset([lib / "bisect.py"]),
    )
    config = BertConfig(
        vocab_size=256,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        num_labels=4,
    )
    model = BertForTokenClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=80,
            per_device_train_batch_size=12,
            per_device_eval_batch_size=32,
            learning_rate=5e-4,
            logging_steps=20,
            eval_strategy="steps",
            eval_steps=40,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            warmup_steps=10,
        )
        trainer = Trainer(
            model=model, args=args, train_dataset=train, eval_dataset=val, compute_metrics=accuracy
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
