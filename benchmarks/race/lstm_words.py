"""Word-level LSTM language model on made-up words; the state is carried on, detached."""

import argparse

import torch
import torch.nn as nn


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        return self.decoder(self.drop(output)), hidden


def sizes(small):
    """(words known, width, layers, batch, length, words of text)"""
    return (500, 32, 2, 8, 16, 20_000) if small else (33_278, 1024, 2, 64, 64, 2_000_000)


def make_words(count, known):
    """Few of the words are most of the text."""
    return (torch.rand(count).pow(4) * known).long()


def batchify(words, batch):
    rows = len(words) // batch
    return words[: rows * batch].view(batch, -1).t().contiguous()


def fresh_state(model, batch, device):
    shape = model.rnn.num_layers, batch, model.rnn.hidden_size
    return torch.zeros(shape, device=device), torch.zeros(shape, device=device)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="for a CPU")
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(1111)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known, width, layers, batch, bptt, count = sizes(args.small)
    train_data = batchify(make_words(count, known), batch).to(device)

    model = RNNModel(known, width, width, layers, 0.2).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.train()
    step, total_loss = 0, 0.0
    while step < args.steps:
        hidden = fresh_state(model, batch, device)
        for i in range(0, len(train_data) - bptt - 1, bptt):
            data = train_data[i : i + bptt]
            targets = train_data[i + 1 : i + 1 + bptt].view(-1)
            hidden = tuple(state.detach() for state in hidden)
            model.zero_grad()
            output, hidden = model(data, hidden)
            loss = criterion(output.view(-1, known), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            total_loss += loss.item()
            step += 1
            if step <= 3 or step % 10 == 0:
                print(f"step {step} loss {total_loss / step:.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
