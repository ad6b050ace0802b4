"""Fine-tuning-style script on transformers' Trainer: a small BERT from scratch, two classes."""

import argparse
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

MAX_LENGTH = 64


def snippets():
    """Runs of lines from the standard library: do they stand inside a class or not?"""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(stdlib.glob("[a-h]*.py")):
        lines = [s for s in path.read_text(errors="ignore").splitlines() if s.strip()]
        for i in range(0, len(lines) - 6, 12):
            part = lines[i : i + 6]
            found.append((" ".join(part), int(any("self" in line for line in part))))
    random.Random(0).shuffle(found)
    return found[:4000]


class TextDataset(torch.utils.data.Dataset):
    def __init__(self, items, vocab):
        self.items = items
        self.vocab = vocab

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        text, label = self.items[i]
        words = [w for w in re.findall(r"\w+|[^\w\s]", text) if w != "self"]
        ids = [2] + [self.vocab.get(w, 1) for w in words[: MAX_LENGTH - 2]] + [3]
        mask = [1] * len(ids) + [0] * (MAX_LENGTH - len(ids))
        ids = ids + [0] * (MAX_LENGTH - len(ids))
        return {"input_ids": ids, "attention_mask": mask, "labels": label}


class PrintingTrainer(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        step = self.state.global_step + 1
        if step <= 100 or step % 5 == 0:
            print(f"step {step} loss {loss.item():.8f}", flush=True)
        return loss


class SayEpoch(TrainerCallback):
    def on_epoch_end(self, args, state, control, **kwargs):
        print(f"epoch {state.epoch:.0f} done")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    np.random.seed(args.seed)

    items = snippets()
    counts = Counter(w for text, _ in items for w in re.findall(r"\w+|[^\w\s]", text))
    vocab = {w: i + 4 for i, (w, _) in enumerate(counts.most_common(3000))}
    config = BertConfig(
        vocab_size=3004,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=MAX_LENGTH,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    training_args = TrainingArguments(
        output_dir="out/bert",
        max_steps=args.steps,
        per_device_train_batch_size=32,
        learning_rate=3e-4,
        lr_scheduler_type="linear",
        warmup_steps=20,
        weight_decay=0.01,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=args.seed,
    )
    trainer = PrintingTrainer(
        model=model,
        args=training_args,
        train_dataset=TextDataset(items, vocab),
        callbacks=[SayEpoch()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
