"""Calls use one torch thread, restore the setting and do not depend on it."""

import threading

import numpy as np
import pytest
import torch

from gmed.errors import InputError, UsageError
from gmed.kernels.threads import VARIABLE, limit_threads
from gmed.learners import ER
from gmed.memory import Reservoir
from gmed.models import MLP
from gmed.sklearn import GMEDClassifier


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Counting(MLP):
    """Remembers how many threads each forward pass had."""

    def __init__(self):
        super().__init__(4, 8, classes=3)
        self.threads = set()

    def forward(self, x):
        self.threads.add(torch.get_num_threads())
        return super().forward(x)


def batch():
    return torch.rand(6, 4), torch.arange(6) % 3


CALLS = {
    "observe": lambda learner: learner.observe(*batch()),
    "update": lambda learner: learner.update(*batch()),
    "predict": lambda learner: learner.predict(batch()[0]),
    "logits": lambda learner: learner.logits(batch()[0]),
    "features": lambda learner: learner.features(batch()[0]),
}


@pytest.mark.parametrize("call", CALLS)
def test_call_uses_one_thread_and_restores_the_setting(call):
    model = Counting()
    CALLS[call](ER(model, lr=0.1, memory=Reservoir(9)))
    assert model.threads == {1}
    assert torch.get_num_threads() == 3


def test_failing_call_restores_the_setting():
    learner = ER(Counting(), lr=0.1, memory=Reservoir(9))
    with pytest.raises(InputError):
        learner.observe(torch.rand(2, 5), torch.tensor([0, 1]))
    assert torch.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError), limit_threads():
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == 3


def test_other_threads_keep_their_setting():
    found = []
    with limit_threads():
        torch.get_num_threads()
        other = threading.Thread(target=lambda: (torch.set_num_threads(2), found.append(torch.get_num_threads())))
        other.start()
        other.join()
        assert torch.get_num_threads() == 1
    assert found == [2]
    assert torch.get_num_threads() == 3


def learned(threads):
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    model = GMEDClassifier(hidden=64, random_state=0)
    for _ in range(5):
        x = rng.normal(size=(40, 300))
        model.partial_fit(x, (x[:, 0] > 0).astype(int))
    return model.predict_proba(rng.normal(size=(500, 300)))


def test_learning_is_independent_of_the_number_of_threads():
    assert (learned(1) == learned(3)).all()


def test_number_of_threads_is_configurable(monkeypatch):
    model = Counting()
    learner = ER(model, lr=0.1, memory=Reservoir(9))
    monkeypatch.setenv(VARIABLE, "2")
    learner.observe(*batch())
    monkeypatch.setenv(VARIABLE, "0")
    learner.observe(*batch())
    assert model.threads == {2, 3}
    model.threads.clear()
    monkeypatch.setenv(VARIABLE, "2")
    with limit_threads(1):  # as in a worker of a sweep
        learner.observe(*batch())
    assert model.threads == {1}
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(UsageError, match="GMED_THREADS must be a number"):
        learner.observe(*batch())
