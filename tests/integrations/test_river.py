"""Prequential evaluation and the River classifier."""

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import checks, datasets, evaluate, metrics, preprocessing
from river.tree import HoeffdingTreeClassifier
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from gmed.errors import InputError, UsageError
from gmed.evaluate import prequential
from gmed.online import ClassifierConfig, OnlineClassifier
from gmed.river import GMEDClassifier
from gmed.sklearn import GMEDClassifier as Estimator


class Parrot:
    """Says the last label it was told."""

    last = None

    def partial_fit(self, X, y):
        self.last = y[-1]

    def predict(self, X):
        return [self.last] * len(X)

    def learn_one(self, x, y):
        self.last = y

    def predict_one(self, x):
        return self.last


class BatchParrot(Parrot):
    learn_one = None


X, Y = np.arange(14.0).reshape(7, 2), np.array([0, 0, 1, 1, 1, 0, 1])


def test_prequential_accuracy_by_hand():
    one_by_one = prequential(Parrot(), (X, Y), window=3)
    assert one_by_one.examples == 7  # None 0 0 1 1 1 0 against 0 0 1 1 1 0 1
    assert one_by_one.accuracy == 3 / 7
    assert one_by_one.curve == [(3, 1 / 3), (6, 2 / 3), (7, 0.0)]
    in_pairs = prequential(BatchParrot(), (X, Y), batch_size=2)  # - - | 0 0 | 1 1 | 0 against 0 0 | 1 1 | 1 0 | 1
    assert in_pairs.accuracy == 1 / 7
    assert in_pairs.curve == [(7, 1 / 7)]


@pytest.mark.parametrize(
    "stream",
    [
        (X, Y),
        (pd.DataFrame(X), pd.Series(Y)),
        (pl.DataFrame(X), pl.Series(Y)),
        list(zip(X, Y, strict=True)),
        list(zip(X.tolist(), Y.tolist(), strict=True)),
        [({"a": a, "b": b}, y) for (a, b), y in zip(X.tolist(), Y.tolist(), strict=True)],
    ],
)
@pytest.mark.parametrize("model", [Parrot, BatchParrot, lambda: GMEDClassifier(buffer=1), Estimator])
def test_streams_of_every_form(stream, model):
    told = []
    found = prequential(model(), stream, batch_size=1, progress=lambda done, total: told.append((done, total)))
    assert found.examples == 7 and told == [(n, 7) for n in range(1, 8)]
    if model in (Parrot, BatchParrot):
        assert found.accuracy == 3 / 7


def test_against_a_plain_loop():
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    model, right = Estimator(random_state=0), 0
    for start in range(0, 300, 10):
        right += (model.predict(X[start : start + 10]) == y[start : start + 10]).sum() if start else 0
        model.partial_fit(X[start : start + 10], y[start : start + 10])
    assert prequential(Estimator(random_state=0), (X, y)).accuracy == right / 300


def test_against_rivers_own_evaluation():
    model = HoeffdingTreeClassifier()
    accuracy = evaluate.progressive_val_score(datasets.Phishing(), model.clone(), metrics.Accuracy()).get()
    found = prequential(model, datasets.Phishing())
    assert found.examples == 1250
    assert found.accuracy * 1250 == pytest.approx(accuracy * 1249)  # River leaves out what was not predicted


def test_models_that_need_all_classes_in_advance():
    found = prequential(SGDClassifier(random_state=0), (X, Y), batch_size=2, classes=[0, 1])
    assert found.examples == 7


def test_errors_are_reported():
    with pytest.raises(UsageError, match="object has neither partial_fit"):
        prequential(object(), (X, Y))
    with pytest.raises(UsageError, match="empty"):
        prequential(Parrot(), [])
    with pytest.raises(UsageError, match="7 rows but 6 labels"):
        prequential(Parrot(), (X, Y[:6]))


# ---------------------------------------------------------------------- River's model


@pytest.mark.slow
@pytest.mark.parametrize("check", list(checks.yield_checks(GMEDClassifier())), ids=lambda check: check.__name__)
def test_river_estimator_checks_pass(check):
    check(GMEDClassifier(ClassifierConfig(hidden=8, updates_per_batch=1)))


def test_river_model_equals_classifier_with_batches_of_ten():
    examples = list(datasets.Phishing())[:205]
    model, names = GMEDClassifier(seed=4), sorted(examples[0][0])
    expected = OnlineClassifier(ClassifierConfig(), inputs=len(names), seed=4)
    for x, y in examples:
        model.learn_one(x, y)
    X, y = np.array([[x[name] for name in names] for x, _ in examples], dtype=float), np.array([y for _, y in examples])
    for start in range(0, 200, 10):
        expected.learn(X[start : start + 10], y[start : start + 10])
    assert [model.predict_one(x) for x, _ in examples] == expected.predict(X).tolist()
    model.flush()
    expected.learn(X[200:], y[200:])
    assert [model.predict_one(x) for x, _ in examples] == expected.predict(X).tolist()


def test_river_pipeline():
    model = preprocessing.OneHotEncoder() | GMEDClassifier(seed=0)
    for number in range(300):
        model.learn_one({"colour": "red" if number % 2 else "blue"}, "stop" if number % 2 else "go")
    assert model.predict_one({"colour": "red"}) == "stop" and model.predict_one({"colour": "blue"}) == "go"


def test_missing_features_are_mean_imputed_and_new_ones_ignored():
    rng, model = np.random.default_rng(0), GMEDClassifier(seed=0)
    for _ in range(200):
        a, b = rng.normal(size=2)
        model.learn_one({"a": 5 + a, "b": b}, bool(a > 0))
    mean = model._classifier.units.moments()[0][0]
    assert model.predict_proba_one({"b": 0.1, "c": 9}) == model.predict_proba_one({"a": mean, "b": 0.1})
    assert model.predict_proba_one({"a": None, "b": 0.1}) == model.predict_proba_one({"a": mean, "b": 0.1})


def test_non_numeric_features_are_named():
    model = GMEDClassifier()
    with pytest.raises(InputError, match="feature 'colour' is 'red', not a number; encode it"):
        model.learn_one({"colour": "red"}, 1)
    with pytest.raises(InputError, match="infinite"):
        model.learn_one({"size": float("inf")}, 1)
    with pytest.raises(InputError, match="no features"):
        model.learn_one({}, 1)
    assert model.predict_one({"a": 1}) is None


def test_predictions_before_the_first_step_use_waiting_labels():
    model = GMEDClassifier()
    for label in ("a", "b", "b", "b"):
        model.learn_one({"x": 1.0}, label)
    assert model.predict_proba_one({"x": 1.0}) == {"a": 0.25, "b": 0.75}


@pytest.mark.slow
def test_missing_river_says_what_to_install():
    code = "import sys; sys.modules['river'] = None; import gmed.river"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'gmed[river]'" in found.stderr
