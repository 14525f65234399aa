"""Threads may predict, save and remove examples while another one learns."""

import copy
import pickle
import sys
import threading

import pytest
import torch
from torch import nn

from gmed.editing import GMED
from gmed.learners import ER
from gmed.memory import Reservoir
from helpers import random_batch

STEPS = 60


@pytest.fixture(autouse=True)
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def batch(seed):
    return random_batch(8, (6,), 4, seed)


def make_learner():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.ReLU(), nn.Linear(12, 4))
    return ER(model, lr=0.1, memory=Reservoir(30), editing=GMED(alpha=1.0, beta=0.01))


def learn_beside(learner, work):
    """Learn from a stream while another thread calls ``work`` again and again; raise what that raised."""
    errors, ended = [], threading.Event()

    def run():
        try:
            while not ended.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    learner.observe(*batch(0))
    thread = threading.Thread(target=run)
    thread.start()
    try:
        for seed in range(1, STEPS):
            learner.observe(*batch(seed))
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def learn_alone():
    """A learner after the stream, its states after each step and what it predicted then."""
    learner, states, outputs = make_learner(), [], []
    for seed in range(STEPS):
        learner.observe(*batch(seed))
        states.append(learner.state_dict())
        outputs.append(learner.logits(batch(99)[0]))
    return states, outputs


def same(state, other):
    return all(torch.equal(value, other[name]) for name, value in state.items())


def test_concurrent_prediction_and_learning_do_not_interfere():
    states, outputs_alone = learn_alone()
    learner, outputs = make_learner(), []
    learn_beside(learner, lambda: outputs.append(learner.logits(batch(99)[0])))
    assert same(learner.state_dict(), states[-1])
    assert all(module.training for module in learner.model.modules())
    assert outputs
    assert all(any(torch.equal(output, other) for other in outputs_alone) for output in outputs)


def test_concurrently_read_state_is_a_snapshot():
    states, _ = learn_alone()
    learner, read = make_learner(), []
    learn_beside(learner, lambda: read.append(learner.state_dict()))
    assert read
    assert all(same(state, states[int(state["steps"]) - 1]) for state in read)


def test_two_learners_with_dropout_do_not_disturb_each_other():
    states, _ = learn_alone()
    other = make_learner()
    learner = make_learner()
    learn_beside(learner, lambda: other.observe(*batch(7)))
    assert same(learner.state_dict(), states[-1])


def test_copies_and_pickles_have_their_own_locks():
    learner = make_learner()
    learner.observe(*batch(0))
    for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
        with learner._lock:
            thread = threading.Thread(target=other.observe, args=batch(1))
            thread.start()
            thread.join(timeout=30)
            assert other.steps == 2
