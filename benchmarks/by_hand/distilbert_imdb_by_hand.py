"""distilbert_imdb.py by hand: groups of similar length instead of one padded block, bfloat16, fused QKV, and the
last layer computed for the [CLS] positions only."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.model_selection import train_test_split
from transformers import Trainer, set_seed

from distilbert_imdb import get_model, get_tokenizer, get_training_args, read_imdb_split
from flat import BF, attend, dropout, heads, key_bias, lin, lin_cat, merge, new_masks, norm, pad_flat, plan


class ListDataset(torch.utils.data.Dataset):
    def __init__(self, ids, labels):
        self.ids, self.labels = ids, labels

    def __getitem__(self, i):
        return self.ids[i], self.labels[i]

    def __len__(self):
        return len(self.labels)


def collate(batch):
    batch = sorted(batch, key=lambda b: -len(b[0]))
    seqs, lengths = [b[0] for b in batch], [len(b[0]) for b in batch]
    ids, pos, shape = pad_flat(seqs, plan(lengths), 0)
    cls = torch.cat([torch.arange(n) * L + off for (n, L), off in
                     zip(shape, [sum(n * L for n, L in shape[:g]) for g in range(len(shape))])])
    return dict(input_ids=ids, position_ids=pos, cls=cls, shape=shape, bias=key_bias(lengths, shape),
                labels=torch.tensor([b[1] for b in batch]))


class Fast(nn.Module):
    def __init__(self, hf):
        super().__init__()
        self.hf, self.config = hf, hf.config

    def forward(self, input_ids, position_ids, cls, shape, bias, labels):
        new_masks()
        c, d, tr = self.config, self.hf.distilbert, self.training
        H, dim = c.n_heads, c.dim
        scale = (dim // H) ** -0.5
        e = d.embeddings
        x = F.embedding(input_ids, e.word_embeddings.weight, padding_idx=0) + \
            F.embedding(position_ids, e.position_embeddings.weight)
        x = dropout(norm(x.to(BF), e.LayerNorm), c.dropout, tr)
        layers = d.transformer.layer
        for i, layer in enumerate(layers):
            a = layer.attention
            if i < len(layers) - 1:
                qkv = lin_cat(x, (a.q_lin, a.k_lin, a.v_lin)).view(-1, 3, dim)
                o = merge([attend(q, k, v, b, scale, c.attention_dropout, tr)
                           for (q, k, v), b in zip(heads(qkv, shape, H), bias)])
            else:  # only the first position is used from here on
                kv = lin_cat(x, (a.k_lin, a.v_lin)).view(-1, 2, dim)
                x = x.index_select(0, cls)
                one = [(n, 1) for n, _ in shape]
                o = merge([attend(q, k, v, b, scale, c.attention_dropout, tr) for (q,), (k, v), b in
                           zip(heads(lin(x, a.q_lin), one, H), heads(kv, shape, H), bias)])
            x = norm(lin(o, a.out_lin) + x, layer.sa_layer_norm)
            h = dropout(lin(F.gelu(lin(x, layer.ffn.lin1)), layer.ffn.lin2), c.dropout, tr)
            x = norm(h + x, layer.output_layer_norm)
        x = F.relu(self.hf.pre_classifier(x.float()))
        logits = self.hf.classifier(dropout(x, c.seq_classif_dropout, tr))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    args = parser.parse_args()
    set_seed(42)

    texts, labels = read_imdb_split(2000)
    train_texts, val_texts, train_labels, val_labels = train_test_split(texts, labels, test_size=.2, random_state=0)
    tokenizer = get_tokenizer(train_texts)
    ids = tokenizer(train_texts, truncation=True)["input_ids"]
    model = Fast(get_model(tokenizer))
    targs = get_training_args(args.steps)
    targs.remove_unused_columns = False
    trainer = Trainer(model=model, args=targs, train_dataset=ListDataset(ids, train_labels), data_collator=collate)
    trainer.train()


if __name__ == "__main__":
    main()
