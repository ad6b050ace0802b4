#!/usr/bin/env python
"""Pre-train a small BERT style encoder with masked language modelling."""
import argparse
import logging
import math
import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import get_linear_schedule_with_warmup

logger = logging.getLogger(__name__)

PAD, CLS, SEP, MASK, UNK = range(5)
N_SPECIAL = 5


class SyntheticCorpus:
    """Sentences from a toy grammar: topics with their own words, and word pairs that follow each other."""

    def __init__(self, vocab_size, n_topics=20, seed=0):
        self.rng = random.Random(seed)
        words = list(range(N_SPECIAL, vocab_size))
        self.rng.shuffle(words)
        self.function_words = words[:60]
        content = words[60:]
        size = len(content) // n_topics
        self.topics = [content[i * size:(i + 1) * size] for i in range(n_topics)]
        self.weights = [1.0 / (i + 3) for i in range(size)]
        self.follows = {w: self.rng.choice(self.function_words) for w in words}

    def sentence(self, max_len):
        n = int(min(max(self.rng.lognormvariate(3.6, 0.55), 6), max_len - 2))
        topic = self.rng.choice(self.topics)
        out = []
        while len(out) < n:
            w = self.rng.choices(topic, self.weights)[0]
            out.append(w)
            if self.rng.random() < 0.6:
                out.append(self.follows[w])
        return out[:n]


class MLMDataset(Dataset):
    def __init__(self, n_sentences, vocab_size, max_len):
        corpus = SyntheticCorpus(vocab_size)
        self.sentences = [corpus.sentence(max_len) for _ in range(n_sentences)]
        self.max_len = max_len

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, idx):
        ids = [CLS] + self.sentences[idx] + [SEP]
        attention_mask = [1] * len(ids) + [0] * (self.max_len - len(ids))
        ids = ids + [PAD] * (self.max_len - len(ids))
        return {
            "input_ids": torch.tensor(ids, dtype=torch.long),
            "attention_mask": torch.tensor(attention_mask, dtype=torch.long),
        }


class MLMCollator:
    """80% [MASK], 10% random word, 10% unchanged, as in the paper."""

    def __init__(self, vocab_size, mlm_probability=0.15):
        self.vocab_size = vocab_size
        self.mlm_probability = mlm_probability

    def __call__(self, examples):
        input_ids = torch.stack([e["input_ids"] for e in examples])
        attention_mask = torch.stack([e["attention_mask"] for e in examples])
        labels = input_ids.clone()
        prob = torch.full(labels.shape, self.mlm_probability)
        prob.masked_fill_(input_ids < N_SPECIAL, 0.0)
        masked = torch.bernoulli(prob).bool()
        labels[~masked] = -100
        replace = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & masked
        input_ids[replace] = MASK
        rand = torch.bernoulli(torch.full(labels.shape, 0.5)).bool() & masked & ~replace
        random_words = torch.randint(N_SPECIAL, self.vocab_size, labels.shape)
        input_ids[rand] = random_words[rand]
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class BertLike(nn.Module):
    def __init__(self, vocab_size, d_model=128, nhead=4, num_layers=4, dim_feedforward=512, max_len=128, dropout=0.1):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.emb_norm = nn.LayerNorm(d_model)
        self.emb_drop = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), nn.LayerNorm(d_model))
        self.decoder = nn.Linear(d_model, vocab_size)
        self.decoder.weight = self.tok_emb.weight
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.size(1), device=input_ids.device).unsqueeze(0)
        x = self.tok_emb(input_ids) + self.pos_emb(positions)
        x = self.emb_drop(self.emb_norm(x))
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        return self.decoder(self.head(x))


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch_size", type=int, default=32)
    p.add_argument("--learning_rate", type=float, default=2e-3)
    p.add_argument("--weight_decay", type=float, default=0.01)
    p.add_argument("--warmup_steps", type=int, default=20)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--vocab_size", type=int, default=3000)
    p.add_argument("--max_len", type=int, default=128)
    p.add_argument("--logging_steps", type=int, default=10)
    p.add_argument("--seed", type=int, default=42)
    return p.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    accelerator = Accelerator(cpu=True)
    set_seed(args.seed)

    dataset = MLMDataset(8000, args.vocab_size, args.max_len)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True,
                        collate_fn=MLMCollator(args.vocab_size))
    model = BertLike(args.vocab_size, max_len=args.max_len)
    logger.info("parameters: %.2fM", sum(p.numel() for p in model.parameters()) / 1e6)

    no_decay = [p for n, p in model.named_parameters() if p.ndim < 2]
    decay = [p for n, p in model.named_parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": args.weight_decay},
                                   {"params": no_decay, "weight_decay": 0.0}], lr=args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, max(args.steps, 150))
    criterion = nn.CrossEntropyLoss(ignore_index=-100)

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    completed, total_loss = 0, 0.0
    for epoch in range(math.ceil(args.steps / len(loader))):
        for batch in loader:
            logits = model(batch["input_ids"], batch["attention_mask"])
            loss = criterion(logits.view(-1, args.vocab_size), batch["labels"].view(-1))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

            completed += 1
            total_loss += loss.item()
            if completed % args.logging_steps == 0:
                avg = total_loss / args.logging_steps
                print(f"step {completed} loss {avg:.4f} ppl {math.exp(avg):.1f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
                total_loss = 0.0
            if completed >= args.steps:
                break


if __name__ == "__main__":
    main()
