"""GMED in a training loop that is not ours: plain PyTorch, a memory of two tensors, one call added.

The loop below is experience replay as it is often written: a model, torch.optim, and a memory that keeps a fair sample
of what has come. `gmed.edit_examples` is the only line about GMED; whoever leaves it out has plain replay. The stream
is Split MNIST, two digits at a time, which the package ships.

What it shows: what has to be added, and that the two tensors are all the memory it needs. What it does not show: how
much GMED gains; these few seeds cannot tell, and twenty can (`gmed run split-mnist er er+gmed --seeds 20`).

    python examples/own_loop.py      # under a minute on a CPU
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gmed
from gmed.engine import get_benchmark

SEEDS = 2
MEMORY, BATCH, LR = 500, 10, 0.05


def train(model: nn.Module, x: Tensor, y: Tensor, *, edit: bool) -> None:
    """Replay over one pass of the stream (x, y)."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    x_stored, y_stored = x.new_empty(MEMORY, *x.shape[1:]), y.new_empty(MEMORY)
    for start in range(0, len(x), BATCH):
        x_new, y_new = x[start : start + BATCH], y[start : start + BATCH]
        x_batch, y_batch = x_new, y_new
        if start > 0:
            drawn = torch.randperm(min(start, MEMORY))[:BATCH]
            x_mem, y_mem = x_stored[drawn], y_stored[drawn]
            if edit:  # what GMED adds: edit what is replayed, and write it back
                x_mem = gmed.edit_examples(model, x_mem, y_mem, x_new, y_new, lr=LR, alpha=5.0, beta=0.01)
                x_stored[drawn] = x_mem
            x_batch, y_batch = torch.cat([x_new, x_mem]), torch.cat([y_new, y_mem])
        optimiser.zero_grad()
        cross_entropy(model(x_batch), y_batch).backward()
        optimiser.step()
        for number, (example, label) in enumerate(zip(x_new, y_new, strict=True), start):
            slot = number if number < MEMORY else int(torch.randint(number + 1, ()))
            if slot < MEMORY:  # every example so far is stored with the same probability
                x_stored[slot], y_stored[slot] = example, label


def accuracy(seed: int, *, edit: bool) -> float:
    """Mean over tasks of the test accuracy at the end, in percent."""
    stream = get_benchmark("split-mnist").make_stream(None, seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU())
    model.append(nn.Linear(400, 10))
    train(model, gmed.streams.to_float(stream.x), stream.y, edit=edit)
    with torch.no_grad():
        right = [(model(gmed.streams.to_float(test.x)).argmax(1) == test.y).float().mean() for test in stream.tests]
    return 100 * float(torch.stack(right).mean())


def main() -> None:
    torch.set_num_threads(1)
    for name, edit in (("replay", False), ("replay + GMED", True)):
        found = [accuracy(seed, edit=edit) for seed in range(SEEDS)]
        print(f"{name:14} {sum(found) / SEEDS:.1f} %   ({', '.join(f'{a:.1f}' for a in found)})")


if __name__ == "__main__":
    main()
