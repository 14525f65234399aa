"""Results and files recorded once: today's code must reproduce the results and read the files.

Accuracies are equal bit for bit on the processor and torch that recorded them. Elsewhere the same runs are repeated in
double precision, where they must be within 0.3 points: in single precision some methods amplify the last bits of a
step, by up to 7.5 points for one seed, so that no tolerance would tell an error from another processor.

    python tests/golden/test_golden.py     records anew (only where a change of results is meant, and explained)
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gmed
from gmed import editing, learners, memory
from gmed.engine import RunSpec
from gmed.engine.runner import evaluate_tasks, make_stream
from gmed.engine.training import train
from gmed.rng import seeded_torch

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent.parent / "benchmarks" / "results"
TOLERANCE = 0.003  # of final accuracy, elsewhere than where it was recorded, in double precision

EDITS = ("gmed", "random-edit", "adv-edit", "optimal-edit")
EDITABLE = ("er", "er-expanded", "mir", "er-aug", "er-t", "gss", "gem")
PLAIN = ("finetune", "agem", "bgd", "hal", "prog-nn", "comp-cl", "iid-online", "iid-offline")
SHORT_CN_DPM = "cn-dpm(generator_steps=100,classifier_steps=50)"  # with its own numbers of steps it takes minutes
RUNS = [
    *(("split-mnist", method) for method in (*PLAIN, SHORT_CN_DPM)),
    *(("split-mnist", base) for base in EDITABLE),
    *(("split-mnist", f"{base}+{edit}") for base in EDITABLE for edit in EDITS),
    *((f"{kind}-mnist", m) for kind in ("permuted", "rotated") for m in ("er", "er+gmed", "mir", "mir+gmed")),
]

CHECKPOINTED = (
    "er(memory=20)+gmed",
    "mir(memory=20,candidates=10)",
    "hal(memory=20)",
    "agem(memory=20)",
    "gem(memory=20)",
)
NETWORK = "from gmed.models import MLP\n\n\ndef tiny():\n    return MLP(hidden=4)\n"


def environment() -> dict[str, str]:
    """What decides the last bits of a result."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def recorded(name: str) -> dict:
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def same_machine() -> bool:
    return recorded("environment") == environment()


def digest(*values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- accuracies


def compute(benchmark: str, method: str) -> dict[str, object]:
    (run,) = gmed.run(benchmark, [method], seeds=[0], device="cpu", store=None, workers=0).runs
    return {"final accuracy": run.final_accuracy, "matrix": digest(run.accuracy)}


def compute_in_double(benchmark: str, method: str) -> float:
    """Train with the float32 weights, widened, and return the final accuracy."""
    spec, cpu = RunSpec.make(benchmark, method, 0), torch.device("cpu")
    stream = make_stream(spec, cpu)
    with seeded_torch(spec.seed, "weights"):
        model = spec.benchmark.make_model().double()
    learner = spec.method.make_learner(model, spec.seed)
    for _ in train(learner, stream, spec.benchmark.batch_size):
        pass
    return float(np.mean(evaluate_tasks(learner, stream.tests)))


@pytest.mark.slow
@pytest.mark.parametrize(("benchmark", "method"), RUNS)
def test_accuracies_are_as_recorded(benchmark, method):
    name = f"{benchmark} {method}"
    if same_machine():
        assert compute(benchmark, method) == recorded("accuracies")[name]
    else:
        assert compute_in_double(benchmark, method) == pytest.approx(recorded("accuracies-double")[name], abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", "er+gmed", "mir+gmed"])
def test_accuracies_in_double_precision_are_as_recorded(method):
    expected = recorded("accuracies-double")[f"split-mnist {method}"]
    assert compute_in_double("split-mnist", method) == pytest.approx(expected, abs=TOLERANCE)


# ---------------------------------------------------------------- keys and documents


def documents() -> dict[str, dict]:
    found = {}
    for path in sorted(RESULTS.glob("*.json.xz")):
        found[path.name] = json.loads(lzma.decompress(path.read_bytes()))
    return found


@pytest.mark.slow
def test_every_stored_run_keeps_its_key():
    checked = 0
    for content in documents().values():
        for run, key in zip(content["runs"], content.get("keys", ()), strict=False):
            assert RunSpec.make(run["benchmark"], run["method"], run["seed"]).key == key, run
            checked += 1
    assert checked >= 8811


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar.json.xz", "expansion.json.xz", "mnist_again.json.xz"])
def test_documents_are_merged_whole(name, tmp_path):
    content = documents()[name]
    done = gmed_command("merge", RESULTS / name, "--store", "store.db", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = gmed_command("export", "runs.json", "--store", "store.db", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))
    by_key = dict(zip(found["keys"], found["runs"], strict=True))
    assert by_key.keys() == set(content["keys"])
    for key, run in zip(content["keys"], content["runs"], strict=True):
        assert by_key[key]["accuracy"] == run["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar_kernels.json.xz", "follow_up.json.xz", "mnist_gpu.json.xz"])
def test_documents_without_keys_are_read_and_not_merged(name, tmp_path):
    assert "keys" not in documents()[name]
    done = gmed_command("merge", RESULTS / name, "--store", "store.db", cwd=tmp_path)
    assert done.returncode == 2
    assert "has no list 'keys'" in " ".join(done.stderr.split())


# ---------------------------------------------------------------- files


def make_learner(name: str) -> learners.Learner:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    room = memory.Reservoir(20)
    gmed_edit = editing.GMED(alpha=2.0, beta=0.1, gamma=0.9, extra=3)
    makers = {
        "finetune": lambda: learners.FineTune(model, lr=0.05),
        "er": lambda: learners.ER(model, lr=0.05, memory=room),
        "er+gmed": lambda: learners.ER(model, lr=0.05, memory=room, editing=gmed_edit),
        "er+random-edit": lambda: learners.ER(
            model, lr=0.05, memory=room, editing=editing.RandomEdit(stride=0.3), updates_per_batch=2
        ),
        "er+optimal-edit": lambda: learners.ER(
            model, lr=0.05, memory=room, editing=editing.OptimalEdit(alpha=0.01, examples=20)
        ),
        "mir+gmed": lambda: learners.MIR(model, lr=0.05, memory=room, editing=gmed_edit, candidates=15),
        "er-aug+gmed": lambda: learners.ERAug(
            model, lr=0.05, memory=room, editing=gmed_edit, rotation=15.0, scaling=0.1, crop=1, flip=True
        ),
        "gss+gmed": lambda: learners.GSS(model, lr=0.05, memory=memory.GSSGreedy(20), editing=gmed_edit, compared=3),
        "agem": lambda: learners.AGEM(model, lr=0.05, memory=room, references=10),
        "bgd": lambda: learners.BGD(model, eta=1.0, samples=2, initial_std=0.1),
        "gem": lambda: learners.GEM(model, lr=0.05, memory=memory.TaskRing(20, tasks=2)),
        "hal": lambda: learners.HAL(model, lr=0.05, memory=room, anchor_weight=0.1, anchor_steps=3, memory_epochs=1),
    }
    return makers[name]()


LEARNERS = (
    *("finetune", "er", "er+gmed", "er+random-edit", "er+optimal-edit", "mir+gmed", "er-aug+gmed", "gss+gmed"),
    *("agem", "bgd", "gem", "hal"),
)


def learn(learner: learners.Learner, first: int, last: int) -> None:
    for step in range(first, last):
        g = torch.Generator().manual_seed(step)
        y = torch.randint(2, (10,), generator=g) + 2 * (step >= 6)
        x = torch.rand(10, 1, 6, 6, generator=g, dtype=torch.float64)
        x[torch.arange(10), 0, y, y] += 1
        learner.observe(x, y, *([int(step >= 6)] if learner.task_aware else []))


def outputs_after(learner: learners.Learner) -> list[float]:
    """What a learner computes after going on for a while."""
    learn(learner, 9, 16)
    x = torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return learner.logits(x).flatten().tolist()


@pytest.mark.parametrize("name", LEARNERS)
def test_saved_learner_continues_as_recorded(name, tmp_path):
    with zipfile.ZipFile(HERE / "learners.zip") as archive:
        archive.extract(f"{name}.safetensors", tmp_path)
    learner = make_learner(name)
    learner.load(tmp_path / f"{name}.safetensors")
    expected, found = recorded("learners")[name], outputs_after(learner)
    if same_machine():
        assert found == expected
    assert found == pytest.approx(expected, abs=1e-6)


def gmed_command(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gmed.cli", *map(str, words)], capture_output=True, encoding="utf-8", **options
    )


def export(folder: Path) -> dict:
    """Every finished run of the store in a folder, as ``gmed export`` gives them."""
    done = gmed_command("export", "runs.json", "--store", "store.db", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "runs.json").read_text(encoding="utf-8"))


def test_recorded_store_is_read(tmp_path):
    shutil.copy(HERE / "store.db", tmp_path)
    content, expected = export(tmp_path), recorded("store")
    for name in ("keys", "runs"):
        assert content[name] == expected[name]


def resume(folder: Path) -> dict:
    """Finish what checkpoints beside a store hold."""
    done = gmed_command(
        *("run", "split-mnist", *CHECKPOINTED, "--model", "net.py:tiny", "--seeds", "1", "--device", "cpu"),
        *("--store", "store.db", "--json", "--workers", "1"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the checkpoints are named by the digest of a file with \\n")
def test_runs_resume_from_checkpoints(tmp_path):
    (tmp_path / "net.py").write_bytes(NETWORK.encode())
    with zipfile.ZipFile(HERE / "checkpoints.zip") as archive:
        archive.extractall(tmp_path / "store.db.unfinished")
    expected, content = recorded("checkpoints"), resume(tmp_path)
    assert content["keys"] == expected["keys"]
    for run, before in zip(content["runs"], expected["runs"], strict=True):
        assert int(run["environment"]["resumed at example"].split(",")[0]) > 0
        if same_machine():
            assert run["accuracy"] == before["accuracy"]
        assert run["final_accuracy"] == pytest.approx(before["final_accuracy"], abs=TOLERANCE)


def rows(first: int, last: int) -> str:
    rng = np.random.default_rng(3)
    lines = ["width,height,kind"]
    for number in range(last):
        kind = number // 100 % 3
        width, height = rng.normal([10.0 * kind, 1000.0 - 300.0 * kind], [3.0, 100.0])
        if number >= first:
            lines.append(f"{width:.3f},{height:.3f},{['oak', 'birch', 'fir'][kind]}")
    return "\n".join([*lines, ""])


def predictions(folder: Path, model: str) -> str:
    (folder / "new.csv").write_text(rows(600, 660), encoding="utf-8")
    done = gmed_command("predict", model, "new.csv", "--proba", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(table: str) -> np.ndarray:
    return np.array([[float(cell) for cell in line.split(",")[1:]] for line in table.splitlines()[1:]])


def test_recorded_model_predicts_as_recorded(tmp_path):
    shutil.copy(HERE / "model.gmed", tmp_path)
    expected, found = recorded("model")["predictions"], predictions(tmp_path, "model.gmed")
    assert [line.partition(",")[0] for line in found.splitlines()] == [
        line.partition(",")[0] for line in expected.splitlines()
    ]
    assert numbers(found) == pytest.approx(numbers(expected), abs=1e-5)


def test_recorded_model_continues_learning_as_recorded(tmp_path):
    shutil.copy(HERE / "model.gmed", tmp_path)
    (tmp_path / "more.csv").write_text(rows(300, 600), encoding="utf-8")
    words = ("fit", "more.csv", "--label", "kind", "--from", "model.gmed", "-o", "more.gmed")
    done = gmed_command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected, found = recorded("model")["after more rows"], predictions(tmp_path, "more.gmed")
    agree = [
        a.partition(",")[0] == b.partition(",")[0]
        for a, b in zip(expected.splitlines(), found.splitlines(), strict=True)
    ]
    assert np.mean(agree) > 0.95


# ---------------------------------------------------------------- recording


def write_json(name: str, content: object) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def record_files() -> None:
    write_json("environment", environment())
    outputs = {}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(HERE / "learners.zip", "w", zipfile.ZIP_LZMA) as z:
        for name in LEARNERS:
            learner = make_learner(name)
            learn(learner, 0, 9)
            path = Path(folder) / f"{name}.safetensors"
            learner.save(path)
            z.write(path, path.name)
            outputs[name] = outputs_after(learner)
    write_json("learners", outputs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = ("--store", "store.db", "--device", "cpu", "--workers", "1")
        run = gmed_command("run", "split-mnist", "finetune", "er+gmed", "gem", "--seeds", "2", *store, cwd=folder)
        assert run.returncode == 0, run.stderr
        content = export(folder)
        write_json("store", {"keys": content["keys"], "runs": content["runs"]})
        shutil.copy(folder / "store.db", HERE)
    record_checkpoints()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.csv").write_text(rows(0, 300), encoding="utf-8")
        (folder / "more.csv").write_text(rows(300, 600), encoding="utf-8")
        words = ("--hidden", "8", "--memory", "50", "--alpha", "0.5", "--label", "kind")
        assert gmed_command("fit", "rows.csv", *words, "-o", "model.gmed", cwd=folder).returncode == 0
        more = ("fit", "more.csv", "--label", "kind", "--from", "model.gmed", "-o", "more.gmed")
        assert gmed_command(*more, cwd=folder).returncode == 0
        content = {kind: predictions(folder, f"{kind}.gmed") for kind in ("model", "more")}
        write_json("model", {"predictions": content["model"], "after more rows": content["more"]})
        shutil.copy(folder / "model.gmed", HERE)


def record_checkpoints() -> None:
    """Stop a sweep in the middle, and keep what it leaves; then the results of one that was never stopped."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_bytes(NETWORK.encode())
        words = ["run", "split-mnist", *CHECKPOINTED, "--model", "net.py:tiny", "--seeds", "1", "--device", "cpu"]
        words += ["--store", "store.db", "--workers", str(len(CHECKPOINTED)), "--checkpoint-every", "0.01"]
        unfinished = folder / "store.db.unfinished"
        process = subprocess.Popen([sys.executable, "-m", "gmed.cli", *words], cwd=folder, stdout=subprocess.DEVNULL)
        while len(list(unfinished.glob("*.safetensors"))) < len(CHECKPOINTED):
            time.sleep(0.001)
            assert process.poll() is None, "it finished before it could be stopped"
        process.kill()
        process.wait()
        time.sleep(5)  # for workers to end
        files = sorted(unfinished.glob("*.safetensors"))
        assert len(files) == len(CHECKPOINTED), "a run finished; try again"
        with zipfile.ZipFile(HERE / "checkpoints.zip", "w", zipfile.ZIP_LZMA) as archive:
            for path in files:
                archive.write(path, path.name)
        shutil.rmtree(unfinished)
        (folder / "store.db").unlink()
        content = resume(folder)
        assert not any("resumed at example" in run["environment"] for run in content["runs"])
        runs = [{name: run[name] for name in ("method", "accuracy", "final_accuracy")} for run in content["runs"]]
        write_json("checkpoints", {"keys": content["keys"], "runs": runs})


def record_accuracies() -> None:
    write_json("environment", environment())
    write_json("accuracies", {f"{b} {m}": compute(b, m) for b, m in RUNS})
    write_json("accuracies-double", {f"{b} {m}": compute_in_double(b, m) for b, m in RUNS})


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    record_accuracies()
    record_files()
