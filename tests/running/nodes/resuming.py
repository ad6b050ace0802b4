"""A program that saves by the library and goes on where it was; losses by step on stdout."""

PROGRAM = """
import os, signal, sys, time
import torch
import flatout

STEPS, SLEEP = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
dice = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(64, 24, 8, generator=dice), torch.randn(64, 24, 1, generator=dice)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(DROPOUT), torch.nn.Linear(32, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
checkpoint = flatout.Checkpoint("kept", every=None, model=model, optimizer=optimizer)
begun = checkpoint.resume()
print("from", begun, flush=True)
for number in range(begun, STEPS):
    loss = torch.nn.functional.mse_loss(model(inputs[number % 64]), targets[number % 64])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", number + 1, SHOWN, flush=True)
    checkpoint.after_step()
    time.sleep(SLEEP)
checkpoint.close()
"""


def program(dropout: float = 0.0) -> str:
    """dropout: above 0, every digit of the losses is shown."""
    shown = "loss.item().hex()" if dropout else 'f"{loss.item():.5f}"'
    return PROGRAM.replace("DROPOUT", repr(dropout)).replace("SHOWN", shown)


def losses(output: str) -> dict[int, str]:
    """Of each step, as it was printed last."""
    lines = (line.split() for line in output.splitlines() if line.startswith("step"))
    return {int(words[1]): words[2] for words in lines}
