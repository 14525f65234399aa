"""Random numbers by purpose and step."""

import torch

from gmed.rng import make_rng, seeded_torch


def test_purposes_and_steps_are_independent_and_repeatable():
    drawn = {
        (seed, purpose, step): tuple(make_rng(seed, purpose, step).integers(2**62, size=4).tolist())
        for seed in (0, 1, 2**32, 2**63 - 1)
        for purpose in ("replay", "reservoir")
        for step in (0, 1, 2**40)
    }
    assert len(set(drawn.values())) == len(drawn)
    assert drawn[0, "replay", 1] == tuple(make_rng(0, "replay", 1).integers(2**62, size=4).tolist())


def test_torch_rng_outside_is_unchanged():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded_torch(0, "weights"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded_torch(0, "weights"):
        assert torch.equal(torch.rand(3), inside)
