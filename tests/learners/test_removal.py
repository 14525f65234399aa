"""Removal of examples from memory on request."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gmed
from gmed.editing import GMED, OptimalEdit
from gmed.engine.batched import BatchedTrainer
from gmed.errors import InputError, UsageError
from gmed.learners import ER, MIR, FineTune
from gmed.memory import GSSGreedy, LossAwareReservoir, Reservoir, TaskRing
from gmed.memory.base import REMOVED
from gmed.rng import make_rng
from gmed.streams import Stream

KINDS = {
    "reservoir": (Reservoir, ()),
    "loss-aware": (LossAwareReservoir, ("loss",)),
    "gss": (GSSGreedy, ("score",)),
    "ring": (lambda capacity: TaskRing(capacity, tasks=1), ()),
}


def label(stream_index):
    return stream_index % 3


class Mirror:
    """A memory, and beside it what is known of every example by its origin."""

    def __init__(self, kind, capacity, seed):
        self.make, self.columns = KINDS[kind]
        self.memory, self.seed, self.steps = self.make(capacity), seed, 0
        self.value, self.edit_count, self.kept = {}, {}, {}
        self.memory.allocate(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
        self.removed = set()

    def stored(self):
        return set(self.memory.stream_index[torch.from_numpy(self.memory.occupied())].tolist())

    def insert(self, count, fails=False):
        origins = np.arange(self.memory.num_seen, self.memory.num_seen + count)
        x = torch.from_numpy(origins + 1.0).float().unsqueeze(1).repeat(1, 2)
        y = torch.from_numpy(label(origins))
        extra = {name: torch.from_numpy(1.0 + origins % 7 / 7).to(getattr(self.memory, name)) for name in self.columns}
        before, holes = self.stored(), len(self.memory) < min(self.memory.num_seen, self.memory.capacity)
        try:
            with self.memory.transaction():
                self.memory.insert(x, y, make_rng(self.seed, "reservoir", self.steps), **extra)
                if fails:
                    raise KeyError
        except KeyError:
            assert self.stored() == before
            return
        self.steps += 1
        for row, stream_index in enumerate(origins.tolist()):
            self.value[stream_index], self.edit_count[stream_index] = stream_index + 1.0, 0
            self.kept[stream_index] = [float(extra[name][row]) for name in self.columns]
        after = self.stored()
        assert after <= before | set(origins.tolist())
        if self.columns and holes and count == 1:  # who enters takes an empty slot, and nobody leaves
            assert before <= after

    def edit(self, some):
        slots = torch.from_numpy(np.unique([self.memory.occupied()[n % len(self.memory)] for n in some]))
        for stream_index in self.memory.stream_index[slots].tolist():
            self.value[stream_index] += 0.25
            self.edit_count[stream_index] += 1
        self.memory.replace(slots, self.memory.x[slots] + 0.25)

    def remove(self, some):
        slots = np.unique([self.memory.occupied()[n % len(self.memory)] for n in some])
        gone = self.memory.stream_index[torch.from_numpy(slots)].tolist()
        count = len(self.memory)
        self.memory.remove(slots)
        self.removed |= set(gone)
        assert len(self.memory) == count - len(slots)
        assert not any((rows[-1] != 0).any() for name, rows in self.memory._rows.items() if name != "stream_index")

    def reload(self):
        state = {name: t.clone() for name, t in self.memory.state_dict().items()}
        task = getattr(self.memory, "task", None)
        self.memory = self.make(self.memory.capacity)
        self.memory.load_state_dict(state)
        if task is not None:
            self.memory.set_task(task)

    def check(self):
        memory, occupied = self.memory, self.memory.occupied()
        assert occupied.tolist() == (memory.stream_index >= 0).nonzero().flatten().tolist()
        origins = memory.stream_index[torch.from_numpy(occupied)].tolist()
        assert len(set(origins)) == len(origins) == len(memory) <= memory.capacity
        assert not self.removed & set(origins)
        for slot, stream_index in zip(occupied.tolist(), origins, strict=True):
            assert memory.x[slot].tolist() == [self.value[stream_index]] * 2
            assert (memory.y[slot], memory.edit_count[slot]) == (label(stream_index), self.edit_count[stream_index])
            assert [float(getattr(memory, name)[slot]) for name in self.columns] == self.kept[stream_index]
        empty = np.setdiff1d(np.arange(memory.capacity), occupied)
        for name in set(memory.columns) - {"stream_index"}:
            assert (getattr(memory, name)[torch.from_numpy(empty)] == 0).all()
        assert (memory.stream_index[torch.from_numpy(empty)] < 0).all()


some = st.lists(st.integers(0, 1000), min_size=1, max_size=6)
operations = st.one_of(
    st.tuples(st.just("insert"), st.integers(1, 9)),
    st.tuples(st.just("insert"), st.just(1)),
    st.tuples(st.just("fail"), st.integers(1, 9)),
    st.tuples(st.just("edit"), some),
    st.tuples(st.just("remove"), some),
    st.tuples(st.just("reload"), st.none()),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(st.integers(1, 12), st.lists(operations, max_size=25), st.integers(0, 2**32))
def test_whatever_is_done_memory_stays_consistent(kind, capacity, done, seed):
    mirror = Mirror(kind, capacity, seed)
    for what, how in done:
        if what in ("insert", "fail"):
            mirror.insert(how, fails=what == "fail")
        elif what == "reload":
            mirror.reload()
        elif len(mirror.memory):
            getattr(mirror, what)(how)
        mirror.check()


@settings(max_examples=60)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 200), max_size=5)), max_size=20),
    st.integers(0, 2**32),
)
def test_reservoir_after_removal_equals_reservoir_without_those_examples(capacity, done, seed):
    """Slot by slot: so every example that was not removed is stored with the probability it would have had."""
    whole, less = (Mirror("reservoir", capacity, seed) for _ in range(2))
    removed = set()
    for count, origins in done:
        whole.insert(count)
        less.insert(count)
        slots = (
            (less.memory.stream_index[:, None] == torch.tensor(origins, dtype=torch.long)).any(1).nonzero().flatten()
        )
        removed |= set(less.memory.stream_index[slots].tolist())
        less.memory.remove(slots.numpy())
        expected = [
            REMOVED if stream_index in removed else stream_index for stream_index in whole.memory.stream_index.tolist()
        ]
        assert less.memory.stream_index.tolist() == expected


def test_emptied_slots_are_refilled():
    for kind in KINDS:
        mirror = Mirror(kind, 8, 0)
        for _ in range(8):
            mirror.insert(5)
        mirror.remove([0, 3, 5])
        for _ in range(400):
            mirror.insert(5)
        assert len(mirror.memory) == 8
        assert mirror.memory.is_contiguous


@pytest.mark.parametrize("kind", ["loss-aware", "gss"])
def test_empty_slots_are_filled_before_any_is_overwritten(kind):
    for seed in range(20):
        mirror = Mirror(kind, 6, seed)
        mirror.insert(6)
        mirror.remove([0, 3])
        for _ in range(60):
            mirror.insert(1)
        assert mirror.memory.is_contiguous


def test_ring_continues_after_the_newest_remaining_example():
    ring = Mirror("ring", 5, 0)
    ring.insert(13)  # 10, 11, 12, 8, 9
    ring.remove([1, 2])  # the two newest
    ring.insert(1)
    assert ring.memory.stream_index.tolist() == [10, 13, REMOVED, 8, 9]


# ---------------------------------------------------------------------- learners


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))


def stream(length, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(length, 1, 4, 4, generator=g)
    return Stream(x, torch.randint(4, (length,), generator=g), (), (length,), 4)


def observed(learner, flow, start=0, stop=None):
    for at in range(start, len(flow) if stop is None else stop, 10):
        learner.observe(flow.x[at : at + 10], flow.y[at : at + 10])
    return learner


MAKERS = {
    "er": lambda: ER(model(), lr=0.1, memory=Reservoir(30)),
    "er+gmed": lambda: ER(model(), lr=0.1, memory=Reservoir(30), editing=GMED(alpha=1.0, beta=0.1)),
    "mir": lambda: MIR(model(), lr=0.1, memory=Reservoir(30), subsample=15),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("requests", [{400: [1]}, {400: [0, 1, 2, 3]}, {350: [0], 700: [2, 3]}])
def test_captured_steps_respect_removal(name, requests):
    """A request between two stretches of steps: as if every step had been decided when it came."""
    flow = stream(1200)
    alone, ahead = MAKERS[name](), MAKERS[name]()
    group, cuts = BatchedTrainer([ahead], [flow], 10), sorted({0, *requests, 1200})
    assert group.capturable
    for start, stop in pairwise(cuts):
        observed(alone, flow, start, stop)
        assert [*group.train(start, stop)][-1] == stop
        if labels := requests.get(stop):
            assert alone.remove_examples(label=labels) == ahead.remove_examples(label=labels) > 0
    states = alone.state_dict(), ahead.state_dict()
    assert all(torch.equal(t, states[1][key]) for key, t in states[0].items())


def test_removal_between_captured_steps():
    """Told while a stretch has been made and the next is decided already."""
    flow = stream(600)
    alone, ahead = MAKERS["er"](), MAKERS["er"]()
    group, told = BatchedTrainer([ahead], [flow], 10, rows=5), False
    for reached in group.train(0, 600):
        if reached >= 300 and not told:
            assert group._drawn is not None
            told, at = True, reached
            ahead.remove_examples(label=[0, 1])
    observed(alone, flow, 0, at)
    alone.remove_examples(label=[0, 1])
    observed(alone, flow, at)
    states = alone.state_dict(), ahead.state_dict()
    assert all(torch.equal(t, states[1][key]) for key, t in states[0].items())


def test_removal_by_stream_index_label_and_predicate():
    flow = stream(200)
    learner = observed(MAKERS["er+gmed"](), flow)
    memory = learner.memory
    assert int(memory.edit_count.max()) > 0
    stored = memory.stream_index[memory.occupied()].tolist()
    wanted = stored[4]
    assert learner.remove_examples(stream_index=wanted) == 1
    assert learner.remove_examples(stream_index=[wanted, 10**6]) == 0  # it is gone, and the other never was
    ones = int((memory.y[memory.occupied()] == 1).sum())
    assert learner.remove_examples(label=torch.tensor([1])) == ones
    assert not (memory.y[memory.occupied()] == 1).any()
    bright = int((memory.x[memory.occupied()].flatten(1).mean(1) > 0.5).sum())
    assert learner.remove_examples(where=lambda x, y: x.flatten(1).mean(1) > 0.5) == bright > 0
    assert len(memory) == len(stored) - 1 - ones - bright
    assert FineTune(model(), lr=0.1).remove_examples(label=0) == 0
    assert MAKERS["er"]().remove_examples(stream_index=[0]) == 0


def test_removed_values_are_in_no_later_file(tmp_path):
    secret = torch.full((2, 1, 4, 4), 0.123456789)
    learner = ER(model(), lr=0.1, memory=Reservoir(50))
    flow = stream(40)
    observed(learner, flow)
    learner.observe(secret, torch.tensor([0, 1]))
    trace = secret[0].numpy().tobytes()
    learner.save(tmp_path / "before")
    assert learner.remove_examples(stream_index=[40, 41]) == 2
    learner.save(tmp_path / "after")
    assert trace in (tmp_path / "before").read_bytes()
    assert trace not in (tmp_path / "after").read_bytes()
    assert not any(trace in rows.numpy().tobytes() for rows in learner.memory._rows.values())


def test_removed_values_are_not_left_behind_the_last_slot():
    """Where what does not enter is written."""
    learner = ER(model(), lr=0.1, memory=Reservoir(1))
    observed(learner, stream(200))
    learner.remove_examples(where=lambda x, y: y >= 0)
    assert all((rows == 0).all() for name, rows in learner.memory._rows.items() if name != "stream_index")


def test_removal_keeps_parameters_and_learning_continues():
    flow = stream(400)
    learner = observed(MAKERS["er+gmed"](), flow, 0, 200)
    before = {name: t.clone() for name, t in learner.model.state_dict().items()}
    learner.remove_examples(label=[0, 1, 2, 3])
    assert len(learner.memory) == 0
    assert all(torch.equal(before[name], t) for name, t in learner.model.state_dict().items())
    observed(learner, flow, 200)
    assert 0 < len(learner.memory) < 30
    assert learner.memory.num_seen == 400
    assert learner.predict(flow.x[:5]).shape == (5,)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "one of stream_index, label and where"),
        ({"stream_index": 1, "label": 2}, "one of stream_index, label and where"),
        ({"stream_index": 0.5}, "stream_index must be an integer"),
        ({"label": True}, "label must be an integer"),
        ({"label": [[1]]}, "label must be an integer"),
        ({"label": "cat"}, "label cannot be read"),
        ({"where": lambda x, y: y}, "one bool for each of the 30 stored examples"),
        ({"where": lambda x, y: (y == 1)[:3]}, r"torch.bool \(3,\)"),
        ({"where": lambda x, y: None}, "cannot be read"),
    ],
)
def test_empty_removal_requests_change_nothing(request_, message):
    learner = observed(MAKERS["er"](), stream(100))
    before = learner.state_dict()
    with pytest.raises((UsageError, InputError), match=message):
        learner.remove_examples(**request_)
    assert all(torch.equal(before[name], t) for name, t in learner.state_dict().items())


def test_a_slot_without_an_example_cannot_be_emptied():
    memory = Mirror("reservoir", 5, 0)
    memory.insert(3)
    for slots in ([3], [0, 5], [-1]):
        with pytest.raises(UsageError, match=r"memory\.occupied"):
            memory.memory.remove(np.array(slots))
    memory.check()


def test_oracle_refuses_removal():
    learner = observed(ER(model(), lr=0.1, memory=Reservoir(9), editing=OptimalEdit(alpha=0.01)), stream(50))
    with pytest.raises(UsageError, match="OptimalEdit stores every example"):
        learner.remove_examples(label=1)


def test_a_damaged_state_is_still_refused():
    learner = observed(MAKERS["er"](), stream(100))
    learner.remove_examples(label=1)
    state = learner.state_dict()
    other = MAKERS["er"]()
    other.load_state_dict(state)
    assert gmed.learners.ER.remove_examples(other, label=2) > 0
    for damage in (-1, -3):
        broken = {**state, "memory.origin": torch.full_like(state["memory.origin"], damage)}
        with pytest.raises(UsageError, match="corrupt"):
            MAKERS["er"]().load_state_dict(broken)
