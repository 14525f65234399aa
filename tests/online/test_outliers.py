"""Outliers in a stream of rows: robust scaling, one warning, stored rows unchanged."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gmed.errors import InputError
from gmed.online import ClassifierConfig, OnlineClassifier, RunningScaler
from gmed.online.scaling import CLIP_STD, EXTREMES
from helpers import fuzzed

QUICK = ClassifierConfig(memory=200, hidden=32)


def table(count, seed=0):
    """Four classes in twenty columns of different sizes, one of which is mostly zero and one constant."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(4, 20)) * 2
    y = rng.integers(4, size=count)
    x = (centers[y] + rng.normal(size=(count, 20))) * np.logspace(-2, 3, 20) + np.linspace(-5, 500, 20)
    x[:, 3] = np.where(rng.random(count) < 0.1, x[:, 3], 0)
    x[:, 4] = 7.0
    return x, y


def learn(model, x, y):
    for start in range(0, len(x), 10):
        model.learn(x[start : start + 10], y[start : start + 10])


def accuracy(model):
    x, y = table(600, seed=1000)
    return float((model.predict(x) == y).mean())


def learned_around(wrong, before, after, seed=0):
    """Accuracy before rows that are wrong, after so many good rows more, and the model."""
    x, y = table(before + after + len(wrong), seed)
    x[before : before + len(wrong)] = wrong
    model = OnlineClassifier(QUICK, inputs=20, seed=seed)
    learn(model, x[:before], y[:before])
    first = accuracy(model) if before else None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learn(model, x[before:], y[before:])
    return first, accuracy(model), model, [str(warning.message) for warning in said], x


GLITCHES = {
    "one row of 999999": np.full((1, 20), 999999.0),
    "one row of -1e12": np.full((1, 20), -1e12),
    "ten rows of 999999": np.full((10, 20), 999999.0),
    "thirty rows of 999999": np.full((30, 20), 999999.0),
    "a row of 1e140": np.full((1, 20), 1e140),
    "one cell of 1e9": np.where(np.arange(20) == 7, 1e9, np.linspace(-5, 500, 20))[None],
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", GLITCHES)
def test_outliers_in_the_middle_are_tolerated(name, seed):
    before, after, *_ = learned_around(GLITCHES[name], before=700, after=500, seed=seed)
    assert before > 0.85
    assert after > before - 0.03


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["one row of 999999", "one row of -1e12", "ten rows of 999999"])
def test_outliers_at_the_beginning_are_tolerated(name, seed):
    _, after, *_ = learned_around(GLITCHES[name], before=0, after=700, seed=seed)
    assert after > 0.85


def test_one_warning_names_rows_and_columns():
    wrong = np.full((1, 20), 999999.0)
    *_, said, _ = learned_around(wrong, before=700, after=500)
    assert len(said) == 1
    assert (
        "999999 in column '0'" in said[0]
        and "Rows, from 0: 700." in said[0]
        and "Columns: 0, 1, 2 and 17 more" in said[0]
    )
    *_, said, _ = learned_around(wrong, before=0, after=300)
    assert len(said) == 1
    *_, said, _ = learned_around(table(1)[0], before=700, after=2000)
    assert not said


def test_estimator_warning_names_columns():
    pytest.importorskip("sklearn")
    pandas = pytest.importorskip("pandas")
    from gmed.sklearn import GMEDClassifier

    x, y = table(210)
    x[200] = 999999
    frame = pandas.DataFrame(x).add_prefix("sensor ")
    model = GMEDClassifier(memory=50, hidden=8, random_state=0).partial_fit(frame[:200], y[:200])
    with pytest.warns(UserWarning, match=r"999999 in column 'sensor 0'.*Rows, from 0: 200\."):
        model.partial_fit(frame[200:], y[200:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(frame[200:], y[200:])


def test_warning_raised_as_error_changes_nothing():
    x, y = table(210)
    model = OnlineClassifier(QUICK, inputs=20)
    learn(model, x[:200], y[:200])
    before = model.state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            model.learn(np.full((1, 20), 1e9), y[:1])
    after = model.state()
    assert before[1] == after[1] and all(torch.equal(before[0][name], after[0][name]) for name in before[0])


@pytest.mark.parametrize("wrong", ["one row of 999999", "ten rows of 999999", "one row of -1e12"])
def test_stored_rows_survive_outliers(wrong):
    """Put back into the columns' own units, what is stored is what was observed."""
    x, y = table(1500)
    x[700 : 700 + len(GLITCHES[wrong])] = GLITCHES[wrong]
    good = np.ones(1500, dtype=bool)
    good[700 : 700 + len(GLITCHES[wrong])] = False
    model = OnlineClassifier(ClassifierConfig(memory=100, hidden=8, alpha=0.0), inputs=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn(model, x, y)
    memory = model.learner.memory
    stream_index = memory.stream_index[memory.occupied()].numpy()
    kept = good[stream_index]
    raw = model.units.inverse_transform(memory.x[memory.occupied()].numpy())
    assert (stream_index < 700).sum() > 20
    error = np.abs(raw - x[stream_index])[kept] / x[good].std(0).clip(1)
    varying = ~np.isin(np.arange(20), [3, 4])  # the one that is mostly zero has values beyond reach
    assert error[:, varying].max() < 1e-4
    assert error[:, 4].max() < 1e-4 or wrong == "ten rows of 999999"  # too many for a column that knows no deviation


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("factor", [100.0, 10_000.0])
def test_lasting_change_of_scale_is_followed(factor, seed):
    x, y = table(3000, seed)
    x[1000:] *= factor
    model = OnlineClassifier(QUICK, inputs=20, seed=seed)
    right = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in range(0, 3000, 10):
            rows = slice(start, start + 10)
            if start:
                right += (model.predict(x[rows]) == y[rows]).tolist()
            model.learn(x[rows], y[rows])
    assert np.mean(right[500:990]) > 0.85
    assert np.mean(right[1390:]) > 0.8
    _, deviation = model.units.moments()
    exact = x.std(0)
    assert (deviation[exact > 0] > exact[exact > 0] / 3).all()


def test_rare_outliers_never_change_the_scaling():
    """One row in two thousand, a hundred of them."""
    rng = np.random.default_rng(0)
    known = RunningScaler.of(rng.normal(size=(100, 3)))
    for number in range(100, 200_000, 100):
        x = rng.normal(size=(100, 3))
        x[0] = 999999 if number % 2000 == 0 else x[0]
        known = known.update(x)
    _, deviation = known.moments()
    assert (deviation < 2).all()


def test_scaling_of_earlier_versions_continues():
    """They keep no extremes apart."""
    rng = np.random.default_rng(0)
    x = rng.normal([0, 50], [1, 10], size=(500, 2))
    state = RunningScaler.of(x).without_extremes().state_dict()
    del state["extremes"]
    known = RunningScaler.from_state(state, 2).update(x)
    mean, deviation = known.moments()
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(deviation, x.std(0), rtol=1e-9)
    assert known.update(np.full((1, 2), 1e9)).moments()[1].max() < 11


def test_removed_row_leaves_no_value_in_the_scaling():
    x, y = table(300)
    x[17, 2] = 12345.0
    model = OnlineClassifier(QUICK, inputs=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn(model, x, y)
    assert (model.units.extremes == 12345.0).any()
    scores = model.scores(x)
    model.remove_examples(row=17)
    assert not any((tensor == 12345.0).any() for tensor in model.state()[0].values())
    assert len(model.units.extremes) == 0
    np.testing.assert_array_equal(model.scores(x), scores)
    learn(model, x[:50], y[:50])


COLUMNS = arrays(np.float64, st.tuples(st.integers(1, 60), st.just(2)), elements=st.floats(-1e150, 1e150, width=64))


@fuzzed(100)
@given(COLUMNS, st.lists(st.integers(1, 60), max_size=5))
def test_whatever_values_come_the_scaling_is_finite(x, sizes):
    known = RunningScaler.of(x[: sizes[0]] if sizes else x)
    for size in sizes[1:]:
        known = known.update(x[:size])
    assert np.isfinite(known.shift).all() and np.isfinite(known.scale).all() and (known.scale > 0).all()
    z = known.transform(x)
    assert np.isfinite(z).all() and np.abs(z).max() <= CLIP_STD
    assert np.isfinite(known.inverse_transform(z)).all()
    again = RunningScaler.from_state(known.state_dict(), 2)
    assert (again.update(x).transform(x) == known.update(x).transform(x)).all()
    apart = known.without_extremes()
    assert len(apart.extremes) == 0 and np.isfinite(apart.update(x).scale).all()
    assert len(known.extremes) <= 2 * EXTREMES


def test_values_that_cannot_be_squared_are_refused():
    with pytest.raises(InputError, match="feature 1 are too large"):
        RunningScaler.of(np.array([[1.0, 1e151]]))
