"""Turns a model and its observed calls into a capture folder: a program without user code.

The agent (`roots`, `taker`) collects the calls while the script runs; the library gives its own.
The rest is shared: an evaluation copy, its calls with flat tensors, torch.export, eager references.
"""
