"""Ctrl-C leaves a learner in the state before or after a step, never between."""

import copy
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import gmed
from gmed.editing import GMED
from gmed.io.signals import hold_interrupts
from gmed.learners import BGD, ER, GEM, HAL, MIR, FineTune
from gmed.memory import Reservoir
from helpers import random_batch, states_equal

pytestmark = pytest.mark.slow

PACKAGE = str(Path(gmed.__file__).parent)


def batch(seed):
    return random_batch(8, (6,), 4, seed)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 4))


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.1), nn.ReLU(), nn.Linear(12, 4))


class interrupted_at:  # noqa: N801
    """Inside, SIGINT arrives when the package executes its n-th line."""

    def __init__(self, line):
        self.left = line

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self.trace

    @property
    def arrived(self):
        return self.left <= 0


def modes(learner):
    return [module.training for module in learner.model.modules()]


LEARNERS = {
    "er": lambda: ER(network(), lr=0.1, memory=Reservoir(12)),
    "er+gmed": lambda: ER(network(), lr=0.1, memory=Reservoir(12), editing=GMED(alpha=1.0, beta=0.01)),
    "er+gmed with batch-norm": lambda: ER(
        with_batch_norm(), lr=0.1, memory=Reservoir(12), editing=GMED(alpha=1.0, beta=0.01)
    ),
    "er, two updates": lambda: ER(network(), lr=0.1, memory=Reservoir(12), updates_per_batch=2),
    "mir": lambda: MIR(network(), lr=0.1, memory=Reservoir(12)),
    "finetune": lambda: FineTune(network(), lr=0.1),
    "bgd": lambda: BGD(network(), eta=1.0, samples=2),
    "gem": lambda: GEM(network(), lr=0.1, memory=gmed.memory.TaskRing(12, tasks=2)),
    "hal": lambda: HAL(network(), lr=0.1, memory=Reservoir(12), anchor_weight=0.1),
}


def observe(learner, seed):
    learner.observe(*batch(seed), *([0] if learner.task_aware else []))


@pytest.mark.parametrize("name", LEARNERS)
def test_interrupt_at_any_line_of_a_step_leaves_a_whole_state(name):
    learner = LEARNERS[name]()
    for seed in range(3):
        observe(learner, seed)
    before, was_training = learner.state_dict(), modes(learner)
    expected = copy.deepcopy(learner)
    observe(expected, 3)
    after = expected.state_dict()
    places = {name: id(p) for name, p in learner.model.named_parameters()}
    line = interrupts = 0
    while True:
        line += 5 if line else 1
        with interrupted_at(line) as interrupt:
            try:
                observe(learner, 3)
                raised = False
            except KeyboardInterrupt:
                raised = True
        if not interrupt.arrived:
            break
        interrupts += 1
        assert raised, "an interrupt was swallowed"
        state = learner.state_dict()
        assert states_equal(state, before) or states_equal(state, after), (
            f"torn by an interrupt at line {line} of the step"
        )
        assert modes(learner) == was_training
        assert {name: id(p) for name, p in learner.model.named_parameters()} == places
        learner.load_state_dict(before)
    assert interrupts > 20
    assert not raised
    assert states_equal(learner.state_dict(), after)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


CALLS = {
    "predict": lambda learner: learner.predict(batch(5)[0]),
    "forget": lambda learner: learner.remove_examples(label=[0, 1]),
    "grow": lambda learner: learner.add_classes(6),
    "edit_examples": lambda learner: gmed.edit_examples(
        learner.model, *batch(5), *batch(6), lr=0.1, alpha=1.0, beta=0.01
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["er+gmed", "er+gmed with batch-norm"])
def test_interrupt_at_any_line_of_other_calls_leaves_a_whole_state(name, call):
    learner = LEARNERS[name]()
    for seed in range(3):
        observe(learner, seed)
    done = copy.deepcopy(learner)
    CALLS[call](done)
    after, line = done.state_dict(), 0
    while True:
        line += 1
        attempt = copy.deepcopy(learner)
        before, was_training = attempt.state_dict(), modes(attempt)
        with interrupted_at(line) as interrupt, suppress(KeyboardInterrupt):
            CALLS[call](attempt)
        if not interrupt.arrived:
            break
        state = attempt.state_dict()
        assert states_equal(state, before) or states_equal(state, after)
        assert modes(attempt) == was_training
        assert all(isinstance(p, nn.Parameter) for m in attempt.model.modules() for p in m._parameters.values())
    assert line > 10


def test_second_interrupt_is_not_deferred():
    reached = []

    def hang():
        with hold_interrupts():
            for number in range(3):
                signal.raise_signal(signal.SIGINT)
                reached.append(number)

    with pytest.raises(KeyboardInterrupt):
        hang()
    assert reached == [0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_custom_signal_handlers_run_after_the_step():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with hold_interrupts(), hold_interrupts():
            signal.raise_signal(signal.SIGTERM)
            assert not seen
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_interrupts_in_other_threads_are_not_deferred():
    def work():
        with hold_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
