"""Writes pytorch_model.bin: a few tensors of each kind that a checkpoint may hold; and sparse_linear.pt: a head as bge-m3's
repository has it, the state of a Linear in half precision. Made with torch 2.x (CPU):

    python tests/golden/make_bin.py tests/golden/pytorch_model.bin tests/golden/sparse_linear.pt
"""

import sys
from collections import OrderedDict

import torch

shared = torch.arange(12, dtype=torch.float32)
tensors = OrderedDict(
    [
        # Not in order of names, so that sorting shows.
        ("pooler.weight", torch.tensor([[0.5, -1.5], [2.25, 1e-7]])),
        ("embeddings.word", torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7),
        ("half", torch.tensor([1.0, -2.0, 65504.0], dtype=torch.float16)),
        ("brain", torch.tensor([1.0, -2.0, 3e38], dtype=torch.bfloat16)),
        ("embeddings.position_ids", torch.arange(5).unsqueeze(0)),
        # A view into shared storage that does not begin at its start, and a transposed one.
        ("tail", shared[8:]),
        ("transposed", shared[:6].reshape(2, 3).t()),
    ]
)
torch.save(tensors, sys.argv[1])

head = torch.nn.Linear(32, 1).half()
head.weight.data = (torch.arange(32) / 64 - 0.25).half()[None]
head.bias.data = torch.tensor([0.5]).half()
torch.save(head.state_dict(), sys.argv[2])
