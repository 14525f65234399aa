"""Damaged and hostile model files load the same classifier or are refused quickly with little memory."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from gmed.errors import UsageError
from gmed.io.state import read_state, write_state
from gmed.online import ClassifierConfig, OnlineClassifier
from helpers import fuzzed

HUGE = [10**9, 10**12, 10**18, 10**25, 2**31, -1, 0, 1.5, "1", None, True, 1e308, [10**9]]


def classifier(rows=30):
    rng = np.random.default_rng(0)
    model = OnlineClassifier(ClassifierConfig(memory=15, hidden=4), inputs=3)
    if rows:
        model.learn(rng.normal(size=(rows, 3)), rng.integers(3, size=rows))
    return model


def state(model):
    tensors, texts = model.state()
    return {name: (str(tensor.dtype), tensor.tolist()) for name, tensor in tensors.items()} | texts


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "sound"
    model = classifier()
    model.save(path, feature_names='["a", "b", "c"]')
    return path.read_bytes(), state(model)


def header(raw):
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def with_header(head, data):
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("change", ["removed", "misspelt", "emptied", "of another file"])
def test_verification_is_not_switched_off_by_damage(tmp_path, sound, change):
    head, data = header(sound[0])
    labels = head["__metadata__"]
    written = labels.pop("checksum")
    labels |= {
        "misspelt": {"checksun": written},
        "emptied": {"checksum": ""},
        "of another file": {"checksum": "0" * 64},
    }.get(change, {})
    labels["counts"] = labels["counts"].replace("30", "31")
    path = tmp_path / "damaged"
    path.write_bytes(with_header(head, data))
    with pytest.raises(UsageError, match="damaged: it"):
        OnlineClassifier.load(path)


def test_classifiers_have_always_had_a_checksum(tmp_path, sound):
    """One that says it is of the first format is no excuse."""
    head, data = header(sound[0])
    head["__metadata__"]["format"] = "gmed-state/1"
    del head["__metadata__"]["checksum"]
    path = tmp_path / "damaged"
    path.write_bytes(with_header(head, data))
    with pytest.raises(UsageError, match="checksum is missing"):
        OnlineClassifier.load(path)


def as_written_before(path, model):
    """In the first format, with a checksum, and units that keep no extremes apart."""
    import gmed.io.state as files

    tensors, texts = model.state()
    del tensors["units.extremes"]
    labels = {"format": "gmed-state/1", "classifier": "gmed-classifier/1", **texts}
    path.write_bytes(save_tensors(tensors, labels | {"checksum": files.checksum(tensors, labels)}))


def test_models_of_earlier_versions_continue(tmp_path):
    model = classifier()
    model._snapshot = model._snapshot.__class__(model.labels, model.units.without_extremes(), model.learner, model.rows)
    as_written_before(tmp_path / "old", model)
    again, _ = OnlineClassifier.load(tmp_path / "old")
    x, y = np.random.default_rng(1).normal(size=(20, 3)), np.arange(20) % 3
    for one in (model, again):
        one.learn(x, y)
    assert state(one) == state(model)
    again.save(tmp_path / "new")
    assert state(OnlineClassifier.load(tmp_path / "new")[0]) == state(model)


def refused_or_the_same(path, expected):
    try:
        model, _ = OnlineClassifier.load(path)
    except UsageError as error:
        assert path.name in str(error)
    else:
        assert state(model) == expected


@fuzzed(60)
@given(data=st.data())
def test_whatever_is_done_to_a_model_file_is_noticed(tmp_path_factory, sound, data):
    raw, expected = sound
    path = tmp_path_factory.getbasetemp() / "model"
    kind = data.draw(st.sampled_from(["flipped", "cut", "label removed", "label renamed", "label added", "tensor"]))
    head, rest = header(raw)
    labels = head["__metadata__"]
    if kind == "flipped":
        changed = bytearray(raw)
        for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
            changed[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(changed)
    elif kind == "cut":
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
    else:
        name = data.draw(st.sampled_from(sorted(labels if kind.startswith("label") else head)))
        if kind == "label removed":
            del labels[name]
        elif kind == "label renamed":
            labels[data.draw(st.text(max_size=9))] = labels.pop(name)
        elif kind == "label added":
            labels[data.draw(st.text(max_size=9))] = data.draw(st.text(max_size=9))
        else:
            head[data.draw(st.text(min_size=1, max_size=9))] = head.pop(name)
        path.write_bytes(with_header(head, rest))
    refused_or_the_same(path, expected)


def number_fields():
    named = json.loads(ClassifierConfig().to_json())
    return [("settings", name) for name in named] + [("counts", name) for name in ("inputs", "seed", "rows")]


@settings(fuzzed(60), deadline=5000)
@given(place=st.sampled_from(number_fields()), value=st.sampled_from(HUGE), rows=st.sampled_from([0, 30]))
def test_whatever_a_model_file_asks_for_takes_little_memory(tmp_path_factory, place, value, rows):
    """With a checksum that fits: somebody means it."""
    path = tmp_path_factory.getbasetemp() / "huge"
    classifier(rows).save(path)
    tensors, texts = read_state(path, {})
    texts.pop("format")
    texts[place[0]] = json.dumps(json.loads(texts[place[0]]) | {place[1]: value})
    write_state(path, tensors, texts)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        OnlineClassifier.load(path)
    except UsageError as error:
        assert "huge" in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.slow
@pytest.mark.parametrize(("part", "name"), [("settings", "hidden"), ("counts", "inputs"), ("settings", "memory")])
def test_settings_that_ask_for_gigabytes_are_refused_in_a_small_process(tmp_path, part, name):
    path = tmp_path / "huge"
    classifier().save(path)
    tensors, texts = read_state(path, {})
    texts.pop("format")
    texts[part] = json.dumps(json.loads(texts[part]) | {name: 60_000})
    write_state(path, tensors, texts)
    code = (
        "import sys, resource; from gmed.online import OnlineClassifier; from gmed.errors import UsageError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: OnlineClassifier.load(sys.argv[1])\n"
        "except UsageError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000)"
    )
    found = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert "huge" in found.stdout and found.stdout.endswith("True\n")


def test_unfitted_model_is_limited_to_available_memory(tmp_path):
    model = OnlineClassifier(ClassifierConfig(hidden=10**9), inputs=3)
    model.save(tmp_path / "huge")
    with pytest.raises(UsageError, match="needs 4e\\+09 GB of memory, more than is available; choose a smaller one"):
        OnlineClassifier.load(tmp_path / "huge")[0].learn(np.zeros((2, 3)), np.array([0, 1]))


def test_file_replaced_while_reading_is_not_reported_as_damaged(tmp_path, monkeypatch):
    import gmed.io.state as files

    path, real = tmp_path / "model", files.read_bytes
    classifier(10).save(tmp_path / "next")
    classifier(30).save(path)

    def read_and_replaced(file):
        content = real(file)
        if (tmp_path / "next").exists():
            (tmp_path / "next").replace(path)
        return content

    monkeypatch.setattr(files, "read_bytes", read_and_replaced)
    assert OnlineClassifier.load(path)[0].rows == 30
    assert OnlineClassifier.load(path)[0].rows == 10


def test_pipe_is_refused_as_model(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="cannot be read"):
        OnlineClassifier.load(tmp_path / "pipe")


def test_loaded_tensors_equal_the_file(sound):
    assert load_tensors(sound[0]).keys() == {name for name in sound[1] if "." in name}
