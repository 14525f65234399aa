"""Figures and tables of the paper: their content, files and listing."""

import csv
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gmed.cli.app import app
from gmed.engine import RunResult, RunSpec
from gmed.engine.runner import make_learner
from gmed.errors import StoreError, UsageError
from gmed.paper.artifacts import ARTIFACTS, Request, accuracy_figures, charts, edit_measures, get_artifact
from gmed.paper.artifacts import edited_examples as edited_module
from gmed.paper.artifacts.edited_examples import edited_examples
from gmed.paper.artifacts.probe_runs import run_probe
from gmed.paper.plan import PlannedRuns
from gmed.paper.probes import edited_memory, prediction_change
from gmed.paper.status import artifact_status, from_timings
from gmed.results import Store
from gmed.results.store import DamagedRunWarning, Timing
from gmed.results.tuning import candidates
from gmed.streams import to_float
from helpers import invoke

SMALL = "er(memory=40)+gmed"


def fill(path, planned, accuracy, seconds=lambda spec: 2.0, device="cpu"):
    """A store with made-up results."""
    with Store(path) as store:
        for spec in (spec for one in planned for spec in one.specs()):
            share, found = accuracy(spec), (spec.benchmark.name, spec.method.name, spec.seed)
            timings = {"data": 0.5, "train": seconds(spec)}
            result = RunResult(*found, [[share]], share, share, 1, timings, {"device": device, "machine": "here"})
            store.add(spec, result)
    return str(path)


def somewhat(spec):
    """An accuracy that depends on everything."""
    return 0.5 + 0.4 * int(spec.key[:6], 16) / 16**6


def reproduced(*words, **options):
    shown = invoke("reproduce", *words, **options)
    if shown.exception and not isinstance(shown.exception, SystemExit):
        raise shown.exception
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def read(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def check_files(folder, name):
    ElementTree.parse(folder / f"{name}.svg")
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.{end}" for end in ("csv", "pdf", "png", "svg")]


def drawn_values(chart):
    """All records that a chart holds."""
    return [record for records in chart.to_dict()["datasets"].values() for record in records]


@pytest.fixture(scope="module")
def memory():
    return edited_memory(RunSpec.make("split-mnist", SMALL, 0))


@pytest.mark.slow
def test_the_edited_memory_is_what_a_plain_loop_leaves(memory):
    spec = RunSpec.make("split-mnist", SMALL, 0)
    learner, stream = make_learner(spec, torch.device("cpu")), spec.benchmark.make_stream(None, 0)
    for stretch in stream.task_batches(10):
        for x, y in stretch:
            learner.observe(x, y)
    assert torch.equal(memory.after, learner.memory.x[:40])
    assert torch.equal(memory.label, learner.memory.y[:40])
    assert torch.equal(memory.edit_count, learner.memory.edit_count[:40])
    for place, stream_index in enumerate(learner.memory.stream_index[:40].tolist()):
        assert torch.equal(memory.before[place], to_float(stream.x[stream_index : stream_index + 1])[0])
        assert memory.label[place] == stream.y[stream_index]
    assert not torch.equal(memory.before, memory.after)
    changed = [int(learner.predict(pair)[0]) != int(learner.predict(pair)[1]) for pair in pairs(memory)]
    assert prediction_change(spec) == pytest.approx(np.mean(changed))


def pairs(memory):
    return [torch.stack(pair) for pair in zip(memory.before, memory.after, strict=True)]


@pytest.mark.slow
def test_tsne_input_equals_memory(memory):
    some = edited_examples(memory, (0, 1, 2, 3))
    wanted = [place for place in range(40) if memory.label[place] <= 3 and memory.edit_count[place] > 0]
    vectors = edited_module.edit_vectors(some)
    assert len(vectors) == len(wanted) > 5
    for vector, place in zip(vectors, wanted, strict=True):
        assert np.array_equal(vector, (memory.after[place] - memory.before[place]).numpy().ravel())
    places = edited_module.embedded(vectors)
    assert places.shape == (len(wanted), 2) and np.array_equal(places, edited_module.embedded(vectors))
    records = edited_module.tsne_records(some, places)
    assert [record["origin"] for record in records] == memory.stream_index[wanted].tolist()
    assert [record["x"] for record in records] == pytest.approx(places[:, 0].tolist())


def test_nearest_neighbours_one_by_one():
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(30, 3)).astype(np.float32), rng.integers(0, 3, 30)
    same = 0
    for i in range(30):
        nearest = min((j for j in range(30) if j != i), key=lambda j: float(((vectors[i] - vectors[j]) ** 2).sum()))
        same += labels[i] == labels[nearest]
    assert edited_module.neighbor_agreement(vectors, labels) == pytest.approx(same / 30)
    pairs = [labels[i] == labels[j] for i in range(30) for j in range(30) if i != j]
    assert edited_module.chance_agreement(labels) == pytest.approx(np.mean(pairs))


@pytest.mark.slow
def test_gallery_rows_equal_memory(memory):
    chosen = edited_module.drawn(edited_examples(memory, (0, 1, 2, 3)))
    records = edited_module.pixel_records(chosen)
    assert len(records) == 28 * 28 * len(chosen.label)
    assert (
        chosen.label.tolist() == sorted(chosen.label.tolist())
        and max(np.bincount(chosen.label)) <= edited_module.PER_CLASS
    )
    for record in records[:: 28 * 28 // 3]:
        place = memory.stream_index.tolist().index(record["origin"])
        assert record["edits"] == memory.edit_count[place] > 0 and record["label"] == memory.label[place] <= 3
        assert record["before"] == float(memory.before[place, 0, record["row"], record["column"]])
        assert record["after"] == float(memory.after[place, 0, record["row"], record["column"]])
    changes = (chosen.after - chosen.before).abs().max()
    assert edited_module.largest_change(records) == pytest.approx(float(changes))


def test_colours_of_a_difference():
    image = edited_module.blue_to_red(np.array([[-1.0, 0.0, 1.0, 0.5]]))
    assert image.tolist() == [[[33, 102, 172], [255, 255, 255], [178, 24, 43], [216, 140, 149]]]
    assert edited_module.gray(np.array([[-0.2, 0.0, 0.5, 1.3]])).tolist()[0] == [
        [255] * 3,
        [255] * 3,
        [128] * 3,
        [0] * 3,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gallery", "tsne"])
def test_figures_of_one_memory(name, tmp_path):
    words = (name, "--workers", 0, "--device", "cpu", "--out", tmp_path / "new" / "out", "--store", tmp_path / "r.db")
    shown = reproduced(*words)
    check_files(tmp_path / "new" / "out", name)
    assert f"Figure {'4' if name == 'gallery' else '6'}" in shown and "wrote" in shown
    assert not (tmp_path / "r.db").exists()
    with pytest.raises(UsageError, match="one run"):
        reproduced(*words, "--seeds", 3)
    with pytest.raises(UsageError, match="column of Figure"):
        reproduced(*words, "--benchmarks", "rotated-mnist")


@pytest.mark.slow
def test_the_cosine_figure(tmp_path, monkeypatch):
    curves = {seed: np.sin(np.arange(499) / (30 + seed)).tolist() for seed in range(3)}
    monkeypatch.setattr(edit_measures, "similarity_to_optimal_edit", lambda spec, device, data_dir: curves[spec.seed])
    store = tmp_path / "kept" / "r.db"
    store.parent.mkdir()
    words = ("cosine", "--quick", "--workers", 0, "--device", "cpu", "--out", tmp_path / "out", "--store", store)
    shown = reproduced(*words)
    check_files(tmp_path / "out", "cosine-quick")
    assert "SMOKE TEST" in (tmp_path / "out" / "cosine-quick.svg").read_text() and "SMOKE TEST" in shown
    assert "0.523 ± 0.014" in shown
    (number,) = json.loads(reproduced(*words, "--json"))["numbers"]
    means = [np.mean(curve) for curve in curves.values()]
    assert (number["mean"], number["std"]) == pytest.approx((np.mean(means), np.std(means, ddof=1)))
    rows = read(tmp_path / "out" / "cosine-quick.csv")
    assert len(rows) == edit_measures.NUM_BINS
    first = [np.mean(curve[:10]) for curve in curves.values()]  # 499 steps in 50 stretches: the first has ten
    assert float(rows[0]["mean"]) == pytest.approx(np.mean(first))
    assert float(rows[0]["high"]) == pytest.approx(np.mean(first) + np.std(first, ddof=1))


@pytest.mark.slow
def test_the_memory_figure_shows_its_table(tmp_path):
    study = get_artifact("memory-figure")
    some = [one._replace(seeds=4) for one in study.plan() if one.benchmark in ("split-mnist", "rotated-mnist")]
    store = fill(tmp_path / "r.db", some, somewhat)
    words = ("memory-figure", "--seeds", 4, "--benchmarks", "split-mnist, rotated-mnist", "--store", store)
    document = json.loads(reproduced(*words, "--out", tmp_path / "out", "--json"))
    check_files(tmp_path / "out", "memory-figure")
    everything = read(tmp_path / "out" / "memory-figure.csv")
    rows = [row for row in everything if row["published"]]
    assert len(rows) + 8 == len(everything) == len(some) and len(rows) == len(document["rows"])
    for row in everything[len(rows) :]:  # a size that the paper has no numbers for
        edit = "+gmed" if row["method"].endswith("+gmed") else ""
        method = f"{row['method'].removesuffix(edit)}(memory=1000){edit}"
        ours = [100 * somewhat(RunSpec.make(row["benchmark"], method, seed)) for seed in range(4)]
        assert (row["memory"], float(row["mean"])) == ("1000", pytest.approx(np.mean(ours)))
        assert float(row["mean"]) - float(row["low"]) == pytest.approx(np.std(ours, ddof=1))
    marks = {(c["benchmark"], c["method"]): c["marks"] for c in document["comparisons"]}
    assert len(marks) == len(everything) / 2
    further = document["comparisons"][-4:]  # of that size: corrected for their number
    assert all("memory=1000" in c["method"] and c["published_gain"] is None for c in further)
    assert min(c["corrected"] for c in further) == pytest.approx(min(1, 4 * min(c["gain"]["p"] for c in further)))
    for c, row in zip(further, [row for row in everything[len(rows) :] if row["gain"]], strict=True):
        assert [float(row["gain"]), float(row["gain_p_corrected"])] == [c["gain"]["mean"], c["corrected"]]
    for row, cell in zip(rows, document["rows"], strict=True):
        method = cell["cell"]["method"]
        assert row["benchmark"] == cell["cell"]["benchmark"]
        assert RunSpec.make(row["benchmark"], method, 0).method.base.parameters["memory"] == int(row["memory"])
        assert float(row["mean"]) == pytest.approx(cell["mean"])
        assert float(row["high"]) - float(row["mean"]) == pytest.approx(cell["std"])
        assert row["marks"] == marks.get((row["benchmark"], method), "")
        assert float(row["published"]) == cell["cell"]["published"]["mean"]
    drawn = drawn_values(study.draw([{**row, "mean": float(row["mean"])} for row in everything]))
    assert {float(one["mean"]) for one in drawn} == {float(row["mean"]) for row in everything}
    assert "Table 13" in reproduced(*words, "--out", tmp_path / "out")


def test_the_sensitivity_figure(tmp_path):
    some = [one._replace(seeds=3) for one in get_artifact("sensitivity").plan() if one.benchmark == "split-mnist"]
    assert len({one.method for one in some}) == len(some) == 1 + 9 + 5 - 1
    store = fill(tmp_path / "r.db", some, somewhat)
    shown = reproduced("sensitivity", "--quick", "--store", store, "--out", tmp_path / "out")
    check_files(tmp_path / "out", "sensitivity-quick")
    assert "82.67 ± 1.9" in shown and "81.07 ± 2.5" in shown
    *lines, last = shown.splitlines()
    assert last == f"wrote {tmp_path / 'out' / 'sensitivity-quick'}.svg, .png, .pdf, .csv"
    assert max(map(len, lines)) <= 80
    rows = read(tmp_path / "out" / "sensitivity-quick.csv")
    assert [float(row["value"]) for row in rows] == [0.01, 0.03, 0.05, 0.07, 0.1, 0.5, 1, 5, 10, 0, 0.001, 0.01, 0.1, 1]
    er = np.mean([100 * somewhat(RunSpec.make("split-mnist", "er", seed)) for seed in range(3)])
    for row in rows:
        method = f"er+gmed({row['parameter']}={row['value']})"
        ours = [100 * somewhat(RunSpec.make("split-mnist", method, seed)) for seed in range(3)]
        assert float(row["mean"]) == pytest.approx(np.mean(ours))
        assert float(row["er"]) == pytest.approx(er)
        assert float(row["gain"]) == pytest.approx(np.mean(ours) - er)
        assert float(row["gain_low"]) < float(row["gain"]) < float(row["gain_high"])
        assert float(row["gain_p"]) <= float(row["gain_p_corrected"]) and float(row["gain_p_permutation"]) >= 0.125
        assert (row["published"] == "82.67") == (row["tuned"] == "True")
    assert sum(row["tuned"] == "True" for row in rows) == 2
    records = accuracy_figures.sensitivity_records(get_results(store), "split-mnist", [])
    drawn = drawn_values(get_artifact("sensitivity").draw(records))
    assert {(one["parameter"], one["value"], one["mean"]) for one in drawn} == {
        (record["parameter"], record["value"], record["mean"]) for record in records
    }


def get_results(store):
    from gmed.experiment import stored_results

    return stored_results(store)[0]


def test_training_time(tmp_path):
    some = [one._replace(seeds=3) for one in get_artifact("training-time").plan() if one.benchmark == "split-mnist"]
    store = fill(tmp_path / "r.db", some, somewhat, lambda spec: (2 + spec.seed) * (3 if spec.method.edit else 1))
    words = ("training-time", "--quick", "--store", store)
    numbers = json.loads(reproduced(*words, "--json"))["numbers"]
    assert [(n["quantity"], n["mean"], n["n"], n["published"]) for n in numbers] == [
        ("seconds of er", 3.0, 3, 6.0),
        ("seconds of er+gmed", 9.0, 3, 7.0),
        ("ratio", 3.0, 3, pytest.approx(7 / 6)),
    ]
    shown = reproduced(*words)
    assert "1.5 \ntimes" in shown or "1.5 times" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_stored_runs_are_shown_without_data(tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_CACHE", str(tmp_path))
    monkeypatch.delenv("GMED_DATA", raising=False)
    plan = [one._replace(seeds=2) for one in get_artifact("training-time").plan() if one.benchmark == "split-cifar10"]
    store = fill(tmp_path / "r.db", plan, somewhat, device="NVIDIA H200")
    words = ("training-time", "--benchmarks", "split-cifar10", "--store", store)
    assert "split-cifar10" in reproduced(*words, "--seeds", 2)
    with pytest.raises(UsageError, match="cifar10"):
        reproduced(*words, "--seeds", 3)


def test_stored_results_of_missing_data_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_CACHE", str(tmp_path))
    monkeypatch.delenv("GMED_DATA", raising=False)
    stored = [PlannedRuns("split-cifar10", name) for name in ("er", "er+gmed", "mir")]
    store = fill(tmp_path / "r.db", [*stored, PlannedRuns("split-cifar10", "mir+gmed", 19)], somewhat)
    words = ("main", "--benchmarks", "split-cifar10", "--store", store)
    found = json.loads(reproduced(*words, "--json"))
    assert [(row["cell"]["method"], row["n"]) for row in found["rows"]] == [(one.method, 20) for one in stored]
    assert [(c["method"], c["rival"]) for c in found["comparisons"]] == [("er+gmed", "er")]
    ((outdated_note, why),) = found["missing"].items()
    assert outdated_note.startswith("split-cifar10 finetune, ") and "mir+gmed" in outdated_note and "cifar10" in why
    shown = reproduced(*words)
    assert "skipped: split-cifar10 finetune" in shown and max(map(len, shown.splitlines())) <= 80


def test_partial_grid_of_missing_data_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_CACHE", str(tmp_path))
    monkeypatch.delenv("GMED_DATA", raising=False)
    one = next(one for one in get_artifact("tuned").plan() if one.benchmark == "split-cifar10-tuning")
    store = fill(tmp_path / "r.db", [one], somewhat)
    with pytest.raises(UsageError, match="cifar10 is not in"):
        reproduced("tuned", "--benchmarks", "split-cifar10", "--store", store, "--out", tmp_path / "out")


def test_unstorable_observations_are_not_made(tmp_path, monkeypatch):
    Store(tmp_path / "r.db").close()
    monkeypatch.setattr("gmed.results.connection.is_writable", lambda path: False)
    looked_at = []
    monkeypatch.setattr(
        "gmed.paper.artifacts.edit_measures.prediction_change", lambda spec, *where: looked_at.append(spec) or 0.0
    )
    with pytest.raises(StoreError, match="cannot be written"):
        reproduced("prediction-change", "--quick", "--workers", 0, "--store", tmp_path / "r.db")
    assert not looked_at


@pytest.mark.slow
def test_tuning_beyond_the_paper(tmp_path):
    """Everything is in the store but one candidate at one seed, which is computed."""
    best = {"er+gmed": (0.5, 0.1), "er-aug+gmed": (10.0, 0.0)}
    named = {method: candidates("split-mnist", method) for method in best}
    chosen = {named[method][point] for method, point in best.items()}
    plan = [PlannedRuns("split-mnist-tuning", name, 2) for names in named.values() for name in names.values()]
    lacking = named["er+gmed"][0.01, 0.0]
    store = fill(
        tmp_path / "r.db",
        [one._replace(seeds=1) if one.method == lacking else one for one in plan],
        lambda spec: 0.999 if spec.method.name in chosen else 0.4,
    )
    out = tmp_path / "figures"
    words = ("tuned", "--benchmarks", "split-mnist", "--store", store, "--seeds", 2, "--workers", 0, "--out", out)
    numbers = json.loads(reproduced(*words, "--json"))["numbers"]
    assert [(n["quantity"], n["n"], n["mean"], n["published"]) for n in numbers] == [
        ("alpha of er+gmed", 2, 0.5, 5.0),
        ("beta of er+gmed", 2, 0.1, 0.01),
        ("alpha of er-aug+gmed", 2, 10.0, 5.0),
        ("beta of er-aug+gmed", 2, 0.0, 0.001),
    ]
    assert "held-out" in reproduced(*words)
    check_files(out, "tuned")
    points = {mark: [] for mark in ("best", "published")}
    for row in read(out / "tuned.csv"):
        for mark, found in points.items():
            if row[mark] == "True":
                found.append((row["method"], float(row["alpha"]), float(row["beta"])))
    assert points["best"] == [(method, *point) for method, point in best.items()]
    assert points["published"] == [("er+gmed", 5.0, 0.01), ("er-aug+gmed", 5.0, 0.001)]
    with pytest.raises(UsageError, match="column of Table 6"):
        reproduced("tuned", "--benchmarks", "split-mnist-full", "--store", store, "--out", out)


def test_prediction_change_is_in_percent_and_cached(tmp_path, monkeypatch):
    looked_at = []

    def share(spec, device, data_dir):
        if len(looked_at) == 2:
            raise KeyboardInterrupt
        looked_at.append(spec.seed)
        return 0.1 * spec.seed

    monkeypatch.setattr("gmed.paper.artifacts.edit_measures.prediction_change", share)
    words = ("prediction-change", "--quick", "--workers", 0, "--store", tmp_path / "r.db")
    stopped = CliRunner().invoke(app, ["reproduce", *map(str, words)])
    assert stopped.exit_code == 130 and "run the same command again to resume" in stopped.output.replace("\n", " ")
    assert looked_at.pop() == 1  # which is kept, as is seed 0: one more look, and only one, is allowed
    (number,) = json.loads(reproduced(*words, "--json"))["numbers"]
    assert looked_at == [0, 2]
    assert (number["mean"], number["std"]) == pytest.approx((10.0, 10.0))
    assert (number["published"], number["n"]) == (10.2, 3)
    assert "10" in reproduced(*words) and looked_at == [0, 2]
    (standing,) = artifact_status([get_artifact("prediction-change")], store=tmp_path / "r.db", device="cpu")
    assert (standing.cached, standing.stored, standing.needed) == (True, 3, 80)


def test_stored_observations_need_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_CACHE", str(tmp_path))
    monkeypatch.delenv("GMED_DATA", raising=False)
    with Store(tmp_path / "r.db") as store:
        for spec in PlannedRuns("split-cifar10", "er+gmed", 2).specs():
            store.put_probe(spec, get_artifact("prediction-change").probe_version, 0.002)
    words = ("prediction-change", "--benchmarks", "split-cifar10", "--store", tmp_path / "r.db", "--json")
    (number,) = json.loads(reproduced(*words, "--seeds", 2))["numbers"]
    assert (number["mean"], number["published"]) == (pytest.approx(0.2), 5.1)
    with pytest.raises(UsageError, match="cifar10"):
        reproduced(*words, "--seeds", 3)


@pytest.mark.slow
@pytest.mark.parametrize("content", [[], {"a": 1}, "0.1", True])
def test_invalid_stored_observation_is_recomputed(tmp_path, content):
    planned, how = PlannedRuns("split-mnist", SMALL, 1), {"workers": 0, "device": "cpu", "store": tmp_path / "r.db"}
    with Store(tmp_path / "r.db") as store:
        store.put_probe(*planned.specs(), "share", content)
    with pytest.warns(DamagedRunWarning, match="is damaged and will be repeated"):
        shares = run_probe(prediction_change, planned, Request(options=how), cache_as="share")
    assert shares == run_probe(prediction_change, planned, Request(options={**how, "store": None}))
    with Store(tmp_path / "r.db") as store:
        assert store.get_probe(*planned.specs(), "share") == shares[0]


@pytest.mark.slow
def test_workers_compute_the_same_observations():
    planned = PlannedRuns("split-mnist", SMALL, 2)
    alone = run_probe(prediction_change, planned, Request(options={"workers": 0, "device": "cpu"}))
    assert run_probe(prediction_change, planned, Request(options={"workers": 2, "device": "cpu"})) == alone
    with pytest.raises(UsageError, match="only methods that edit with gmed"):
        run_probe(prediction_change, PlannedRuns("split-mnist", "er", 2), Request(options={"workers": 1}))


def test_missing_extra_says_what_to_install(tmp_path, monkeypatch):
    found = charts.find_spec
    monkeypatch.setattr(charts, "find_spec", lambda name: None if name == "altair" else found(name))
    for name in ("memory-figure", "cosine", "gallery", "sensitivity", "tsne"):
        with pytest.raises(UsageError, match=r"figures need altair: pip install 'gmed\[report\]'"):
            get_artifact(name).run(Request(folder=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_plotting_libraries_are_imported_lazily():
    look = "import sys, gmed.cli; print([n for n in ('altair', 'vl_convert', 'sklearn', 'PIL') if n in sys.modules])"
    package = str(Path(charts.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, env={"PYTHONPATH": package})
    assert done.stdout.strip() == "[]", done.stderr


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another --out"):
        charts.write(None, [], tmp_path / "file", "x")
    with pytest.raises(UsageError, match="choose another --out"):
        get_artifact("gallery").run(Request(folder=tmp_path / "file"))  # before anything is computed


@pytest.mark.slow
def test_the_list(tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_CACHE", str(tmp_path))
    monkeypatch.delenv("GMED_DATA", raising=False)
    full = [one._replace(seeds=5) for one in get_artifact("full-mnist").plan()]
    store = fill(tmp_path / "r.db", full, somewhat, lambda spec: 9.5)
    shown = reproduced("--list", "--no-estimate", "--store", store, "--device", "cpu")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    for study in ARTIFACTS.values():
        assert any(line.startswith(study.name) for line in lines)
    assert "30/120" in next(line for line in lines if line.startswith("full-mnist"))
    assert "cifar10*" in shown and "mnist*" not in shown
    listed = {
        one["name"]: one
        for one in json.loads(reproduced("--list", "--no-estimate", "--store", store, "--device", "cpu", "--json"))
    }
    assert listed["main"]["data"] == {"mnist": True, "cifar10": False, "cifar100": False, "mini-imagenet": False}
    assert listed["gallery"]["kept"] is False and listed["cosine"]["kept"] and listed["cosine"]["needed"] == 20


@pytest.mark.slow
def test_list_estimates_durations_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_CACHE", str(tmp_path))
    monkeypatch.delenv("GMED_DATA", raising=False)
    monkeypatch.setattr("gmed.paper.status._seconds_per_item", lambda spec, device: (0.01, 1e-5))
    monkeypatch.setattr("gmed.paper.status.os.cpu_count", lambda: 2)
    (gss,) = (
        one
        for one in json.loads(reproduced("--list", "--store", tmp_path / "none.db", "--device", "cpu", "--json"))
        if one["name"] == "gss"
    )
    split, rotated = 500 * 0.01 + 6 * 10_000 * 1e-5, 2000 * 0.01 + 21 * 20_000 * 1e-5
    assert gss["seconds"] == pytest.approx(40 * (split + rotated) / 2)
    assert (gss["unknown"], gss["elsewhere"], gss["seeds"]) == (0, 0, [20, 20])


def test_time_left(tmp_path, monkeypatch):
    monkeypatch.setattr("gmed.paper.status.os.cpu_count", lambda: 2)
    study = get_artifact("full-mnist")
    store = fill(tmp_path / "r.db", [one._replace(seeds=5) for one in study.plan()], somewhat, lambda spec: 9.5)
    (standing,) = artifact_status([study], store=store, device="cpu")
    assert (standing.stored, standing.needed, standing.unknown) == (30, 120, 0)
    assert standing.seconds == pytest.approx(90 * 10.0 / 2)  # half a second of data each, on two cores
    (nothing,) = artifact_status([study], store=tmp_path / "none.db", device="cpu")
    assert (nothing.stored, nothing.unknown, nothing.seconds) == (0, 120, 0)


def test_speeds_are_measured_when_asked_for(monkeypatch):
    study, told = get_artifact("gallery"), []
    (standing,) = artifact_status([study], store="none.db", device="cpu", measure=lambda *what: told.append(what))
    assert told == [("split-mnist", "er+gmed")]
    assert standing.unknown == 0 and 0.05 < standing.seconds < 600


def test_speed_measurement_has_a_time_limit(monkeypatch):
    monkeypatch.setattr("gmed.paper.status.MAX_MEASURE_SECONDS", 0.0)
    monkeypatch.setattr("gmed.paper.status._seconds_per_item", lambda spec, device: (time.sleep(0.01), 0.0, 1e-5)[1:])
    told = []
    (standing,) = artifact_status(
        [get_artifact("gss")], store="none.db", device="cpu", measure=lambda *what: told.append(what)
    )
    assert told == [("split-mnist", "gss")]
    assert standing.unknown == 40  # of gss+gmed; gss is as fast on Rotated MNIST


def test_methods_differing_only_in_memory_share_speeds(tmp_path, monkeypatch):
    monkeypatch.setattr("gmed.paper.status._seconds_per_item", lambda spec, device: (0.01, 1e-5))
    monkeypatch.setenv("GMED_CACHE", str(tmp_path))
    monkeypatch.delenv("GMED_DATA", raising=False)
    told = []
    artifact_status([get_artifact("memory")], store="none.db", device="cpu", measure=lambda *what: told.append(what))
    assert [RunSpec.make(*what, 0).method.base.name for what in told] == ["er", "er", "mir", "mir"]
    assert [RunSpec.make(*what, 0).method.edit is None for what in told] == [True, False, True, False]


def test_speeds_of_other_devices_are_ignored():
    timings = [
        Timing("a", "split-mnist", "er", "NVIDIA H200", 1.0),
        Timing("b", "split-mnist", "er(memory=9)", "cpu", 3.0),
    ]
    assert from_timings(timings, "cpu")("split-mnist", "er") == 3.0
    assert from_timings(timings, "NVIDIA H200")("split-mnist", "er+gmed") is None


def test_studies_are_complete():
    for study in ARTIFACTS.values():
        assert study.plan() and study.title and study.location
        assert math.prod(one.seeds for one in study.plan()[:3]) > 0
    with pytest.raises(UsageError, match="did you mean 'cosine'"):
        get_artifact("cosin")
    with pytest.raises(UsageError, match="did you mean 'training-time'"):
        get_artifact("appendix,-training-time")
