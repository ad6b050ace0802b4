"""Language translation with nn.Transformer, after the PyTorch tutorial (Multi30k, German to English).

The sentence pairs are made up (a toy language whose "English" is a word by word translation with some
reordering); everything else follows the tutorial.
"""
import argparse
import math
import re
from collections import Counter
from timeit import default_timer as timer

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import Transformer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

SRC_LANGUAGE, TGT_LANGUAGE = 'de', 'en'
UNK_IDX, PAD_IDX, BOS_IDX, EOS_IDX = 0, 1, 2, 3
special_symbols = ['<unk>', '<pad>', '<bos>', '<eos>']
DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


class Multi30k:
    """Pairs (German, English)."""

    def __init__(self, n, seed=1):
        rng = np.random.default_rng(seed)
        n_de, n_en = 7000, 4500
        de = np.array([f"{w}" for w in self._words(n_de, "aeiouäöü", rng)])
        en = np.array([f"{w}" for w in self._words(n_en, "aeiouy", rng)])
        to_en = rng.integers(0, n_en, size=n_de)
        freq = 1.0 / np.arange(2, 2 + n_de) ** 1.1
        freq /= freq.sum()
        self.pairs = []
        for _ in range(n):
            length = int(np.clip(rng.lognormal(np.log(11), 0.4), 3, 45))
            ids = rng.choice(n_de, size=length, p=freq)
            out = [en[to_en[i]] for i in ids]
            out = [w for w in out if rng.random() > 0.05]
            for i in range(0, len(out) - 2, 4):
                out[i], out[i + 1] = out[i + 1], out[i]
            self.pairs.append((" ".join(de[ids]).capitalize() + " .\n", " ".join(out).capitalize() + " .\n"))

    @staticmethod
    def _words(n, vowels, rng):
        words = set()
        while len(words) < n:
            words.add("".join(rng.choice(list("bdfghklmnprstvwz")) + rng.choice(list(vowels))
                              for _ in range(rng.integers(1, 5))))
        words = sorted(words)
        rng.shuffle(words)
        return words

    def __iter__(self):
        return iter(self.pairs)

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def tokenize(text):
    return re.findall(r"\w+|[^\w\s]", text.lower())


class Vocab:
    def __init__(self, sentences):
        counter = Counter(token for s in sentences for token in tokenize(s))
        self.itos = special_symbols + sorted(counter, key=lambda t: (-counter[t], t))
        self.stoi = {t: i for i, t in enumerate(self.itos)}

    def __call__(self, tokens):
        return [self.stoi.get(t, UNK_IDX) for t in tokens]

    def __len__(self):
        return len(self.itos)


# helper Module that adds positional encoding to the token embedding to introduce a notion of word order.
class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 5000):
        super(PositionalEncoding, self).__init__()
        den = torch.exp(- torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        pos_embedding = pos_embedding.unsqueeze(-2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer('pos_embedding', pos_embedding)

    def forward(self, token_embedding: Tensor):
        return self.dropout(token_embedding + self.pos_embedding[:token_embedding.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size):
        super(TokenEmbedding, self).__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor):
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(self, num_encoder_layers, num_decoder_layers, emb_size, nhead, src_vocab_size, tgt_vocab_size,
                 dim_feedforward=512, dropout=0.1):
        super(Seq2SeqTransformer, self).__init__()
        self.transformer = Transformer(d_model=emb_size, nhead=nhead, num_encoder_layers=num_encoder_layers,
                                       num_decoder_layers=num_decoder_layers, dim_feedforward=dim_feedforward,
                                       dropout=dropout)
        self.generator = nn.Linear(emb_size, tgt_vocab_size)
        self.src_tok_emb = TokenEmbedding(src_vocab_size, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab_size, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size, dropout=dropout)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, memory_key_padding_mask):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        outs = self.transformer(src_emb, tgt_emb, src_mask, tgt_mask, None,
                                src_padding_mask, tgt_padding_mask, memory_key_padding_mask)
        return self.generator(outs)


def generate_square_subsequent_mask(sz):
    mask = (torch.triu(torch.ones((sz, sz), device=DEVICE)) == 1).transpose(0, 1)
    mask = mask.float().masked_fill(mask == 0, float('-inf')).masked_fill(mask == 1, float(0.0))
    return mask


def create_mask(src, tgt):
    src_seq_len = src.shape[0]
    tgt_seq_len = tgt.shape[0]

    tgt_mask = generate_square_subsequent_mask(tgt_seq_len)
    src_mask = torch.zeros((src_seq_len, src_seq_len), device=DEVICE).type(torch.bool)

    src_padding_mask = (src == PAD_IDX).transpose(0, 1)
    tgt_padding_mask = (tgt == PAD_IDX).transpose(0, 1)
    return src_mask, tgt_mask, src_padding_mask, tgt_padding_mask


EMB_SIZE = 192
NHEAD = 8
FFN_HID_DIM = 192
BATCH_SIZE = 64
NUM_ENCODER_LAYERS = 3
NUM_DECODER_LAYERS = 3


def get_data():
    train_iter = Multi30k(6400)
    vocab_transform = {SRC_LANGUAGE: Vocab(p[0] for p in train_iter), TGT_LANGUAGE: Vocab(p[1] for p in train_iter)}
    return train_iter, vocab_transform


def get_model(vocab_transform):
    transformer = Seq2SeqTransformer(NUM_ENCODER_LAYERS, NUM_DECODER_LAYERS, EMB_SIZE, NHEAD,
                                     len(vocab_transform[SRC_LANGUAGE]), len(vocab_transform[TGT_LANGUAGE]),
                                     FFN_HID_DIM)
    for p in transformer.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return transformer.to(DEVICE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    args = parser.parse_args()
    torch.manual_seed(0)

    train_iter, vocab_transform = get_data()
    transformer = get_model(vocab_transform)
    loss_fn = torch.nn.CrossEntropyLoss(ignore_index=PAD_IDX)
    optimizer = torch.optim.Adam(transformer.parameters(), lr=0.0005, betas=(0.9, 0.98), eps=1e-9)

    # function to add BOS/EOS and create tensor for input sequence indices
    def tensor_transform(token_ids):
        return torch.cat((torch.tensor([BOS_IDX]), torch.tensor(token_ids), torch.tensor([EOS_IDX])))

    # function to collate data samples into batch tensors
    def collate_fn(batch):
        src_batch, tgt_batch = [], []
        for src_sample, tgt_sample in batch:
            src_batch.append(tensor_transform(vocab_transform[SRC_LANGUAGE](tokenize(src_sample.rstrip("\n")))))
            tgt_batch.append(tensor_transform(vocab_transform[TGT_LANGUAGE](tokenize(tgt_sample.rstrip("\n")))))
        return pad_sequence(src_batch, padding_value=PAD_IDX), pad_sequence(tgt_batch, padding_value=PAD_IDX)

    train_dataloader = DataLoader(train_iter, batch_size=BATCH_SIZE, collate_fn=collate_fn)
    transformer.train()
    step, start = 0, timer()
    while step < args.steps:
        for src, tgt in train_dataloader:
            src, tgt = src.to(DEVICE), tgt.to(DEVICE)
            tgt_input = tgt[:-1, :]
            src_mask, tgt_mask, src_padding_mask, tgt_padding_mask = create_mask(src, tgt_input)
            logits = transformer(src, tgt_input, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask,
                                 src_padding_mask)
            optimizer.zero_grad()
            tgt_out = tgt[1:, :]
            loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))
            loss.backward()
            optimizer.step()

            step += 1
            if step % 10 == 0 or step == 1:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break
    print(f"took {timer() - start:.1f} s")


if __name__ == "__main__":
    main()
