"""Sentence classification with a small BERT and the HF Trainer."""
import os
import random

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, Trainer,
                          TrainingArguments, set_seed)

TOPICS = {
    0: "match goal team player league coach season score win defence".split(),
    1: "market stock bank profit share trade rate price fund budget".split(),
    2: "cell gene protein virus trial dose patient vaccine sample lab".split(),
    3: "film actor scene director music album song stage critic novel".split(),
}
COMMON = [f"w{i}" for i in range(600)]
VOCAB = {w: i + 3 for i, w in enumerate(sum(TOPICS.values(), []) + COMMON)}
CLS, SEP = 1, 2


class Headlines(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            label = rng.randrange(4)
            length = rng.randint(40, 46)
            words = [rng.choice(TOPICS[label]) if rng.random() < 0.12 else rng.choice(COMMON)
                     for _ in range(length)]
            ids = [CLS] + [VOCAB[w] for w in words] + [SEP]
            self.rows.append((ids, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": ids, "labels": label}


def pad_batch(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        n = len(r["input_ids"])
        ids[i, :n] = torch.tensor(r["input_ids"])
        mask[i, :n] = 1
    return {"input_ids": ids, "attention_mask": mask,
            "labels": torch.tensor([r["labels"] for r in rows])}


def accuracy(pred):
    return {"accuracy": float(np.mean(pred.predictions.argmax(-1) == pred.label_ids))}


def build_model():
    config = BertConfig(
        vocab_size=len(VOCAB) + 3, hidden_size=128, num_hidden_layers=4,
        num_attention_heads=4, intermediate_size=512, max_position_embeddings=64,
        num_labels=4, hidden_dropout_prob=0.1)
    return BertForSequenceClassification(config)


def main():
    set_seed(21)
    train, valid = Headlines(3200, 1), Headlines(160, 2)
    args = TrainingArguments(
        output_dir=os.path.join("/tmp", f"clf_{os.getpid()}"),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        max_steps=220,
        learning_rate=3e-4,
        lr_scheduler_type="linear",
        warmup_steps=20,
        weight_decay=0.01,
        max_grad_norm=1.0,
        gradient_checkpointing=True,
        logging_steps=20,
        eval_strategy="steps",
        eval_steps=110,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=21,
    )
    trainer = Trainer(
        model=build_model(),
        args=args,
        train_dataset=train,
        eval_dataset=valid,
        data_collator=pad_batch,
        compute_metrics=accuracy,
    )
    result = trainer.train()
    print("train loss", round(result.training_loss, 4))
    print("final", trainer.evaluate()["eval_accuracy"])


if __name__ == "__main__":
    main()
