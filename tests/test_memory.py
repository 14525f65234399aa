import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gmed.errors import UsageError
from gmed.memory import Reservoir
from gmed.randomness import generator
from gmed.retrieval import uniform


def filled(capacity, batches, seed=0):
    memory = Reservoir(capacity)
    at = 0
    for step, size in enumerate(batches):
        x = torch.arange(at, at + size, dtype=torch.float32).unsqueeze(1)
        if step == 0:
            memory.lay_out(x, x[:, 0].long())
        memory.insert(x, x[:, 0].long(), generator(seed, "reservoir", step))
        at += size
    return memory


@pytest.mark.parametrize("size", [1, 7, 10, 30])
def test_every_example_is_stored_with_the_same_probability(size):
    """Chi-square over 1,000 reservoirs of 12 out of 60; inclusions within a reservoir are negatively
    correlated, which makes the statistic smaller, not larger, than for independent counts.
    """
    capacity, total, runs = 12, 60, 1000
    counts = np.zeros(total)
    for seed in range(runs):
        memory = filled(capacity, [size] * (total // size) + ([total % size] if total % size else []), seed)
        counts[memory.origin.numpy()] += 1
    expected = runs * capacity / total
    statistic = ((counts - expected) ** 2 / expected).sum() * (total - 1) / (total - capacity)
    assert stats.chi2.sf(statistic, total - 1) > 1e-4
    assert stats.chi2.cdf(statistic, total - 1) > 1e-4


@given(st.integers(1, 20), st.lists(st.integers(1, 25), min_size=1, max_size=12), st.integers(0, 2**63 - 1))
def test_reservoir_invariants(capacity, batches, seed):
    memory = filled(capacity, batches, seed)
    stored = len(memory)
    assert stored == min(capacity, sum(batches))
    assert memory.seen == sum(batches)
    assert len(set(memory.origin[:stored].tolist())) == stored  # nobody twice
    assert torch.equal(memory.origin[:stored], memory.y[:stored])  # a slot knows where its example came from
    assert torch.equal(memory.x[:stored, 0].long(), memory.y[:stored])
    assert (memory.origin[stored:] == -1).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_draws_are_without_replacement(stored, count, step):
    memory = filled(64, [stored])
    drawn = uniform(memory.filled(), count, generator(0, "replay", step)).tolist()
    assert len(drawn) == len(set(drawn)) == min(count, stored)
    assert all(0 <= slot < stored for slot in drawn)


def test_draws_are_uniform():
    memory = filled(30, [30])
    counts = np.zeros(30)
    for step in range(3000):
        counts[uniform(memory.filled(), 10, generator(1, "replay", step))] += 1
    statistic = ((counts - 1000) ** 2 / 1000).sum() * 29 / 20  # without replacement: variance (1 - 10/30)
    assert 1e-4 < stats.chi2.sf(statistic, 29) < 1 - 1e-4


def test_an_overwritten_slot_has_age_zero():
    memory = filled(5, [5])
    memory.replace(torch.arange(5), memory.x + 1)
    memory.replace(torch.tensor([0, 2]), memory.x[[0, 2]] + 1)
    assert memory.age.tolist() == [2, 1, 2, 1, 1]
    for step in range(1, 30):
        before = memory.origin.clone()
        memory.insert(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), generator(0, "reservoir", step))
        changed = memory.origin != before
        assert (memory.age[changed] == 0).all()
    assert (memory.age == 0).any()


def test_nothing_non_finite_is_stored():
    memory = filled(4, [4])
    x = torch.tensor([[9.0], [float("nan")], [float("inf")], [7.0]])
    memory.replace(torch.arange(4), x)
    assert memory.x[:, 0].tolist() == [9.0, 1.0, 2.0, 7.0]


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, "10"])
def test_capacity_must_be_a_count(capacity):
    with pytest.raises(UsageError, match="capacity"):
        Reservoir(capacity)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])
def test_a_copy_is_a_memory_of_its_own(copied):
    memory = filled(12, [10] * 3)
    memory.remove(np.array([4]))
    other = copied(memory)
    before = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    x = torch.full((40, 1), -1.0)
    other.insert(x, x[:, 0].long(), generator(1, "reservoir"))
    other.replace(torch.tensor([0]), torch.tensor([[7.0]]))
    assert other.x[0].item() == 7 and other.seen == 70 and (other.y == -1).any()
    assert all(torch.equal(before[name], tensor) for name, tensor in memory.state_dict().items())
    memory.insert(x, x[:, 0].long(), generator(1, "reservoir"))
    memory.replace(torch.tensor([0]), torch.tensor([[7.0]]))
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in memory.state_dict().items())
