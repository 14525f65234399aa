"""Custom data sets: tables, arrays and image folders, divided into tasks."""

import csv
import gzip
import json
import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import gmed
from gmed.cli.app import main
from gmed.data.custom import CustomDataRef, load_custom
from gmed.engine import RunSpec, get_benchmark
from gmed.errors import DataError, GmedError, UsageError
from gmed.experiment import stored_results
from gmed.models import MLP, ResNet18
from gmed.report import collect
from gmed.report.tables import latex_table
from gmed.results import Store
from gmed.results.formatting import to_cli_args
from gmed.results.tuning import GRIDS
from gmed.tuning import tune

KINDS = ["ash", "birch", "cedar", "elm"]


def write_csv(path, rows, header=("a", "b", "season", "kind"), delimiter=","):
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def rows(count=80):
    rng = np.random.default_rng(0)
    return [[*rng.normal(i % 4, 0.1, 2).round(4), ["wet", "dry"][i * 2 // count], KINDS[i % 4]] for i in range(count)]


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "trees.csv", rows())


# ---------------------------------------------------------------- what is read


def test_a_table_by_column(table):
    data = load_custom(table, "kind", "by-column=season")
    assert (data.tasks, data.num_classes, data.in_order) == (2, 4, True)
    assert (len(data.y_train), len(data.y_test)) == (64, 16)
    everything = np.array([row[:2] for row in rows()], dtype=float)
    mean, std = data_statistics(data, everything)
    restored = np.concatenate([data.x_train, data.x_test]) * std + mean
    assert np.allclose(np.sort(restored, axis=0), np.sort(everything, axis=0), atol=1e-5)
    assert np.allclose(data.x_train.mean(0), 0, atol=1e-6)
    assert np.allclose(data.x_train.std(0), 1, atol=1e-5)
    for task, season in enumerate(("wet", "dry")):  # as they first appear, in the order of the file
        own = [row for row in rows() if row[2] == season]
        assert sorted([*data.y_train[data.task_train == task], *data.y_test[data.task_test == task]]) == sorted(
            KINDS.index(row[3]) for row in own
        )
    assert data.x_train.dtype == np.float32


def data_statistics(data, everything):
    """Mean and deviation of the rows that were not held out, found by matching the standardised rows."""
    order = np.argsort(everything[:, 0])
    found = np.concatenate([data.x_train, data.x_test])
    places = order[np.argsort(np.argsort(found[:, 0]))][: len(data.x_train)]
    return everything[places].mean(0), everything[places].std(0)


@pytest.mark.parametrize(
    ("split", "tasks", "left", "in_order"),
    [("by-class", 2, 64, False), ("by-class=1", 4, 64, False), ("by-time=5", 5, 60, True), ("none", 1, 64, False)],
)
def test_ways_to_make_tasks(tmp_path, split, tasks, left, in_order):
    file = write_csv(tmp_path / "t.csv", [[*row[:2], row[3]] for row in rows()], header=("a", "b", "kind"))
    data = load_custom(file, "kind", split)
    assert (data.tasks, data.in_order) == (tasks, in_order)
    if split.startswith("by-class"):
        assert (data.task_train == data.y_train // (4 // tasks)).all()
    if split.startswith("by-time"):
        assert (np.diff(data.task_train) >= 0).all()
        assert np.bincount(data.task_train).tolist() == [12] * 5
    stream = get_benchmark(CustomDataRef.from_path(file, "kind", split).name).make_stream(tmp_path, seed=0)
    assert len(stream) == left  # a fifth of each task, rounded up, is held out
    assert len(stream.tests) == tasks
    again = get_benchmark(CustomDataRef.from_path(file, "kind", split).name).make_stream(tmp_path, seed=1)
    assert torch.equal(stream.x, again.x) == in_order
    assert torch.equal(stream.x.sort(0).values, again.x.sort(0).values)


def test_other_delimiters_and_quotes(tmp_path):
    plain = write_csv(tmp_path / "a.csv", rows())
    other = write_csv(tmp_path / "b.csv", rows(), delimiter=";")
    a, b = load_custom(plain, "kind", "by-column=season"), load_custom(other, "kind", "by-column=season")
    assert np.array_equal(a.x_train, b.x_train)
    quoted = tmp_path / "c.csv"
    quoted.write_text('"a, b",kind\n' + "".join(f'{i},"{k}, wild"\n' for i, k in enumerate(KINDS * 5)))
    assert load_custom(quoted, "kind", "by-class=4").num_classes == 4


def test_parquet_gives_the_same_data(table):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = list(zip(*rows(), strict=True))
    names = ("a", "b", "season", "kind")
    file = table.with_suffix(".parquet")
    pq.write_table(pa.table(dict(zip(names, map(list, content), strict=True))), file)
    a, b = load_custom(table, "kind", "by-column=season"), load_custom(file, "kind", "by-column=season")
    assert np.array_equal(a.x_train, b.x_train)
    assert np.array_equal(a.y_test, b.y_test)


def test_numeric_labels_are_sorted_numerically(tmp_path):
    file = write_csv(tmp_path / "t.csv", [[i, label] for i in range(4) for label in (10, 2, 1)], header=("a", "label"))
    data = load_custom(file, "label", "by-class=1")
    first = np.unique(np.concatenate([data.x_train[data.y_train == 0], data.x_test[data.y_test == 0]]))
    assert data.num_classes == 3
    assert len(first) == 4


def test_class_order_is_deterministic(tmp_path):
    words = ["1", "01", "2", "+1", "1.0", "10"]
    file = write_csv(tmp_path / "t.csv", [[i, words[i % 6]] for i in range(60)], header=("a", "k"))
    data = load_custom(file, "k", "none")
    everything = np.concatenate([data.x_train, data.x_test])[:, 0]
    labels = np.concatenate([data.y_train, data.y_test])[np.argsort(everything)]
    expected = sorted(words, key=lambda word: (float(word), word))
    assert labels[:6].tolist() == [expected.index(word) for word in words]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64, np.int32])
def test_arrays(tmp_path, dtype):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 200, (40, 1, 5, 5)).astype(dtype)
    np.savez(tmp_path / "i.npz", x=images, y=np.arange(40) % 4)
    data = load_custom(tmp_path / "i.npz")
    assert data.x_train.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    assert data.x_train.shape == (32, 1, 5, 5)
    features, kinds = images.reshape(40, -1), np.array(KINDS * 10)
    np.savez(tmp_path / "f.npz", x=features, y=kinds, x_test=features[:8], y_test=kinds[:8])
    data = load_custom(tmp_path / "f.npz")
    assert (len(data.y_train), len(data.y_test), data.x_train.dtype) == (40, 8, np.float32)


def test_arrays_named_as_a_training_set(tmp_path):
    """As Keras and many others name them; images without an axis for their one channel."""
    images, labels = np.random.default_rng(0).integers(0, 200, (40, 28, 28), dtype=np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "d.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8])
    data = load_custom(tmp_path / "d.npz")
    assert (data.x_train.shape, data.x_test.shape, data.x_train.dtype) == ((40, 1, 28, 28), (8, 1, 28, 28), np.uint8)
    assert np.array_equal(data.x_train[:, 0], images) and np.array_equal(data.y_train, labels)
    np.savez(tmp_path / "both.npz", x=images[:, None], y=labels, x_train=images[:8], y_train=labels[:8])
    assert len(load_custom(tmp_path / "both.npz", split="none").x_train) == 32  # x and y, as ever


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.parent.mkdir(exist_ok=True)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files(tmp_path, suffix):
    """Such as those of Fashion-MNIST, by their folder or by the training images in it."""
    images, labels = np.random.default_rng(0).integers(0, 200, (40, 6, 6), dtype=np.uint8), np.arange(40) % 4
    folder = tmp_path / "fashion"
    for part, count in (("train", 40), ("t10k", 8)):
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images[:count])
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels[:count])
    for path in (folder, folder / f"train-images-idx3-ubyte{suffix}"):
        ref = CustomDataRef.from_path(path, None, "by-class")
        data = ref.load(path.parent)
        assert np.array_equal(data.x_train[:, 0], images) and np.array_equal(data.x_test[:, 0], images[:8])
        assert data.y_train.tolist() == labels.tolist() and ref.class_names(path.parent) == ("0", "1", "2", "3")
        found = gmed.run(str(path), "finetune", seeds=1, workers=0, store=None)
        assert found.runs[0].benchmark == ref.name
    for file in folder.glob("t10k*"):
        file.unlink()
    assert len(load_custom(folder).x_test) == 8  # a fifth is held out
    write_idx(folder / f"letters-train-images-idx3-ubyte{suffix}", images)
    with pytest.raises(DataError, match=r"several data sets\. Give one of them: letters-train-images"):
        load_custom(folder)
    with pytest.raises(DataError, match=r"its labels, letters-train-labels-idx1-ubyte or .* are missing"):
        load_custom(folder / f"letters-train-images-idx3-ubyte{suffix}")


def test_compressed_table_gives_the_same_data(table):
    file = table.with_name("trees.csv.gz")
    file.write_bytes(gzip.compress(table.read_bytes()))
    a, b = load_custom(table, "kind", "by-column=season"), load_custom(file, "kind", "by-column=season")
    assert np.array_equal(a.x_train, b.x_train)
    assert CustomDataRef.from_path(file, "kind", "by-column=season").name.startswith("trees.csv.gz[label=kind,")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read as a table"):
        load_custom(file, "kind", "by-column=season")


def test_decompression_bomb_is_refused(tmp_path):
    file = tmp_path / "bomb.csv.gz"
    with gzip.open(file, "wb", compresslevel=1) as opened:
        opened.write(b"a,k\n1,x\n")
        for _ in range(100):
            opened.write(b"1" * 2**20)
    tracemalloc.start()
    with pytest.raises(DataError, match="cannot be read as a table"):
        load_custom(file, "k", "none")
    assert tracemalloc.get_traced_memory()[1] < 90 * 2**20
    tracemalloc.stop()


def test_folders_of_images(tmp_path):
    rng = np.random.default_rng(0)
    for kind in KINDS:
        (tmp_path / "trees" / kind).mkdir(parents=True)
        for number in range(5):
            to_float = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(to_float).save(tmp_path / "trees" / kind / f"{number}.png")
    own = CustomDataRef.from_path(tmp_path / "trees", None, "by-class")
    assert (own.shape, own.classes, own.tasks) == ((3, 32, 32), 4, 2)
    benchmark = get_benchmark(own.name)
    assert isinstance(benchmark.make_model(), ResNet18)
    assert benchmark.make_stream(tmp_path, 0).x.dtype == torch.uint8
    Image.fromarray(to_float[:, :20]).save(tmp_path / "trees" / "elm" / "9.png")
    with pytest.raises(DataError, match="20 x 32 pixels, not 32 x 32"):
        load_custom(tmp_path / "trees")


# ---------------------------------------------------------------- runs


def test_runs_are_keyed_by_data_content(table, tmp_path):
    store, how = tmp_path / "r.db", {"seeds": 2, "workers": 0, "label": "kind", "split": "by-column=season"}
    first = gmed.run(str(table), ["er", "er+gmed"], store=store, **how)
    assert len(first.runs) == 4
    assert not first.failures
    assert first.rows()[0].mean > 60
    moved = tmp_path / "elsewhere" / "trees.csv"
    moved.parent.mkdir()
    table.rename(moved)
    again = gmed.run(str(moved), ["er", "er+gmed"], store=store, **how)  # elsewhere, but the same
    assert [r.accuracy for r in again.runs] == [r.accuracy for r in first.runs]
    assert [r.timings for r in again.runs] == [r.timings for r in first.runs]
    name = first.runs[0].benchmark
    write_csv(moved, rows(84))
    changed = gmed.run(str(moved), ["er"], store=store, **how)
    assert changed.runs[0].benchmark != name
    with pytest.raises(DataError, match="the data have changed"):
        get_benchmark(name).make_stream(moved.parent, 0)
    moved.unlink()
    assert len(gmed.experiment.stored_results(store)[0].runs) == 6  # results outlive their data


def test_results_are_found_by_file_name(table, tmp_path, monkeypatch, capsys):
    store, how = tmp_path / "r.db", {"seeds": 1, "workers": 0, "label": "kind"}
    gmed.run(str(table), "finetune", store=store, split="by-column=season", **how)
    assert len(gmed.experiment.stored_results(store, "trees.csv")[0].runs) == 1
    numbers = write_csv(tmp_path / "n" / "trees.csv", [[*row[:2], row[3]] for row in rows()], header=("a", "b", "kind"))
    gmed.run(str(numbers), ["finetune", "er"], store=store, **how)
    assert len(gmed.experiment.stored_results(store, "trees.csv")[0].runs) == 3
    assert len(gmed.experiment.stored_results(store, "trees.csv", ["er"])[0].runs) == 1
    with pytest.raises(UsageError, match="unknown benchmark"):
        gmed.experiment.stored_results(store, "other.csv")
    monkeypatch.setattr("sys.argv", ["gmed", "rm", "trees.csv", "--store", str(store)])
    with pytest.raises(SystemExit):
        main()
    assert "several benchmarks match" in capsys.readouterr().err
    assert len(gmed.experiment.stored_results(store)[0].runs) == 3


def test_data_named_like_a_benchmark_do_not_replace_it(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in KINDS:
        (tmp_path / "split-mnist" / kind).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (5, 5), (number, 0, 0)).save(tmp_path / "split-mnist" / kind / f"{number}.png")
    store, how = tmp_path / "r.db", {"seeds": 1, "workers": 0}
    gmed.run("./split-mnist", "finetune", store=store, **how)
    gmed.run("split-mnist", "finetune", store=store, **how)
    assert [run.benchmark for run in gmed.experiment.stored_results(store, "split-mnist")[0].runs] == ["split-mnist"]


def test_links_and_folders_without_a_name(table, tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "link.csv").symlink_to(table)
    how = {"seeds": 1, "workers": 0, "store": None}
    found = gmed.run(str(tmp_path / "deep" / "link.csv"), "finetune", label="kind", split="by-column=season", **how)
    assert found.runs[0].benchmark.startswith("link.csv[")
    for kind in KINDS:
        (tmp_path / "here" / kind).mkdir(parents=True)
        for number in range(5):
            Image.new("RGB", (5, 5), (number, 0, 0)).save(tmp_path / "here" / kind / f"{number}.png")
    monkeypatch.chdir(tmp_path / "here")
    assert gmed.run(".", "finetune", **how).runs[0].benchmark.startswith("here[")
    monkeypatch.chdir(tmp_path / "here" / "ash")
    assert gmed.run("..", "finetune", **how).runs[0].benchmark.startswith("here[")
    with pytest.raises(UsageError, match="unknown benchmark"):
        gmed.run("", "finetune", **how)


class Pairs(torch.utils.data.Dataset):
    """A map-style data set of images of PIL and labels, as those of torchvision."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return Image.fromarray(self.images[index]), int(self.labels[index])


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(int, 1)


def in_memory():
    rng, labels = np.random.default_rng(0), np.arange(40) % 4
    features, kinds = rng.normal(size=(40, 3)), np.array(KINDS * 10)
    gray, rgb = (rng.integers(0, 256, (40, 6, 6, *more), dtype=np.uint8) for more in ((), (3,)))
    tensors = torch.from_numpy(features), torch.from_numpy(labels)
    channels_first = rgb.transpose(0, 3, 1, 2)
    return {
        "arrays": ((features, labels), {"x": features, "y": labels}),
        "words": ((features.tolist(), KINDS * 10), {"x": features, "y": kinds}),
        "pandas": ((pd.DataFrame(features), pd.Series(kinds, dtype=object)), {"x": features, "y": kinds}),
        "tensors": (tensors, {"x": features, "y": labels}),
        "test set": (
            (gray, labels, gray[:8], labels[:8]),
            {"x": gray, "y": labels, "x_test": gray[:8], "y_test": labels[:8]},
        ),
        "pairs, as Keras has them": (
            ((gray, labels), (gray[:8], labels[:8])),
            {"x": gray, "y": labels, "x_test": gray[:8], "y_test": labels[:8]},
        ),
        "a data set": (torch.utils.data.TensorDataset(*tensors), {"x": features, "y": labels}),
        "data sets of images": (
            (Pairs(rgb, labels), Pairs(rgb[:8], labels[:8])),
            {"x": channels_first, "y": labels, "x_test": channels_first[:8], "y_test": labels[:8]},
        ),
    }


@pytest.mark.parametrize("kind", in_memory())
def test_arrays_in_memory_equal_the_npz_file(tmp_path, kind):
    data, arrays = in_memory()[kind]
    np.savez(tmp_path / "arrays.npz", **{name: np.ascontiguousarray(array) for name, array in arrays.items()})
    how = {"seeds": 1, "workers": 0, "store": tmp_path / "r.db"}
    found = gmed.run(data, ["finetune", "er"], **how)
    assert not found.failures
    expected = gmed.run(tmp_path / "arrays.npz", ["finetune", "er"], **how)
    assert [run.timings for run in found.runs] == [run.timings for run in expected.runs]  # computed once


@pytest.mark.slow
def test_workers_and_tuning_accept_arrays_in_memory(tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, "gmed", {"alpha": (0.0, 1.0), "beta": (0.0,)})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data, _ = in_memory()["arrays"]
    how = {"split": "by-class=1", "store": tmp_path / "r.db"}
    assert not gmed.run(data, ["finetune", "er"], seeds=2, workers=2, **how).failures
    assert tune(data, "er+gmed", seeds=1, workers=0, **how).chosen
    experiment = replace(gmed.Experiment(data, "finetune", seeds=1, workers=0, store=None), seeds=2)
    assert len(experiment.run().runs) == 2
    del experiment
    assert not list(tmp_path.glob("gmed-*"))  # what was written for them is gone


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([[1.0], [2.0]], r"benchmark must be a name, a path, arrays \(x, y\) or a torch data set, not \[\["),
        ((np.zeros((4, 2)),), r"must be \(x, y\) or .*, not 1 arrays"),
        ((np.full((4, 2), np.nan), np.arange(4)), r"^the data in memory: x\[0\] contains NaN"),
        ((np.zeros((4, 2)), np.zeros(4)), "^the data in memory: y must hold one integer or string"),
        (([[1, 2], [3]], [0, 1]), "cannot be converted to an array"),
        (torch.utils.data.TensorDataset(torch.zeros(4, 2)), r"TensorDataset\[0\] must be \(input, label\)"),
        (Pairs([np.zeros((2, 2)), np.zeros((3, 3))], [0, 1]), r"input 1 has the shape \(3, 3\), but input 0 \(2, 2\)"),
        (Endless(), "Endless has no length"),
    ],
)
def test_unusable_arrays_are_refused(data, says):
    with pytest.raises(GmedError, match=says):
        gmed.run(data, "er", seeds=1, store=None)


def test_tuned_by_its_name(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = CustomDataRef.from_path(table, "kind", "by-column=season").name
    found = gmed.run(f"{name}-tuning", "er", seeds=1, workers=0, store=None)
    assert len(found.runs[0].accuracy) == 2
    assert not found.failures


def test_tuned_by_its_path(table, tmp_path, capsys, monkeypatch):
    """As by the full name, in a folder other than the file's; and what was chosen is what a run then takes."""
    monkeypatch.setitem(GRIDS, "gmed", {"alpha": (0.0, 1.0), "beta": (0.0,)})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    which = ["../trees.csv", "--label", "kind", "--split", "by-column=season", "--seeds", "2", "--workers", "0"]

    def typed(*words):
        monkeypatch.setattr("sys.argv", ["gmed", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    Store("gmed.db").close()
    code, _, said = typed("run", *which, "er+gmed(tuned)")
    assert code == 2 and said.rstrip().endswith("gmed tune trees.csv er+gmed --label kind --split by-column=season")
    code, document, said = typed("tune", *which, "er+gmed", "--json")
    assert code == 0, said
    found = json.loads(document)
    monkeypatch.chdir(tmp_path)
    by_name = tune(found["benchmark"], "er+gmed", seeds=2, store=tmp_path / "by-name.db", workers=0)
    assert found["benchmark"] == CustomDataRef.from_path(table, "kind", "by-column=season").name
    assert [candidate["score"] for candidate in found["tried"]] == list(by_name.scores.values())
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, document, said = typed("run", *which, "er+gmed(tuned)", "--json")
    assert code == 0, said
    assert {run["method"] for run in json.loads(document)["runs"]} == {found["chosen"]}
    commands = "\n".join(collect(*stored_results("gmed.db"), "gmed.db").commands)
    assert "gmed tune trees.csv er+gmed --label kind" in commands
    code, _, said = typed("tune", "split-mnist", "er+gmed", "--label", "kind")
    assert code == 2 and "label, split and drop apply to your own data" in said


def test_names_round_trip(tmp_path):
    file = write_csv(tmp_path / "my trees.csv", rows(), header=("a", "b", "dry, or wet", "kind=x"))
    own = CustomDataRef.from_path(file, "kind=x", "by-column=dry, or wet")
    assert CustomDataRef.parse(own.name) == own
    assert isinstance(get_benchmark(own.name).make_model(), MLP)
    spec = RunSpec.make(own.name + "-fuzzy", "er", 0)
    assert spec.benchmark.fuzzy
    assert spec.key != RunSpec.make(own.name, "er", 0).key


def test_the_command_line(table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "gmed run trees.csv er finetune --label kind --split by-column=season --seeds 1 --workers 0"
    monkeypatch.setattr("sys.argv", words.split())
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "paper" not in out
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80


# ---------------------------------------------------------------- bad data


@pytest.mark.parametrize(
    ("content", "label", "split", "says"),
    [
        ("", "k", "none", "every column a different name"),
        ("a,k\n", "k", "none", "no rows"),
        ("a,,k\n1,2,x\n", "k", "none", "every column a different name"),
        ("a,a,k\n1,2,x\n", "k", "none", "every column a different name"),
        ("1,2\n3,4\n", "1", "none", "it contains numbers"),
        ("a,k\n1,x\n", None, "none", "a label column is required.*a, k"),
        ("a,k\n1,x\n", "kk", "none", "did you mean 'k'"),
        ("k\nx\n", "k", "none", "no feature columns besides"),
        ("a,k\n1,x\n,y\n", "k", "none", "line 3, column 'a': a value is missing"),
        ("a,k\n1,x\nNaN,y\n", "k", "none", "line 3, column 'a': a value is missing"),
        ("a,k\n1,x\ninf,y\n", "k", "none", "'inf' is not a finite number"),
        ("a,k\n1,x\nred,y\n", "k", "none", "'red' is not a finite number"),
        ("a,k\n1,x\n2,\n", "k", "none", "line 3, column 'k': a value is missing"),
        ("a,k\n1,x\n2,y,3\n", "k", "none", "line 3: 3 cells, but the header has 2"),
        ("a,k\n1,x\n2,x\n", "k", "none", "the same class .x."),
        ("a,k\n1,x\n2,y\n3,z\n4,z\n", "k", "by-class=1", "task 1 of 3 has 1 example"),
        ("a,k\n1e308,x\n-1e308,y\n1e308,x\n-1e308,y\n", "k", "none", "column 'a' are too large"),
        ("a,k\n1,x\n2,y\n", "k", "by-colour", "split must be by-class"),
        ("a,k\n1,x\n2,y\n", "k", "by-column=b", "unknown column"),
        ("a,k\n1,x\n2,y\n", "k", "by-column=k", "both the label column and"),
        ("a,k\n1,x\n2,y\n", "k", "by-time=0", "integer from 1 to 2"),
        ("a,k\n1,x\n2,y\n", "k", "by-time=" + "9" * 30, "integer from 1 to 2"),
        ("a,k\n1,x\n2,y\n", "k", "by-class=two", "integer from 1 to 2"),
        ("a,k\n1,x\n2,y\n", "k", "by-class=", "a value is missing after ="),
    ],
)
def test_bad_tables(tmp_path, content, label, split, says):
    file = tmp_path / "t.csv"
    file.write_text(content)
    with pytest.raises(GmedError, match=says):
        load_custom(file, label, split)


def test_binary_tables_are_refused(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(b"a,k\n\xff\xfe1,x\n")
    with pytest.raises(DataError, match="UTF-8"):
        load_custom(file, "k")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(DataError, match="not a valid Parquet file"):
        load_custom(tmp_path / "t.parquet", "k")
    with pytest.raises(DataError, match="no such file"):
        load_custom(tmp_path / "none.csv", "k")


@pytest.mark.parametrize("value", [7, 0.1, -1e300])
def test_constant_feature_becomes_zero(tmp_path, value):
    file = write_csv(tmp_path / "t.csv", [[value, i, KINDS[i % 2]] for i in range(300)], header=("same", "a", "k"))
    data = load_custom(file, "k", "none")
    assert (data.x_train[:, 0] == 0).all()
    assert (data.x_test[:, 0] == 0).all()


GOOD = {"x": np.zeros((4, 2)), "y": np.arange(4)}


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((4, 2))}, "must hold the arrays x and y, or x_train and y_train; it holds x"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(3, int)}, "y must hold"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(4)}, "y must hold"),
        ({"x": np.zeros(4), "y": np.zeros(4, int)}, "features .examples, features. or images"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "features .examples, features. or images"),
        ({"x": np.full((4, 2), np.nan), "y": np.arange(4)}, r"x\[0\] contains NaN"),
        ({"x": np.array([["a"]] * 4), "y": np.arange(4)}, "numbers are needed"),
        (GOOD | {"x_test": np.zeros((1, 2))}, "both x_test and y_test, or neither"),
        (GOOD | {"x_test": np.zeros((1, 3)), "y_test": np.zeros(1, int)}, "x_test holds"),
        (GOOD | {"x_test": np.zeros((1, 2)), "y_test": np.full(1, 9)}, "not in y"),
        ({"x": np.array([{}] * 4), "y": np.arange(4)}, "arrays of numbers or strings"),
    ],
)
def test_bad_arrays(tmp_path, arrays, says):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(GmedError, match=says):
        load_custom(tmp_path / "a.npz")


def test_invalid_archive_is_refused(tmp_path):
    file = tmp_path / "a.npz"
    file.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(DataError, match=r"not a valid \.npz"):
        load_custom(file)
    with file.open("wb") as opened:
        np.save(opened, np.zeros(3))
    with pytest.raises(DataError, match=r"not a valid \.npz"):
        load_custom(file)


def test_ambiguous_names_are_refused(tmp_path):
    file = write_csv(tmp_path / "t.csv", [[i, KINDS[i % 2]] for i in range(20)], header=("a", "x,by-column=y"))
    with pytest.raises(DataError, match="is not a valid name"):
        CustomDataRef.from_path(file, "x,by-column=y", "none")
    file = write_csv(tmp_path / "t.csv", [[i, KINDS[i % 2]] for i in range(20)], header=("a", "x\ny"))
    with pytest.raises(DataError, match="is not a valid name"):
        CustomDataRef.from_path(file, "x\ny", "none")


@settings(
    max_examples=int(os.environ.get("GMED_FUZZ", 60)), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), packed=st.booleans())
def test_whatever_happens_to_an_archive(tmp_path, place, value, packed):
    file = tmp_path / "a.npz"
    (np.savez_compressed if packed else np.savez)(file, x=np.arange(80.0).reshape(40, 2), y=np.arange(40) % 4)
    content = bytearray(file.read_bytes())
    content[place % len(content)] = value
    file.write_bytes(content)
    try:
        data = load_custom(file)
    except GmedError:
        return
    assert np.isfinite(data.x_train).all()


def test_incompatible_options_are_refused(table, tmp_path):
    with pytest.raises(UsageError, match="apply to your own data"):
        gmed.run("split-mnist", "er", label="kind", store=None)
    with pytest.raises(UsageError, match="is already a path to data"):
        gmed.run(str(table), "er", label="kind", data_dir=tmp_path, store=None)
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4))
    with pytest.raises(UsageError, match="--label is only for tables"):
        gmed.run(str(tmp_path / "a.npz"), "er", label="kind", store=None)


@settings(
    max_examples=int(os.environ.get("GMED_FUZZ", 60)), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.one_of(st.binary(max_size=200), st.text("a,k1.5\n\"';\tx-e", max_size=120).map(str.encode)))
def test_whatever_a_table_holds(tmp_path, content):
    file = tmp_path / "t.csv"
    file.write_bytes(content)
    try:
        data = load_custom(file, "k", "none")
    except GmedError:
        return
    assert np.isfinite(data.x_train).all()
    assert len(data.y_train)
    assert data.y_train.max() < data.num_classes


def test_dropped_column_is_not_a_feature(table, tmp_path):
    with pytest.raises(DataError, match="season"):  # of words
        load_custom(table, "kind", "none")
    numbered = write_csv(
        tmp_path / "numbered.csv", [[*row, at] for at, row in enumerate(rows())], ("a", "b", "season", "kind", "id")
    )
    own = CustomDataRef.from_path(numbered, "kind", "none", ["id", "season", "id"])
    assert own.drop == ("id", "season") and CustomDataRef.parse(own.name) == own and "drop=id;season," in own.name
    without = write_csv(tmp_path / "without.csv", [[*row[:2], row[3]] for row in rows()], ("a", "b", "kind"))
    assert np.array_equal(own.load(tmp_path).x_train, load_custom(without, "kind", "none").x_train)
    for drop, message in ((["kind"], "cannot be dropped"), (["idd"], "did you mean 'id'")):
        with pytest.raises(GmedError, match=message):
            load_custom(numbered, "kind", "none", drop)
    with pytest.raises(UsageError, match="drop"):
        gmed.run("split-mnist", ["er"], drop=["id"], store=None)


def test_dropped_and_compared_at_the_command_line(table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["run", "trees.csv", "finetune", "er", "--label", "kind", "--split", "none", "--drop", "season"]
    monkeypatch.setattr(
        "sys.argv", ["gmed", *asked, "--baseline", "finetune", "--seeds", "2", "--workers", "0", "--json"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["method"]: row["gain_over"] for row in document["summary"]} == {"finetune": None, "er": "finetune"}
    assert all("drop=season," in run["benchmark"] for run in document["runs"])


# ---------------------------------------------------------------- names for people


def test_display_name_does_not_change_the_key(table, tmp_path, monkeypatch, capsys):
    """It names earlier runs too, is remembered, and is what tables, reports and LaTeX show; keys do not have it."""
    how = {"label": "kind", "split": "by-column=season", "store": tmp_path / "a.db", "workers": 0}
    first = gmed.run(str(table), ["finetune", "er"], seeds=1, **how)
    named = gmed.run(str(table), "finetune", seeds=1, name="my trees", **how)
    later = gmed.run(str(table), "er", seeds=2, **how)
    assert named.runs[0].final_accuracy == first.runs[0].final_accuracy
    (benchmark,) = {run.benchmark for run in (*named.runs, *later.runs)}
    assert benchmark.startswith("trees.csv[name=my trees,label=kind,")
    keys = [RunSpec.parse(run.benchmark, "er", 0).key for run in (first.runs[0], named.runs[0])]
    assert keys[0] == keys[1]
    with Store(tmp_path / "a.db") as store:
        assert [(run.benchmark, run.method, run.seed) for run in store.runs()] == [
            (benchmark, "finetune", 0), (benchmark, "er", 0), (benchmark, "er", 1)
        ]  # fmt: skip
        assert store.matching_benchmarks("my trees") == store.matching_benchmarks("trees.csv") == [benchmark]
    results, outdated = stored_results(tmp_path / "a.db", "my trees")
    assert (len(results.runs), outdated) == (3, 0)
    assert "method & my trees" in latex_table(results)
    assert [section.title for section in collect(results, 0, tmp_path / "a.db").sections] == ["my trees"]
    for words in (["table"], ["table", "--metrics"], ["runs"]):
        monkeypatch.setattr("sys.argv", ["gmed", *words, "--store", str(tmp_path / "a.db")])
        with pytest.raises(SystemExit):
            main()
        shown = capsys.readouterr().out
        assert "my trees" in shown and "label=kind" not in shown
    assert to_cli_args(benchmark, "er")[:4] == ["trees.csv", "er", "--name", "my trees"]


def test_file_name_is_the_default_heading(table, tmp_path):
    results = gmed.run(str(table), "finetune", seeds=1, label="kind", split="by-column=season", store=None, workers=0)
    assert "method & trees.csv" in latex_table(results)


@pytest.mark.parametrize("name", ["", " x", "a,b", "a=b", "a[b", "x" * 61])
def test_ambiguous_display_name_is_refused(table, name):
    with pytest.raises(UsageError, match="name must have"):
        gmed.run(str(table), "er", seeds=1, label="kind", split="none", store=None, name=name)
    with pytest.raises(UsageError, match="name, label, split and drop apply to your own data"):
        gmed.run("split-mnist", "er", seeds=1, store=None, name="x")


def test_tuned_parameters_are_found_by_display_name(table, tmp_path, monkeypatch):
    monkeypatch.setitem(GRIDS, "gmed", {"alpha": (0.0, 1.0)})
    how = {"label": "kind", "split": "by-column=season", "store": tmp_path / "a.db", "workers": 0}
    found = tune(str(table), "er+gmed", seeds=1, **how)
    named = gmed.run(str(table), "er+gmed(tuned)", seeds=1, name="trees", **how)
    assert [run.method for run in named.runs] == [found.chosen]
