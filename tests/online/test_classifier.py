"""The online classifier: feature scaling, late classes, growth, rollback and files."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gmed
from gmed.errors import DivergedError, InputError, UsageError
from gmed.io.state import read_state, write_state
from gmed.online import ClassifierConfig, LabelEncoder, OnlineClassifier, RunningScaler
from gmed.online.scaling import CLIP_STD

NETWORKS_OF_THEIR_OWN = ["cn-dpm", "prog-nn", "comp-cl", "er-expanded"]
QUICK = ClassifierConfig(memory=30, hidden=8, batch_size=10)


def rows(count, classes=3, features=4, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=count)
    return rng.normal(size=(count, features)) * [1, 10, 100, 1000] + np.outer(y, [1, 20, 0, 500]), y


def state(model):
    tensors, texts = model.state()
    return {name: t.tolist() for name, t in tensors.items()} | texts


# ---------------------------------------------------------------------- units


@given(st.integers(0, 10**6), st.lists(st.integers(1, 90), min_size=1, max_size=8))
def test_scaler_statistics_equal_those_of_all_rows(seed, sizes):
    """Whatever batches the rows come in, against NumPy's mean and deviation of all of them."""
    x = np.random.default_rng(seed).normal([0, 1e6, 3], [1, 10, 0], size=(sum(sizes), 3))
    known, start = RunningScaler.of(x[: sizes[0]]), sizes[0]
    for size in sizes[1:]:
        known, start = known.update(x[start : start + size]), start + size
    mean, deviation = known.moments()
    assert known.count == len(x)
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(deviation, x.std(0), rtol=1e-6, atol=1e-9)


def test_first_scaling_equals_sklearn_standard_scaler():
    from sklearn.preprocessing import StandardScaler

    x, _ = rows(50)
    x[:, 3] = 7.3  # never varies
    np.testing.assert_allclose(
        RunningScaler.of(x).transform(x), StandardScaler().fit_transform(x), rtol=1e-5, atol=1e-6
    )


def test_constant_feature_is_recognized_despite_rounding():
    x = np.full((7, 1), 0.1)
    known = RunningScaler.of(x)
    for _ in range(50):
        known = known.update(x)
    assert known.scale.tolist() == [1.0]
    assert np.abs(known.transform(x)).max() < 1e-6


def test_scaling_is_updated_every_ten_percent_of_rows():
    x, _ = rows(1000)
    known, renewed = RunningScaler.of(x[:100]), []
    for start in range(100, 1000, 10):
        later = known.update(x[start : start + 10])
        renewed += [start + 10] * (not later.same_scale(known))
        known = later
    expected, since = [], 100
    for count in range(110, 1001, 10):
        if count >= 1.1 * since:
            expected, since = [*expected, count], count
    assert renewed == expected


def test_extreme_value_updates_scaling_and_is_clipped():
    x = np.random.default_rng(0).normal(size=(1000, 2))
    known = RunningScaler.of(x)
    far = known.update(np.array([[1e6, 0.0]]))
    assert not far.same_scale(known) and known.update(x[:1]).same_scale(known)
    assert known.transform(np.array([[25.0, 0.0]]))[0, 0] == CLIP_STD


def test_rescaling_equals_scaling_raw_values():
    x, _ = rows(200)
    old, new = RunningScaler.of(x[:50]), RunningScaler.of(x[:50]).update(x[50:])
    z = torch.from_numpy(old.transform(x[:20]))
    old.rescale_to(z, to=new)
    np.testing.assert_allclose(z.numpy(), new.transform(x[:20]), rtol=1e-4, atol=1e-5)


def test_stored_rows_are_rescaled_with_the_units():
    """Against a memory of raw float64 rows: what is stored, put back into raw values, is what was observed."""
    x, y = rows(3000)
    x *= np.linspace(1, 30, 3000)[:, None]  # the deviation never settles
    model = OnlineClassifier(ClassifierConfig(memory=50, hidden=8, alpha=0.0), inputs=4)
    units = set()
    for start in range(0, 3000, 10):
        model.learn(x[start : start + 10], y[start : start + 10])
        units.add(model.units.since)
    memory = model.learner.memory
    raw = memory.x.numpy().astype(np.float64) * model.units.scale + model.units.shift
    assert len(units) > 30  # so many conversions, and no more rounding than one
    np.testing.assert_allclose(raw, x[memory.stream_index.numpy()], rtol=0, atol=1e-5 * x.std(0).max())
    assert memory.y.tolist() == y[memory.stream_index.numpy()].tolist()


def test_edit_stride_is_in_current_units():
    """Edited by hand, in standardized values, with ``edit_examples``."""
    x, y = rows(40)
    settings = ClassifierConfig(memory=10, hidden=8, alpha=3.0, beta=0.1, learning_rate=0.1)
    model = OnlineClassifier(settings, inputs=4)
    model.learn(x[:10], y[:10])
    model.learn(x[10:20], y[10:20])
    learner = copy.deepcopy(model.learner)
    later = model.units.update(x[20:30])
    assert not later.same_scale(model.units)
    model.units.rescale_to(learner.memory.x, to=later)
    drawn = gmed.retrieval.uniform(learner.memory.occupied(), 10, learner.random("replay"))
    new = torch.from_numpy(later.transform(x[20:30])), torch.from_numpy(y[20:30])
    held = learner.memory.x[drawn], learner.memory.y[drawn]
    edited = gmed.edit_examples(learner.model, *held, *new, lr=0.1, alpha=3.0, beta=0.1, batch_size=10)

    model.learn(x[20:30], y[20:30])
    kept = (model.learner.memory.stream_index[drawn] < 20).nonzero().flatten()  # not overwritten by the new rows
    assert len(kept) >= 2
    torch.testing.assert_close(model.learner.memory.x[drawn][kept], edited[kept], rtol=1e-4, atol=1e-5)


def test_the_scale_of_a_feature_does_not_matter():
    """Metres or millimetres, Celsius or Kelvin: the same model, to rounding."""
    x, y = rows(300)
    models = []
    for factor, offset in ((1, 0), (1000, 273)):
        model = OnlineClassifier(QUICK, inputs=4)
        for start in range(0, 300, 10):
            model.learn(x[start : start + 10] * factor + offset, y[start : start + 10])
        models.append(model.scores(x * factor + offset))
    np.testing.assert_allclose(*models, rtol=1e-2, atol=1e-2)


# ---------------------------------------------------------------------- the learner underneath


def test_without_standardization_classifier_equals_the_paper_learner():
    """Bit for bit: parameters and memory after a class-by-class stream whose classes are known."""
    x, y = rows(200, classes=4)
    x = x / 1000
    settings = ClassifierConfig(memory=40, hidden=8, alpha=2.0, beta=0.1, standardize=False, batch_size=10)
    model = OnlineClassifier(settings, inputs=4, seed=3)
    model.learn(x, y, classes=np.arange(4))
    with gmed.rng.seeded_torch(3, "weights"):
        module = gmed.models.MLP(4, 8, 4)
    editing = gmed.editing.GMED(alpha=2.0, beta=0.1)
    learner = gmed.learners.ER(
        module,
        lr=settings.learning_rate,
        memory=gmed.memory.Reservoir(40),
        editing=editing,
        updates_per_batch=3,
        seed=3,
    )
    for start in range(0, 200, 10):
        learner.observe(x[start : start + 10].astype(np.float32), y[start : start + 10])
    ours, theirs = model.learner.state_dict(), learner.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_zero_memory_is_fine_tuning_and_zero_stride_is_replay():
    assert type(ClassifierConfig(memory=0).make_learner(4, 2, 0)).__name__ == "FineTune"
    assert ClassifierConfig(alpha=0.0).make_learner(4, 2, 0).editing is None
    assert ClassifierConfig(alpha=0.2, edit_steps=2).make_learner(4, 2, 0).editing.steps == 2


# ---------------------------------------------------------------------- classes that appear late


def test_new_classes_keep_other_scores_and_memory():
    x, y = rows(60)
    model = OnlineClassifier(QUICK, inputs=4)
    model.learn(x, y)
    before, learner = model.scores(x), copy.deepcopy(model.learner)
    learner.add_classes(5)
    after = learner.logits(model.units.transform(x)).numpy()
    np.testing.assert_allclose(after[:, :3], before, rtol=1e-5, atol=1e-6)
    assert all(
        torch.equal(a, b)
        for a, b in zip(learner.memory.state_dict().values(), model.learner.memory.state_dict().values(), strict=True)
    )


def test_classes_are_sorted_in_any_order_of_appearance():
    x, _ = rows(10)
    model = OnlineClassifier(QUICK, inputs=4)
    for name in ("m", "z", "a"):
        model.learn(x, np.full(10, name))
    assert model.labels.classes.tolist() == ["a", "m", "z"]
    assert model.labels.classes_by_output.tolist() == ["m", "z", "a"]
    scores = model.learner.logits(model.units.transform(x)).numpy()
    np.testing.assert_array_equal(model.scores(x), scores[:, [2, 0, 1]])


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5), min_size=1, max_size=6))
def test_outputs_keep_their_class(batches):
    labels, given_out = None, {}
    for batch in batches:
        y = np.array(batch)
        labels = LabelEncoder.from_labels(y) if labels is None else labels.extended(y)
        for name, output in zip(y.tolist(), labels.encode(y).tolist(), strict=True):
            assert given_out.setdefault(name, output) == output
        assert labels.classes.tolist() == sorted(given_out)
    assert LabelEncoder.from_json(labels.to_json()).classes_by_output.tolist() == labels.classes_by_output.tolist()


def test_every_kind_of_learner_can_grow():
    from gmed.engine import METHODS, get_benchmark, resolve
    from gmed.learners import TaskAware

    for name, recipe in METHODS.items():
        if recipe.order is not None or name in NETWORKS_OF_THEIR_OWN:
            continue
        text = {"hal": "hal(anchor_steps=2)", "er-aug": "er-aug(rotation=0.0,scaling=0.0,crop=0)"}.get(name, name)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 2))
        learner = resolve(get_benchmark("split-mnist"), text).make_learner(model, 0)
        x, task = torch.rand(4, 1, 4, 4), ([0] if isinstance(learner, TaskAware) else [])
        learner.observe(x, torch.tensor([0, 1, 0, 1]), *task)
        before = learner.logits(x)
        learner.add_classes(4)
        torch.testing.assert_close(learner.logits(x)[:, :2], before)
        learner.observe(x, torch.tensor([0, 3, 2, 1]), *task)
        assert learner.logits(x).shape == (4, 4), name


@pytest.mark.parametrize("name", NETWORKS_OF_THEIR_OWN)
def test_expandable_learners_refuse_to_grow_outputs(name):
    from gmed.engine import get_benchmark, resolve

    learner = resolve(get_benchmark("split-mnist"), name).make_learner(gmed.models.MLP(16, 6, 2), 0)
    before = learner.state_dict()
    with pytest.raises(UsageError, match="cannot be given more outputs"):
        learner.add_classes(4)
    assert all(torch.equal(tensor, before[key]) for key, tensor in learner.state_dict().items())


def test_adam_keeps_its_moments_when_outputs_are_added():
    torch.manual_seed(0)
    learner = gmed.learners.ERAdam(gmed.models.MLP(4, 6, 2), lr=0.1, adam_lr=0.01, memory=gmed.memory.Reservoir(20))
    x = torch.rand(4, 4)
    learner.observe(x, torch.tensor([0, 1, 0, 1]))
    mean = learner.adam.mean[-1].clone()
    learner.add_classes(3)
    assert learner.adam.mean[-1].tolist() == [*mean.tolist(), 0.0]
    learner.observe(x, torch.tensor([2, 1, 0, 2]))
    assert learner.adam.mean[-1][2] != 0 and learner.logits(x).shape == (4, 3)


def test_the_residual_network_can_grow():
    model = gmed.models.ResNet18(classes=2, width=2).eval()
    x = torch.rand(2, 3, 32, 32)
    before = model(x)
    gmed.models.expand_outputs(model, 5)
    torch.testing.assert_close(model(x)[:, :2], before)
    assert model(x).shape == (2, 5)
    with pytest.raises(UsageError, match="cannot be reduced to 3"):
        gmed.models.expand_outputs(model, 3)


def test_models_that_cannot_grow_say_so_before_anything_changes():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return self.layer(x)

    x, _ = rows(10)
    model = OnlineClassifier(ClassifierConfig(model=Own()), inputs=4)
    model.learn(x, np.arange(10) % 2)
    before = state(model)
    with pytest.raises(UsageError, match="cannot be given more outputs"):
        model.learn(x, np.arange(10) % 3)
    assert state(model) == before


def test_custom_model_with_spare_outputs():
    x, _ = rows(10)
    module = nn.Linear(4, 6)
    model = OnlineClassifier(ClassifierConfig(model=module), inputs=4)
    model.learn(x, np.arange(10) % 2)
    assert model.scores(x).shape == (10, 2)
    model.learn(x, np.arange(10) % 5)
    assert model.scores(x).shape == (10, 5) and model.learner.classes == 6
    model.learn(x, np.arange(10))
    assert model.scores(x).shape == (10, 10) and module.out_features == 6


def test_many_rows_are_predicted_in_blocks(monkeypatch):
    x, y = rows(100)
    model = OnlineClassifier(QUICK, inputs=4)
    model.learn(x, y, classes=np.array([]))
    whole = model.scores(x)
    monkeypatch.setattr("gmed.online.classifier.BLOCK", 7)
    np.testing.assert_allclose(model.scores(x), whole, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- failures


BAD = {
    "a NaN": lambda x, y: (np.where(np.arange(4) == 2, np.nan, x), y),
    "an infinity": lambda x, y: (np.where(np.arange(4) == 2, np.inf, x), y),
    "too wide": lambda x, y: (np.hstack([x, x]), y),
    "too few labels": lambda x, y: (x, y[:-1]),
    "no rows": lambda x, y: (x[:0], y[:0]),
    "words for numbers": lambda x, y: (x, y.astype(str)),
    "a missing label": lambda x, y: (x, np.where(y == 0, None, y)),
    "labels that are NaN": lambda x, y: (x, np.where(y == 0, np.nan, y)),
    "values too large": lambda x, y: (x * 1e200, y),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_rows_change_nothing(bad):
    x, y = rows(60)
    model = OnlineClassifier(QUICK, inputs=4)
    model.learn(x[:30], y[:30])
    before = state(model)
    with pytest.raises(InputError):
        model.learn(*BAD[bad](x[30:], y[30:]))
    assert state(model) == before
    model.learn(x[30:], y[30:])


def test_divergence_in_the_middle_of_a_call_changes_nothing():
    """A learning rate that blows up: the steps of the call before the one that failed are undone too."""
    x, y = rows(500)
    model = OnlineClassifier(ClassifierConfig(learning_rate=1e6, updates_per_batch=1, hidden=8, memory=30), inputs=4)
    model.learn(x[:10], y[:10])
    before, diverged = state(model), False
    for start in range(10, 500, 50):
        try:
            model.learn(x[start : start + 50], np.append(y[start : start + 49], 99 + start))
        except DivergedError:
            diverged = True
            break
        before = state(model)
    assert diverged and state(model) == before


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("labels", [np.array(["ä", "b,", "c"]), np.array([-3, 5, 2**40]), np.array([0.5, 1.5, 2.5])])
@pytest.mark.parametrize(
    "settings", [QUICK, ClassifierConfig(memory=0, hidden=8), ClassifierConfig(standardize=False, hidden=8)]
)
def test_loaded_classifier_continues_bit_for_bit(tmp_path, labels, settings):
    x, y = rows(200)
    y = labels[y]
    kept, gone = OnlineClassifier(settings, inputs=4, seed=1), OnlineClassifier(settings, inputs=4, seed=1)
    x = x if settings.standardize else x / 1000
    for model in (kept, gone):
        for start in range(0, 100, 10):
            model.learn(x[start : start + 10], y[start : start + 10])
    gone.save(tmp_path / "model", note="more")
    gone, texts = OnlineClassifier.load(tmp_path / "model")
    assert texts["note"] == "more" and state(gone) == state(kept)
    for model in (kept, gone):
        for start in range(100, 200, 10):
            model.learn(x[start : start + 10], y[start : start + 10])
    assert state(gone) == state(kept)
    assert gone.predict(x).tolist() == kept.predict(x).tolist()


def test_flipped_bytes_are_detected(tmp_path):
    """Refused, wherever the damage is."""
    x, y = rows(30)
    model = OnlineClassifier(QUICK, inputs=4)
    model.learn(x, y)
    path = tmp_path / "model"
    model.save(path)
    sound = path.read_bytes()
    for place in np.random.default_rng(0).integers(len(sound), size=60).tolist():
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(UsageError, match="model"):
            OnlineClassifier.load(path)
    for length in (0, 7, 100, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(UsageError, match="model"):
            OnlineClassifier.load(path)


TAMPERED = {
    "settings": [
        "[]",
        "{}",
        '{"memory": "x", "model": null}',
        '{"model": null, "hidden": 0}',
        '{"model": null, "os": 1}',
    ],
    "labels": [
        "[]",
        '{"type": "object", "met": [1]}',
        '{"type": "int64", "met": [1, 1, 2]}',
        '{"type": "int64", "met": []}',
    ],
    "counts": ["{}", '{"inputs": 5, "seed": 0, "rows": 30}', '{"inputs": 4, "seed": -1, "rows": 30}', "nonsense"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in TAMPERED.items() for text in texts])
def test_a_file_that_was_tampered_with_is_refused(tmp_path, name, text):
    """With a checksum that fits: what it says is checked too."""
    x, y = rows(30)
    model = OnlineClassifier(QUICK, inputs=4)
    model.learn(x, y)
    model.save(tmp_path / "model")
    tensors, texts = read_state(tmp_path / "model", {})
    write_state(tmp_path / "bad", tensors, {k: v for k, v in texts.items() if k != "format"} | {name: text})
    with pytest.raises(UsageError, match="bad"):
        OnlineClassifier.load(tmp_path / "bad")


@pytest.mark.parametrize(
    "name", ["units.scale", "units.since", "learner.memory.x", "learner.model.1.weight", "learner.steps"]
)
@pytest.mark.parametrize("damage", ["missing", "negative", "longer"])
def test_tensors_that_do_not_fit_are_refused(tmp_path, name, damage):
    x, y = rows(30)
    model = OnlineClassifier(QUICK, inputs=4)
    model.learn(x, y)
    tensors, texts = model.state()
    if damage == "missing":
        del tensors[name]
    elif damage == "longer":
        tensors[name] = torch.cat([tensors[name].reshape(-1), tensors[name].reshape(-1)])
    else:
        tensors[name] = torch.full_like(tensors[name], -1)
        if name in ("learner.memory.x", "learner.model.1.weight"):
            tensors[name] = tensors[name] * torch.nan
    with pytest.raises(UsageError):
        OnlineClassifier.from_state(tensors, texts)


def test_custom_model_is_passed_again_when_loading(tmp_path):
    x, y = rows(30)
    make = lambda inputs, classes: nn.Linear(inputs, classes)  # noqa: E731
    model = OnlineClassifier(ClassifierConfig(model=make), inputs=4)
    model.learn(x, y)
    model.save(tmp_path / "model")
    with pytest.raises(UsageError, match="pass the same model"):
        OnlineClassifier.load(tmp_path / "model")
    again, _ = OnlineClassifier.load(tmp_path / "model", model=make)
    assert state(again) == state(model) and json.loads(again.settings.to_json())["model"] == "own"
    OnlineClassifier(QUICK, inputs=4).save(tmp_path / "plain")
    with pytest.raises(UsageError, match="omit the parameter model"):
        OnlineClassifier.load(tmp_path / "plain", model=make)
