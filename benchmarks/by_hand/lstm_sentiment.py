"""Updated sentiment analysis: packed bidirectional LSTM, after notebook 2 of bentrevett/pytorch-sentiment-analysis.

The IMDb reviews are made up; a small BucketIterator takes the place of torchtext's.
"""
import argparse
import random
import re
import time
from collections import Counter

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

SEED = 1234
MAX_VOCAB_SIZE = 25_000
BATCH_SIZE = 64


def make_imdb(n, seed):
    """Reviews as strings, labels 'pos' / 'neg'."""
    rng = np.random.default_rng(99)
    consonants, vowels = list("bcdfghjklmnprstvwxz"), list("aeiouy")
    words = set()
    while len(words) < 30_000:
        words.add("".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.integers(1, 5))))
    words = np.array(sorted(words))
    rng.shuffle(words)
    freq = 1.0 / np.arange(3, 3 + len(words)) ** 0.95
    freq /= freq.sum()
    flavour = {'pos': words[200:350], 'neg': words[350:500]}
    rng = np.random.default_rng(seed)
    data = []
    for _ in range(n):
        label = 'pos' if rng.random() < 0.5 else 'neg'
        length = int(np.clip(rng.lognormal(np.log(55), 0.6), 8, 400))
        text = rng.choice(words, size=length, p=freq)
        hit = rng.random(length) < 0.08
        text[hit] = rng.choice(flavour[label], size=int(hit.sum()))
        text = [w + ("," if r < 0.05 else "." if r < 0.12 else "") for w, r in zip(text, rng.random(length))]
        data.append((" ".join(text), label))
    return data


def tokenizer(text):
    """Stands in for spacy."""
    return re.findall(r"\w+|[^\w\s]", text)


class Field:
    """The part of torchtext.legacy.data.Field(include_lengths=True) that is needed."""
    unk_token, pad_token = '<unk>', '<pad>'

    def build_vocab(self, examples, max_size):
        counter = Counter(t for tokens, _ in examples for t in tokens)
        self.itos = [self.unk_token, self.pad_token] + [t for t, _ in counter.most_common(max_size)]
        self.stoi = {t: i for i, t in enumerate(self.itos)}

    def process(self, batch):
        lengths = [len(x) for x in batch]
        longest = max(lengths)
        padded = [x + [self.pad_token] * (longest - len(x)) for x in batch]
        ids = [[self.stoi.get(t, 0) for t in x] for x in padded]
        return torch.tensor(ids).t().contiguous(), torch.tensor(lengths)  # [sent len, batch size]


class BucketIterator:
    """Batches of reviews of similar length, sorted within the batch, batches in random order."""

    def __init__(self, examples, batch_size, text, train=True):
        self.examples, self.batch_size, self.text, self.train = examples, batch_size, text, train

    def batches(self):
        examples = list(self.examples)
        if self.train:
            random.shuffle(examples)
        for p in range(0, len(examples), self.batch_size * 100):
            pool = sorted(examples[p:p + self.batch_size * 100], key=lambda ex: len(ex[0]), reverse=True)
            chunks = [pool[i:i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
            if self.train:
                random.shuffle(chunks)
            yield from chunks

    def __iter__(self):
        for batch in self.batches():
            text, lengths = self.text.process([ex[0] for ex in batch])
            label = torch.tensor([1.0 if ex[1] == 'pos' else 0.0 for ex in batch])
            yield (text, lengths), label


class RNN(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_dim, output_dim, n_layers, bidirectional, dropout, pad_idx):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=pad_idx)
        self.rnn = nn.LSTM(embedding_dim, hidden_dim, num_layers=n_layers, bidirectional=bidirectional,
                           dropout=dropout)
        self.fc = nn.Linear(hidden_dim * 2, output_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, text, text_lengths):
        # text = [sent len, batch size]
        embedded = self.dropout(self.embedding(text))

        # pack sequence; lengths need to be on CPU!
        packed_embedded = nn.utils.rnn.pack_padded_sequence(embedded, text_lengths.to('cpu'))
        packed_output, (hidden, cell) = self.rnn(packed_embedded)

        # unpack sequence
        output, output_lengths = nn.utils.rnn.pad_packed_sequence(packed_output)

        # concat the final forward (hidden[-2,:,:]) and backward (hidden[-1,:,:]) hidden layers
        hidden = self.dropout(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1))
        return self.fc(hidden)


def binary_accuracy(preds, y):
    rounded_preds = torch.round(torch.sigmoid(preds))
    correct = (rounded_preds == y).float()
    return correct.sum() / len(correct)


def evaluate(model, iterator, criterion):
    epoch_loss = epoch_acc = 0
    model.eval()
    n = 0
    with torch.no_grad():
        for (text, text_lengths), label in iterator:
            predictions = model(text, text_lengths).squeeze(1)
            epoch_loss += criterion(predictions, label).item()
            epoch_acc += binary_accuracy(predictions, label).item()
            n += 1
    return epoch_loss / n, epoch_acc / n


def get_data():
    train_data = [(tokenizer(text), label) for text, label in make_imdb(6400, seed=1)]
    valid_data = [(tokenizer(text), label) for text, label in make_imdb(320, seed=2)]
    TEXT = Field()
    TEXT.build_vocab(train_data, max_size=MAX_VOCAB_SIZE)
    return train_data, valid_data, TEXT


def get_model(TEXT):
    pad_idx, unk_idx = TEXT.stoi[TEXT.pad_token], TEXT.stoi[TEXT.unk_token]
    model = RNN(vocab_size=len(TEXT.itos), embedding_dim=100, hidden_dim=128, output_dim=1, n_layers=2,
                bidirectional=True, dropout=0.5, pad_idx=pad_idx)
    model.embedding.weight.data[unk_idx] = torch.zeros(100)
    model.embedding.weight.data[pad_idx] = torch.zeros(100)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    random.seed(SEED)
    torch.manual_seed(SEED)

    train_data, valid_data, TEXT = get_data()
    train_iterator = BucketIterator(train_data, BATCH_SIZE, TEXT)
    valid_iterator = BucketIterator(valid_data, BATCH_SIZE, TEXT, train=False)
    model = get_model(TEXT)
    print(f'The model has {sum(p.numel() for p in model.parameters() if p.requires_grad):,} trainable parameters')

    optimizer = optim.Adam(model.parameters())
    criterion = nn.BCEWithLogitsLoss()

    step, epoch = 0, 0
    while step < args.steps:
        start_time = time.time()
        epoch_loss = epoch_acc = 0
        n = 0
        model.train()
        for (text, text_lengths), label in train_iterator:
            optimizer.zero_grad()
            predictions = model(text, text_lengths).squeeze(1)
            loss = criterion(predictions, label)
            acc = binary_accuracy(predictions, label)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
            epoch_acc += acc.item()
            n += 1
            step += 1
            if step % 10 == 0 or step == 1:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break
        valid_loss, valid_acc = evaluate(model, valid_iterator, criterion)
        epoch += 1
        print(f'Epoch: {epoch:02} | Epoch Time: {time.time() - start_time:.1f}s')
        print(f'\tTrain Loss: {epoch_loss / n:.3f} | Train Acc: {epoch_acc / n * 100:.2f}%')
        print(f'\t Val. Loss: {valid_loss:.3f} |  Val. Acc: {valid_acc * 100:.2f}%')


if __name__ == "__main__":
    main()
