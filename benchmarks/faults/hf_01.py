import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Bytes(Dataset):
    """Labels: letter, digit, space, bracket, other."""

    def __init__(self, length=32, limit=60_000):
        raw = Path(os.__file__).read_bytes()[:limit]
        self.rows = [list(raw[i : i + length]) for i in range(0, len(raw) - length, length)]

    @staticmethod
    def label(b):
        c = chr(b)
        if c.isalpha():
            return 0
        if c.isdigit():
            return 1
        if c.isspace():
            return 2
        return 3 if c in "()[]{}" else 4

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = self.rows[i]
        return {
            "input_ids": torch.tensor(ids),
            "labels": torch.tensor([self.label(b) for b in ids]),
        }


class Spectrum(TrainerCallback):
    """Largest singular values and condition of the attention outputs."""

    def __init__(self):
        self.history = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        row = {}
        for name, p in model.named_parameters():
            if name.endswith("attention.output.dense.weight"):
                values = torch.linalg.svdvals(p.detach())
                row[name] = (values[0].item(), (values[0] / values[-1]).item())
        self.history.append(row)


def main():
    config = BertConfig(
        vocab_size=256,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=64,
        num_labels=5,
    )
    model = BertForTokenClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=65,
            per_device_train_batch_size=4,
            learning_rate=5e-4,
            logging_steps=20,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            optim="sgd",
        )
        Trainer(model=model, args=args, train_dataset=Bytes(), callbacks=[Spectrum()]).train()


if __name__ == "__main__":
    main()
