"""lstm_sentiment.py by hand: no packing (oneDNN's LSTM wants plain tensors; batches are bucketed, so there is
little padding): the backward direction is an ordinary LSTM over the text reversed within its length.  Numbers
instead of strings in the data set, bfloat16, fused Adam."""
import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

from flat import BF, dropout, new_masks
from lstm_sentiment import BATCH_SIZE, SEED, BucketIterator, binary_accuracy, evaluate, get_data, get_model

DTYPE = BF


class FastBuckets(BucketIterator):
    """Same batches in the same order; examples are (list of ids, 0/1)."""

    def __iter__(self):
        for batch in self.batches():
            lengths = torch.tensor([len(ids) for ids, _ in batch])
            text = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids, _ in batch], padding_value=1)
            yield (text, lengths), torch.tensor([float(y) for _, y in batch])


def one_lstm(x, rnn, suffix):
    """A single direction of a single layer over a padded [len, batch, dim] tensor."""
    w = [getattr(rnn, f"{n}_{suffix}").to(x.dtype) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    zero = x.new_zeros(1, x.shape[1], rnn.hidden_size)
    return torch.lstm(x, (zero, zero), w, True, 1, 0.0, True, False, False)[0]


def forward(model, text, lengths):
    new_masks()
    L, B = text.shape
    t = torch.arange(L)[:, None]
    rev = torch.where(t < lengths, lengths - 1 - t, t) * B + torch.arange(B)  # own inverse

    def reverse(x):
        return F.embedding(rev, x.reshape(L * B, -1))

    rnn, p = model.rnn, 0.5
    x = dropout(F.embedding(text, model.embedding.weight, padding_idx=1).to(DTYPE), p)
    fwd, bwd = one_lstm(x, rnn, "l0"), one_lstm(reverse(x), rnn, "l0_reverse")
    x = dropout(torch.cat((fwd, reverse(bwd)), -1), p)
    fwd, bwd = one_lstm(x, rnn, "l1"), one_lstm(reverse(x), rnn, "l1_reverse")
    last, b = lengths - 1, torch.arange(B)
    hidden = dropout(torch.cat((fwd[last, b], bwd[last, b]), 1), p)
    return F.linear(hidden.float(), model.fc.weight, model.fc.bias)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    random.seed(SEED)
    torch.manual_seed(SEED)

    train_data, valid_data, TEXT = get_data()
    ids = [([TEXT.stoi.get(t, 0) for t in tokens], int(y == 'pos')) for tokens, y in train_data]
    train_iterator = FastBuckets(ids, BATCH_SIZE, TEXT)
    valid_iterator = BucketIterator(valid_data, BATCH_SIZE, TEXT, train=False)
    model = get_model(TEXT)
    optimizer = optim.Adam(model.parameters(), fused=True)

    step, epoch = 0, 0
    while step < args.steps:
        start_time = time.time()
        epoch_loss = epoch_acc = 0
        n = 0
        model.train()
        for (text, text_lengths), label in train_iterator:
            optimizer.zero_grad()
            predictions = forward(model, text, text_lengths).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(predictions, label)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.detach()
            epoch_acc += binary_accuracy(predictions.detach(), label)
            n += 1
            step += 1
            if step % 10 == 0 or step == 1:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break
        valid_loss, valid_acc = evaluate(model, valid_iterator, F.binary_cross_entropy_with_logits)
        epoch += 1
        print(f'Epoch: {epoch:02} | Epoch Time: {time.time() - start_time:.1f}s')
        print(f'\tTrain Loss: {epoch_loss / n:.3f} | Train Acc: {epoch_acc / n * 100:.2f}%')
        print(f'\t Val. Loss: {valid_loss:.3f} |  Val. Acc: {valid_acc * 100:.2f}%')


if __name__ == "__main__":
    main()
