"""The classifier under concurrent calls and interrupts."""

import copy
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import gmed
from gmed.errors import InputError, UsageError
from gmed.online import ClassifierConfig, OnlineClassifier
from helpers import FUZZ_EXAMPLES

sklearn = pytest.importorskip("sklearn")
from gmed.sklearn import GMEDClassifier  # noqa: E402

PACKAGE = str(Path(gmed.__file__).parent)
EVERY = int(os.environ.get("GMED_INTERRUPTS_EVERY", "97"))
"""An interrupt is tried at one line of so many."""


@pytest.fixture
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def rows(seed, classes=3, count=10):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=count)
    return rng.normal(size=(count, 4)) * [1, 10, 100, 1000] + np.outer(y, [1, 20, 0, 500]), y


def batch_norm(features, classes):
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, classes))


SETTINGS = {
    "by default": {},
    "one update": {"updates_per_batch": 1},
    "batch-norm": {"model": batch_norm, "updates_per_batch": 1},
    "no memory": {"memory": 0, "updates_per_batch": 1},
}


def make(name):
    return GMEDClassifier(**{"memory": 30, "hidden": 8, "random_state": 0, **SETTINGS[name]})


def state(model):
    """Everything that it is, to be compared."""
    if not model.__sklearn_is_fitted__():
        return {"features": (getattr(model, "n_features_in_", None), None)}
    tensors, texts = model._classifier.state()
    names = getattr(model, "feature_names_in_", None)
    features = model.n_features_in_, None if names is None else names.tolist()
    return {name: (str(t.dtype), t.tolist()) for name, t in tensors.items()} | texts | {"features": features}


# ---------------------------------------------------------------------- threads


STREAM = [rows(seed, classes=2 + seed // 6) for seed in range(24)]  # classes appear on the way
STREAM[15] = rows(15, classes=4, count=60)  # a call of many steps


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize("name", SETTINGS)
def test_concurrent_prediction_and_learning_do_not_interfere(name):
    alone, snapshots = make(name), []
    for x, y in STREAM:
        alone.partial_fit(x, y)
        snapshots.append((alone.classes_.tolist(), alone.predict_proba(STREAM[0][0])))
    model, found, errors, ended = make(name), [], [], threading.Event()
    model.partial_fit(*STREAM[0])

    def serve():
        try:
            while not ended.is_set():
                found.append(model.predict_proba(STREAM[0][0]))
                assert set(model.predict(STREAM[0][0]).tolist()) <= set(range(6))
                if len(found) % 50 == 0:
                    found.append(copy.deepcopy(model).predict_proba(STREAM[0][0]))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for x, y in STREAM[1:]:
            model.partial_fit(x, y)
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]
    assert state(model) == state(alone)
    assert found
    known = {(len(classes), proba.tobytes()) for classes, proba in snapshots}
    assert all((proba.shape[1], proba.tobytes()) in known for proba in found)


BESIDE = {
    "predict": lambda model: model.predict(STREAM[0][0]),
    "predict_proba": lambda model: model.predict_proba(STREAM[0][0]),
    "state": state,
    "copy": copy.deepcopy,
    "pickle": pickle.dumps,
}
COUNTS = st.integers(2, 30).filter(lambda count: count % 10 != 1)
"""Rows in a call, none of whose steps is of a single row, which batch-norm cannot learn from."""


@pytest.mark.usefixtures("switching_often")
@settings(
    max_examples=int(FUZZ_EXAMPLES or 5),
    derandomize=FUZZ_EXAMPLES is None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    name=st.sampled_from(sorted(SETTINGS)),
    batches=st.lists(st.builds(rows, st.integers(0, 999), st.integers(1, 6), COUNTS), min_size=2, max_size=9),
    asked=st.lists(st.sampled_from(sorted(BESIDE)), min_size=1, max_size=4),
)
def test_whatever_is_called_beside_learning_changes_nothing(name, batches, asked):
    alone, model, errors, ended = make(name), make(name), [], threading.Event()
    for each in (alone, model):
        each.partial_fit(*batches[0])

    def serve():
        try:
            while not ended.is_set():
                for call in asked:
                    BESIDE[call](model)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for x, y in batches[1:]:
            model.partial_fit(x, y)
    finally:
        ended.set()
        thread.join()
    for x, y in batches[1:]:
        alone.partial_fit(x, y)
    assert not errors
    assert state(model) == state(alone)


@pytest.mark.usefixtures("switching_often")
def test_fit_beside_predictions_is_atomic():
    """One fit has four features and numbers for labels, the other two and words."""
    x, y = rows(0, count=40)
    model = GMEDClassifier(memory=0, hidden=4, n_epochs=1, random_state=0).fit(x, y)
    errors, ended = [], threading.Event()

    def serve():
        try:
            while not ended.is_set():
                for given in (x, x[:, :2]):
                    try:
                        kind = model.predict(given).dtype.kind
                    except ValueError as error:
                        assert "features" in str(error)
                    else:
                        assert kind == ("i" if given is x else "U")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        for number in range(30):
            model.fit(*((x, y) if number % 2 else (x[:, :2], y.astype(str))))
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("switching_often")
def test_concurrent_learning_is_serialized():
    model = make("one update")
    threads = [threading.Thread(target=model.partial_fit, args=STREAM[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.n_samples_seen_ == model._classifier.learner.memory.num_seen == sum(len(y) for _, y in STREAM[:20])


def test_copies_and_pickles_have_their_own_locks():
    model = make("by default").partial_fit(*STREAM[0])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), sklearn.base.clone(model)):
        with model._lock, model._classifier._lock:
            thread = threading.Thread(target=other.partial_fit, args=STREAM[1])
            thread.start()
            thread.join(timeout=30)
            assert other.n_samples_seen_ in (10, 20)


# ---------------------------------------------------------------------- interrupts


class interrupted_at:  # noqa: N801
    """Inside, KeyboardInterrupt is due when the package executes its n-th line."""

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


CALLS = {
    "a step": lambda model: model.partial_fit(*rows(50)),
    "several steps": lambda model: model.partial_fit(*rows(50, count=25)),
    "a new class": lambda model: model.partial_fit(*rows(50, classes=5)),
    "a fit": lambda model: model.fit(*rows(50, count=20)),
    "forget": lambda model: model.remove_examples(label=[0, 2]),
}


def check_interrupts(model, call, every):
    """Interrupt the call at one line of so many; how often, and after how many of them something was torn."""
    before, done = state(model), copy.deepcopy(model)
    call(done)
    after, line, interrupts, torn = state(done), 1, 0, 0
    while True:
        attempt = copy.deepcopy(model)
        with interrupted_at(line) as interrupt, suppress(KeyboardInterrupt):
            call(attempt)
        if interrupt.left > 0:
            return interrupts, torn
        interrupts += 1
        found = state(attempt)
        torn += found not in (before, after)
        if found == before:
            call(attempt)
            torn += state(attempt) != after
        line += every


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "call"), [*(("one update", call) for call in CALLS), ("batch-norm", "a step"), ("by default", "a step")]
)
def test_interrupt_at_any_line_leaves_a_whole_state(name, call):
    model = make(name)
    for seed in range(3):
        model.partial_fit(*rows(seed))
    interrupts, torn = check_interrupts(model, CALLS[call], EVERY)
    assert interrupts > 1
    assert torn == 0


def test_interrupted_first_call_leaves_an_unfitted_estimator():
    interrupts, torn = check_interrupts(make("one update"), lambda model: model.partial_fit(*rows(0)), EVERY)
    assert interrupts > 3
    assert torn == 0


def test_a_long_call_can_be_interrupted_before_it_ends():
    """Only a single step is waited for: what many steps learn is let go."""
    model = make("by default").partial_fit(*STREAM[0])
    before = state(model)
    with interrupted_at(3000) as interrupt, pytest.raises(KeyboardInterrupt):
        model.partial_fit(*rows(1, count=2000))
    assert interrupt.left > -3000
    assert state(model) == before


# ---------------------------------------------------------------------- what is asked to be forgotten


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [(["fig", "yew"], 3), ([3, 5], "3"), ([False, True], 1), (["3", "5"], [3, 5]), ([3, 5], None)],
)
def test_labels_of_another_type_are_refused(labels, wrong):
    x = np.arange(40.0).reshape(10, 4)
    model = OnlineClassifier(ClassifierConfig(memory=20, hidden=4), inputs=4)
    model.learn(x, np.array(labels * 5))
    with pytest.raises((InputError, gmed.errors.UsageError)):
        model.remove_examples(label=wrong)
    assert model.remove_examples(label=labels[0]) == 5


def test_unserializable_labels_are_refused():
    x = np.array([[1.0], [2.0]])
    model = OnlineClassifier(ClassifierConfig(memory=0), inputs=1)
    with pytest.raises(InputError, match="not Unicode"):
        model.learn(x, np.array(["a", "\ud800"]))
    model.learn(x, np.array(["a", "b"]))
    tensors, texts = model.state()
    forged = texts | {"labels": texts["labels"].replace('"b"', '"\\ud800"')}
    with pytest.raises(UsageError, match="not Unicode"):
        OnlineClassifier.from_state(tensors, forged)


def test_model_of_another_shape_is_a_gmed_error():
    model = OnlineClassifier(ClassifierConfig(model=lambda inputs, classes: nn.Linear(3, classes)), inputs=4)
    with pytest.raises(gmed.errors.GmedError, match="shape"):
        model.learn(*rows(0))
    assert model.rows == 0
    assert torch.is_grad_enabled()
