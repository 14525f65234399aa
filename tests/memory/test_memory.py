"""Memories: reservoir sampling, draws, ages and columns."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gmed.errors import UsageError
from gmed.learners import ER
from gmed.memory import Reservoir
from gmed.retrieval import uniform
from gmed.rng import make_rng
from helpers import random_batch


def occupied(capacity, batches, seed=0):
    memory = Reservoir(capacity)
    at = 0
    for step, size in enumerate(batches):
        x = torch.arange(at, at + size, dtype=torch.float32).unsqueeze(1)
        if step == 0:
            memory.allocate(x, x[:, 0].long())
        memory.insert(x, x[:, 0].long(), make_rng(seed, "reservoir", step))
        at += size
    return memory


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 10, 30])
def test_every_example_is_stored_with_the_same_probability(size):
    """Chi-square over 1,000 reservoirs of 12 out of 60; inclusions within a reservoir are negatively
    correlated, which makes the statistic smaller, not larger, than for independent counts.
    """
    capacity, total, runs = 12, 60, 1000
    counts = np.zeros(total)
    for seed in range(runs):
        memory = occupied(capacity, [size] * (total // size) + ([total % size] if total % size else []), seed)
        counts[memory.stream_index.numpy()] += 1
    expected = runs * capacity / total
    statistic = ((counts - expected) ** 2 / expected).sum() * (total - 1) / (total - capacity)
    assert stats.chi2.sf(statistic, total - 1) > 1e-4
    assert stats.chi2.cdf(statistic, total - 1) > 1e-4


@given(st.integers(1, 20), st.lists(st.integers(1, 25), min_size=1, max_size=12), st.integers(0, 2**63 - 1))
def test_reservoir_invariants(capacity, batches, seed):
    memory = occupied(capacity, batches, seed)
    stored = len(memory)
    assert stored == min(capacity, sum(batches))
    assert memory.num_seen == sum(batches)
    assert len(set(memory.stream_index[:stored].tolist())) == stored  # nobody twice
    assert torch.equal(memory.stream_index[:stored], memory.y[:stored])  # a slot knows where its example came from
    assert torch.equal(memory.x[:stored, 0].long(), memory.y[:stored])
    assert (memory.stream_index[stored:] == -1).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_draws_are_without_replacement(stored, count, step):
    memory = occupied(64, [stored])
    drawn = uniform(memory.occupied(), count, make_rng(0, "replay", step)).tolist()
    assert len(drawn) == len(set(drawn)) == min(count, stored)
    assert all(0 <= slot < stored for slot in drawn)


def test_draws_are_uniform():
    memory = occupied(30, [30])
    counts = np.zeros(30)
    for step in range(3000):
        counts[uniform(memory.occupied(), 10, make_rng(1, "replay", step))] += 1
    statistic = ((counts - 1000) ** 2 / 1000).sum() * 29 / 20  # without replacement: variance (1 - 10/30)
    assert 1e-4 < stats.chi2.sf(statistic, 29) < 1 - 1e-4


def test_an_overwritten_slot_has_age_zero():
    memory = occupied(5, [5])
    memory.replace(torch.arange(5), memory.x + 1)
    memory.replace(torch.tensor([0, 2]), memory.x[[0, 2]] + 1)
    assert memory.edit_count.tolist() == [2, 1, 2, 1, 1]
    for step in range(1, 30):
        before = memory.stream_index.clone()
        memory.insert(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long), make_rng(0, "reservoir", step))
        changed = memory.stream_index != before
        assert (memory.edit_count[changed] == 0).all()
    assert (memory.edit_count == 0).any()


def test_nothing_non_finite_is_stored():
    memory = occupied(4, [4])
    x = torch.tensor([[9.0], [float("nan")], [float("inf")], [7.0]])
    memory.replace(torch.arange(4), x)
    assert memory.x[:, 0].tolist() == [9.0, 1.0, 2.0, 7.0]


@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, "10"])
def test_capacity_must_be_a_count(capacity):
    with pytest.raises(UsageError, match="capacity"):
        Reservoir(capacity)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])
def test_copied_memory_is_independent(copied):
    memory = occupied(12, [10] * 3)
    memory.remove(np.array([4]))
    other = copied(memory)
    before = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    x = torch.full((40, 1), -1.0)
    other.insert(x, x[:, 0].long(), make_rng(1, "reservoir"))
    other.replace(torch.tensor([0]), torch.tensor([[7.0]]))
    assert other.x[0].item() == 7 and other.num_seen == 70 and (other.y == -1).any()
    assert all(torch.equal(before[name], tensor) for name, tensor in memory.state_dict().items())
    memory.insert(x, x[:, 0].long(), make_rng(1, "reservoir"))
    memory.replace(torch.tensor([0]), torch.tensor([[7.0]]))
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in memory.state_dict().items())


class Tagging(ER):
    """Stores logits and a number with every example, and replays towards the logits."""

    def step(self, x, y):
        ahead = self.look_ahead(x, y)
        slots = self.sample()
        self.sgd_step(ahead, self.memory.x[slots], self.memory.y[slots])
        self.update_memory(x, y, logits=self.model(x), tag=torch.full_like(y, self.steps, dtype=torch.int32))


def tagging(seed=0):
    torch.manual_seed(3)
    return Tagging(torch.nn.Linear(4, 3), lr=0.1, memory=Reservoir(12), seed=seed)


def batch(seed):
    return random_batch(5, (4,), 3, seed)


def test_columns_appear_when_they_are_first_stored():
    learner = tagging()
    for seed in range(6):
        learner.observe(*batch(seed))
    memory = learner.memory
    assert memory.logits.shape == (12, 3)
    assert memory.tag.dtype == torch.int32
    assert torch.equal(memory.tag.long(), memory.stream_index // 5)
    assert not memory.logits.requires_grad


@pytest.mark.parametrize("way", ["state", "copy", "pickle", "file"])
def test_columns_are_saved_moved_and_copied_with_the_memory(way, tmp_path):
    learner = tagging()
    for seed in range(4):
        learner.observe(*batch(seed))
    if way == "state":
        other = tagging(seed=7)
        other.load_state_dict(learner.state_dict())
    elif way == "file":
        learner.save(tmp_path / "state")
        other = tagging(seed=7)
        other.load(tmp_path / "state")
    else:
        other = copy.deepcopy(learner) if way == "copy" else pickle.loads(pickle.dumps(learner))
    for seed in range(4, 8):
        learner.observe(*batch(seed))
        other.observe(*batch(seed))
    left, right = learner.state_dict(), other.state_dict()
    assert {"memory.logits", "memory.tag"} <= left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("before", [0, 3])
def test_columns_are_rolled_back_with_a_failed_step(before):
    class Fails(Tagging):
        def update_memory(self, x, y, **columns):
            super().update_memory(
                x, y, **(columns if self.steps < before - 1 or before == 0 else {**columns, "late": x})
            )
            if self.steps == before:
                raise ZeroDivisionError

    torch.manual_seed(3)
    learner = Fails(torch.nn.Linear(4, 3), lr=0.1, memory=Reservoir(12), updates_per_batch=2)
    for seed in range(before):
        learner.observe(*batch(seed))
    if before:
        learner.memory._drop("late")
    state = learner.state_dict()
    with pytest.raises(ZeroDivisionError):
        learner.observe(*batch(9))
    assert learner.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in learner.state_dict().items())
    assert not hasattr(learner.memory, "late")


def test_columns_are_removable_and_follow_the_dtype():
    learner = tagging()
    for seed in range(4):
        learner.observe(*batch(seed))
    gone = learner.memory.occupied()[:2]
    learner.remove_examples(stream_index=learner.memory.stream_index[gone].tolist())
    assert not learner.memory.logits[gone].any()
    learner.model.double()
    learner.observe(*batch(5))
    assert learner.memory.x.dtype == torch.float64
    assert learner.memory.tag.dtype == torch.int32


@pytest.mark.parametrize("name", ["insert", "capacity", "seen", "age", "no name", "_rows", "class_counts"])
def test_column_cannot_reuse_a_name(name):
    memory = occupied(4, [3])
    with pytest.raises(UsageError, match="cannot be named"):
        memory.insert(torch.rand(2, 1), torch.tensor([0, 1]), make_rng(0, "reservoir", 5), **{name: torch.ones(2)})
    state = {**memory.state_dict(), name: torch.ones(4)}
    if name not in ("seen", "age"):
        with pytest.raises(UsageError, match="cannot be named"):
            memory.load_state_dict(state)


def test_a_column_keeps_its_shape():
    memory = occupied(4, [3])
    memory.insert(torch.rand(2, 1), torch.tensor([0, 1]), make_rng(0, "reservoir", 5), logits=torch.ones(2, 3))
    with pytest.raises(UsageError, match=r"'logits' in memory has the shape \(3,\) for each example, not \(4,\)"):
        memory.insert(torch.rand(2, 1), torch.tensor([0, 1]), make_rng(0, "reservoir", 6), logits=torch.ones(2, 4))
