"""Removal of rows from a classifier's memory on request."""

import numpy as np
import pytest

from gmed.errors import InputError, UsageError
from gmed.online import ClassifierConfig, OnlineClassifier

KEEPS_ALL = ClassifierConfig(memory=200, hidden=8, alpha=0.0)


def learned(settings=KEEPS_ALL):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 3)) * [1, 10, 1000], np.array(["fig", "pear", "yew"])[rng.integers(3, size=90)]
    model = OnlineClassifier(settings, inputs=3)
    for start in range(0, 90, 30):
        model.learn(x[start : start + 30], y[start : start + 30])
    return model, x, y


def stored(model):
    memory = model.learner.memory
    held = memory.occupied()
    return (
        model.units.inverse_transform(memory.x[held].numpy()),
        model.labels.classes_by_output[memory.y[held].numpy()],
        memory.stream_index[held],
    )


def test_removal_by_class_number_and_predicate():
    model, x, y = learned()
    assert model.remove_examples(label="pear") == (y == "pear").sum() and "pear" not in stored(model)[1]
    assert model.remove_examples(label=["pear", "never met"]) == 0
    figs = np.flatnonzero(y == "fig")
    assert model.remove_examples(row=figs[:4].tolist()) == 4 and not set(figs[:4]) & set(stored(model)[2].tolist())
    small = [number for number in stored(model)[2].tolist() if x[number, 2] < 0]
    assert model.remove_examples(where=lambda rows, labels: rows[:, 2] < 0) == len(small)
    held, labels, numbers = stored(model)
    np.testing.assert_allclose(held, x[numbers], rtol=1e-4, atol=1e-3)
    assert labels.tolist() == y[numbers].tolist()
    model.learn(x[:30], y[:30])
    assert model.predict(x).shape == (90,)


def test_invalid_removal_requests_are_refused():
    model, x, y = learned()
    before = len(model.learner.memory)
    for wrong in (
        {},
        {"row": 1, "label": "fig"},
        {"row": 1.5},
        {"label": 3},
        {"label": ["fig", 3]},
        {"where": lambda rows, labels: labels},
    ):
        with pytest.raises((UsageError, InputError)):
            model.remove_examples(**wrong)
    assert len(model.learner.memory) == before
    fitted = OnlineClassifier(KEEPS_ALL, inputs=3)
    assert fitted.remove_examples(label="fig") == 0
    fitted.fit(x, y, passes=2, shuffle=True)
    with pytest.raises(UsageError, match="no numbers"):
        fitted.remove_examples(row=0)
    assert fitted.remove_examples(label="fig") > 0


def test_removal_from_the_estimator_and_its_file(tmp_path):
    pytest.importorskip("sklearn")
    from gmed.sklearn import GMEDClassifier

    _, x, y = learned()
    estimator = GMEDClassifier(memory=200, random_state=0).partial_fit(x, y)
    assert estimator.remove_examples(label="yew") == (y == "yew").sum()
    estimator.save(tmp_path / "model.gmed")
    again = GMEDClassifier.load(tmp_path / "model.gmed")
    assert (
        again.remove_examples(label="yew") == 0
        and again.remove_examples(where=lambda rows, labels: labels == "fig") > 0
    )


def test_removal_without_memory():
    model, *_ = learned(ClassifierConfig(memory=0, hidden=8))
    assert model.remove_examples(label="fig") == 0
