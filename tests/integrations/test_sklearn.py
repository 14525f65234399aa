"""The scikit-learn estimator: scikit-learn's checks, pipelines, streams, files and errors."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from gmed.errors import UsageError
from gmed.sklearn import GMEDClassifier


@pytest.mark.slow
@parametrize_with_checks([GMEDClassifier(), GMEDClassifier(memory=0)])
def test_sklearn_estimator_checks_pass(estimator, check):
    check(estimator)


def digits(seed=0):
    """Rows to learn from and to test with."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    X, y = X[order], y[order]
    return X[360:], y[360:], X[:360], y[:360]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_class_incremental_digits_with_memory(seed):
    """One pass over the digits in order, 0 to 9, ten rows at a time, with room for 200."""
    X, y, X_test, y_test = digits(seed)
    order = np.argsort(y, kind="stable")
    model = GMEDClassifier(memory=200, random_state=seed)
    for rows in np.array_split(order, len(order) // 10):
        model.partial_fit(X[rows], y[rows])
    assert model.classes_.tolist() == list(range(10))
    assert model.score(X_test, y_test) > 0.8


def test_class_incremental_digits_without_memory_are_forgotten():
    X, y, X_test, y_test = digits()
    order = np.argsort(y, kind="stable")
    model = GMEDClassifier(memory=0, random_state=0).partial_fit(X[order], y[order])
    assert model.score(X_test, y_test) < 0.4


@pytest.mark.slow
def test_fit_on_all_digits_at_once():
    X, y, X_test, y_test = digits()
    assert GMEDClassifier(random_state=0).fit(X, y).score(X_test, y_test) > 0.93


def test_one_partial_fit_call_equals_many():
    """Rows in one call, or ten at a time, but for the units, which a longer call knows better from the start."""
    X, y, _, _ = digits()
    one, many = (GMEDClassifier(random_state=0, standardize=False, learning_rate=0.01) for _ in range(2))
    one.partial_fit(X[:200], y[:200], classes=range(10))
    for start in range(0, 200, one.batch_size):
        many.partial_fit(X[start : start + one.batch_size], y[start : start + one.batch_size], classes=range(10))
    np.testing.assert_array_equal(one.predict_proba(X), many.predict_proba(X))


def test_results_depend_only_on_the_seed():
    X, y, X_test, _ = digits()
    found = [GMEDClassifier(random_state=s).partial_fit(X[:300], y[:300]).predict_proba(X_test) for s in (1, 1, 2)]
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


@pytest.mark.slow
def test_tools_around_estimators():
    X, y = load_iris(return_X_y=True)
    names = load_iris().target_names[y]
    model = GMEDClassifier(random_state=0)
    scores = cross_val_score(make_pipeline(MinMaxScaler(), model), X, names, cv=3)
    assert scores.mean() > 0.85
    search = GridSearchCV(model, {"memory": [0, 100], "alpha": [0.0, 0.1]}, cv=3, n_jobs=2).fit(X, names)
    assert search.best_score_ > 0.85 and set(search.predict(X)) <= set(names)
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_by_the_names_of_their_columns(frame):
    X, y = load_iris(return_X_y=True)
    columns = ["sepal length", "sepal width", "petal length", "petal width"]
    table = frame(dict(zip(columns, X.T, strict=True)))
    series = (pd.Series if frame is pd.DataFrame else pl.Series)(load_iris().target_names[y].tolist())
    model = GMEDClassifier(random_state=0).fit(table, series)
    assert model.feature_names_in_.tolist() == columns
    assert set(model.predict(table)) == {"setosa", "versicolor", "virginica"}
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[columns[::-1]])
    np.testing.assert_array_equal(
        model.predict_proba(table), GMEDClassifier(random_state=0).fit(X, series).predict_proba(X)
    )


@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes"],
        np.array(["no", "yes"], dtype=object),
        pd.Series(["no", "yes"]),
        pd.Series(["no", "yes"], dtype="category"),
        pl.Series(["no", "yes"]),
        [False, True],
        np.array([3, 7], dtype=np.uint8),
        [0.0, 1.0],
    ],
)
def test_labels_of_many_kinds(labels):
    X = np.array([[0.0], [1.0]] * 30)
    y = type(labels)(list(labels) * 30) if not isinstance(labels, np.ndarray) else np.tile(labels, 30)
    model = GMEDClassifier(random_state=0).fit(X, y)
    assert model.predict(X[:2]).tolist() == list(labels)


def test_classes_that_appear_later_join_in_order():
    rng = np.random.default_rng(0)
    centres = {"b": 0.0, "d": 10.0, "a": 20.0, "c": 30.0}
    model = GMEDClassifier(random_state=0)
    for _ in range(3):
        for name, centre in centres.items():
            model.partial_fit(rng.normal(centre, 1, (50, 2)), [name] * 50)
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    points = np.array([[centre, centre] for centre in centres.values()])
    assert model.predict(points).tolist() == list(centres)
    proba = model.predict_proba(points)
    np.testing.assert_allclose(proba.sum(1), 1)
    assert model.classes_[proba.argmax(1)].tolist() == list(centres)


# ---------------------------------------------------------------------- bad input

X4, Y4 = np.arange(40.0).reshape(10, 4), np.arange(10) % 3
BAD = {
    "NaN": (np.where(X4 == 7, np.nan, X4), Y4, "NaN"),
    "infinity": (np.where(X4 == 7, np.inf, X4), Y4, "infinity"),
    "too wide": (np.hstack([X4, X4]), Y4, "8 features"),
    "sparse": (scipy.sparse.csr_matrix(X4), Y4, "toarray"),
    "words in X": (X4.astype(str).astype(object) + "x", Y4, "could not convert"),
    "words for numbers": (X4, Y4.astype(str), "labels so far are numbers"),
    "real numbers": (X4, Y4 + 0.5, "continuous"),
    "two columns of labels": (X4, np.stack([Y4, Y4], 1), "y should be a 1d array|multilabel|multioutput"),
    "a label missing": (X4, [None, *Y4[1:].tolist()], "label|NoneType|None"),
    "too few labels": (X4, Y4[:-1], "inconsistent"),
}


def snapshot(model):
    tensors, texts = model._classifier.state()
    kept = {name: value for name, value in vars(model).items() if name != "_classifier"}
    return {name: t.tolist() for name, t in tensors.items()}, texts, kept


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_input_is_refused_and_changes_nothing(bad, method):
    X, y, message = BAD[bad]
    model = GMEDClassifier(random_state=0).partial_fit(X4, Y4)
    before = snapshot(model)
    if method == "fit" and bad in ("too wide", "words for numbers"):
        pytest.skip("a fit begins anew")
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(model, method)(X, y)
    assert snapshot(model) == before
    fresh = GMEDClassifier(random_state=0)
    if bad not in ("too wide", "words for numbers"):
        with pytest.raises((ValueError, TypeError), match=message):
            getattr(fresh, method)(X, y)
        with pytest.raises(NotFittedError):
            fresh.predict(X4)
        assert not hasattr(fresh, "classes_") and not hasattr(fresh, "n_features_in_")


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("memory", -1),
        ("memory", 1.5),
        ("alpha", -0.1),
        ("alpha", "x"),
        ("gamma", 0.0),
        ("learning_rate", 0.0),
        ("batch_size", 0),
        ("hidden", 0),
        ("n_epochs", 0),
        ("random_state", -3),
        ("standardize", "no"),
        ("model", 3),
        ("replay_size", None),
    ],
)
def test_bad_parameters_are_named(parameter, value):
    with pytest.raises(UsageError, match=parameter if parameter != "hidden" else "hidden"):
        GMEDClassifier(**{parameter: value}).fit(X4, Y4)


def test_parameters_changed_during_fitting_are_refused():
    model = GMEDClassifier(random_state=0).partial_fit(X4, Y4)
    model.set_params(learning_rate=0.5)
    with pytest.raises(UsageError, match="learning_rate was changed"):
        model.partial_fit(X4, Y4)
    model.fit(X4, Y4)


# ---------------------------------------------------------------------- files


def test_saved_estimator_continues_exactly(tmp_path):
    X, y, X_test, _ = digits()
    X = pd.DataFrame(X).add_prefix("p")
    X_test = pd.DataFrame(X_test).add_prefix("p")
    model = GMEDClassifier(memory=150, random_state=5, n_epochs=3).partial_fit(X[:300], y[:300])
    model.save(tmp_path / "digits.gmed")
    again = GMEDClassifier.load(tmp_path / "digits.gmed")
    assert again.get_params() == model.get_params() and again.n_samples_seen_ == 300
    assert again.feature_names_in_.tolist() == model.feature_names_in_.tolist()
    for one in (model, again):
        one.partial_fit(X[300:600], y[300:600])
    np.testing.assert_array_equal(again.predict_proba(X_test), model.predict_proba(X_test))


def test_pickled_or_copied_estimator_continues_exactly():
    X, y, X_test, _ = digits()
    own = torch.nn.Sequential(torch.nn.Linear(64, 20), torch.nn.ReLU(), torch.nn.Linear(20, 2))
    for model in (GMEDClassifier(memory=150, random_state=5), GMEDClassifier(model=own, random_state=5)):
        model.partial_fit(X[:300], y[:300])
        again = pickle.loads(pickle.dumps(model))
        for one in (model, again):
            one.partial_fit(X[300:600], y[300:600])
        np.testing.assert_array_equal(again.predict_proba(X_test), model.predict_proba(X_test))
    assert pickle.loads(pickle.dumps(GMEDClassifier(memory=3))).memory == 3


def test_numpy_scalars_as_parameters(tmp_path):
    """As RandomizedSearchCV draws them."""
    given = {"memory": np.int64(20), "learning_rate": np.float32(0.1), "standardize": np.True_, "n_epochs": np.int32(2)}
    model = GMEDClassifier(**given, random_state=np.int64(3)).fit(X4, Y4)
    model.save(tmp_path / "file")
    for again in (GMEDClassifier.load(tmp_path / "file"), pickle.loads(pickle.dumps(model))):
        assert again.partial_fit(X4, Y4).get_params() == model.get_params()


@pytest.mark.parametrize("names", ["[1]", '"abcd"', "[1, 2, 3, 4]", "3"])
def test_damaged_feature_names_are_refused(tmp_path, names):
    model = GMEDClassifier().fit(X4, Y4)
    model._classifier.save(tmp_path / "file", feature_names=names)
    with pytest.raises(UsageError, match="file: its feature names are damaged"):
        GMEDClassifier.load(tmp_path / "file")


def test_unfitted_estimator_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError):
        GMEDClassifier().save(tmp_path / "file")
    with pytest.raises(UsageError, match="no such file"):
        GMEDClassifier.load(tmp_path / "file")


@pytest.mark.slow
def test_missing_sklearn_says_what_to_install():
    code = "import sys; sys.modules['sklearn'] = None; import gmed; import gmed.sklearn"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'gmed[sklearn]'" in found.stderr
