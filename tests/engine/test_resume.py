"""A run that is stopped and resumed equals the uninterrupted run bit for bit."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gmed.data import Dataset
from gmed.data.registry import DATASETS
from gmed.engine import BENCHMARKS, METHODS, ExecutionConfig, RunSpec, batched, checkpoint, get_benchmark
from gmed.engine import runner as engine_run
from gmed.engine.benchmarks import clear_stream_cache
from gmed.engine.checkpoint import Checkpoint, Checkpoints
from gmed.engine.grammar import Component
from gmed.engine.runner import Interrupted, _deterministic_cudnn, _GroupRunner, run_group
from helpers import states_equal

CHEAP = {"hal": "hal(memory_epochs=1,anchor_steps=2)", "gss": "gss(n_compare=3)", "bgd": "bgd(samples=2)"}
CHEAP |= {
    "cn-dpm": "cn-dpm(stm_capacity=30,generator_steps=2,classifier_steps=2)",
    "comp-cl": "comp-cl(structure_steps=2)",
}
EDITED = [
    "er+gmed(gamma=0.9,extra=3)",
    "mir+gmed",
    "er-t+gmed",
    "gem+gmed",
    "er+random-edit",
    "er+optimal-edit",
    "er-expanded+gmed",
]
EVERY = [*(CHEAP.get(name, name) for name in METHODS), *EDITED]
QUICK = EDITED[:2]


@pytest.fixture(scope="module", autouse=True)
def small_benchmark():
    """Split MNIST with 43 examples a task, so that tasks end in odd batches."""
    source, benchmark = DATASETS["mnist"], BENCHMARKS["split-mnist"]
    data = tiny_images()
    source.load = lambda directory, progress: data
    BENCHMARKS["split-mnist"] = replace(
        benchmark, stream=Component("split", {"per_task": 43}), model=Component("MLP", {"inputs": 16, "hidden": 8})
    )
    rows = batched.STEPS_PER_BLOCK
    batched.STEPS_PER_BLOCK = 3  # a run can be stopped between two blocks, which is almost anywhere
    forget_caches()
    yield
    BENCHMARKS["split-mnist"], batched.STEPS_PER_BLOCK = benchmark, rows
    del source.load
    forget_caches()


def forget_caches():
    clear_stream_cache()
    get_benchmark.cache_clear()


def tiny_images():
    rng = np.random.default_rng(0)
    images = lambda n: rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8)  # noqa: E731
    y_train, y_test = np.repeat(np.arange(10), 30), np.repeat(np.arange(10), 12)
    return Dataset("tiny", images(300), y_train, images(120), y_test, 10)


def finished(specs, kept, stops=(), checkpoints=None, device="cpu", prequential=False):
    """Runs computed from checkpoints on, stopped once one of ``stops`` is reached; the learners' final states."""
    config = ExecutionConfig(device, checkpoints=checkpoints, deterministic=True, prequential=prequential)
    with _deterministic_cudnn(config.deterministic):
        run = _GroupRunner(specs, kept, config)
        outcomes = run.run(lambda seen, total: None, lambda: any(run.seen >= stop for stop in stops))
    return [o.accuracy for o in outcomes], [learner.state_dict() for learner in run.learners], outcomes


@pytest.mark.parametrize("device", ["cpu", "cpu, grouped", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "method", [*QUICK, *(pytest.param(m, marks=pytest.mark.slow) for m in EVERY if m not in QUICK)]
)
def test_stopped_run_resumes_bit_for_bit(method, device, tmp_path, monkeypatch):
    specs = [RunSpec.make("split-mnist", method, seed) for seed in (0, 1)]
    grouped = device != "cpu" and specs[0].is_capturable()
    if device == "cpu, grouped":
        if not grouped:
            pytest.skip("its runs do not advance together")
        monkeypatch.setattr(engine_run, "GROUPED_ON", {"cpu"})
    specs = specs if grouped else specs[1:]
    device, fresh = device.partition(",")[0], [None] * len(specs)
    accuracy, states, whole = finished(specs, fresh, device=device, prequential=True)
    assert finished(specs, fresh, device=device)[0] == accuracy
    checkpoints = Checkpoints(tmp_path / "unfinished", every=3600)
    for stops in ({10}, {43}, {86, 129}, set(range(216))):
        remaining, times = set(stops), 0
        while True:
            kept = [checkpoints.load(spec) for spec in specs]
            if kept[0]:
                remaining -= {seen for seen in remaining if seen <= kept[0].seen}
            try:
                found, found_states, outcomes = finished(specs, kept, remaining, checkpoints, device, prequential=True)
                break
            except Interrupted:
                times += 1
        assert times > 0
        assert found == accuracy
        assert all(states_equal(a, b) for a, b in zip(states, found_states, strict=True))
        assert "resumed at example" in outcomes[0].environment
        for resumed, never_stopped in zip(outcomes, whole, strict=True):
            for figure in ("untrained", "passes", "prequential"):
                assert getattr(resumed, figure) == getattr(never_stopped, figure) is not None
            assert resumed.memory == never_stopped.memory
        for spec in specs:
            checkpoints.discard(spec)
    assert not (tmp_path / "unfinished").exists()


def test_checkpoint_time_is_at_most_two_percent(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    often, written = Checkpoints(tmp_path, every=5.0), 0.0
    for _ in range(1000):
        now += 1.0
        if often.is_due():
            now += 0.4
            written += 0.4
            often.mark_written(0.4)
    assert 0.015 < written / now <= 0.02


@pytest.mark.slow
@settings(max_examples=20)
@given(st.sets(st.integers(1, 214), max_size=4))
def test_resume_from_random_stops_is_exact(tmp_path_factory, stops):
    specs = [RunSpec.make("split-mnist", "mir+gmed", 3)]
    checkpoints = Checkpoints(tmp_path_factory.mktemp("kept") / "unfinished", every=3600)
    reference = finished(specs, [None])
    for stop in sorted(stops):
        with suppress(Interrupted):
            finished(specs, [checkpoints.load(specs[0])], {stop}, checkpoints)
    found = finished(specs, [checkpoints.load(specs[0])], (), checkpoints)
    assert found[0] == reference[0]
    assert states_equal(found[1][0], reference[1][0])


def test_group_of_runs_at_different_points_resumes(tmp_path):
    """One seed has a checkpoint, another none: each goes on from where it is."""
    specs = [RunSpec.make("split-mnist", "er", seed) for seed in (0, 1, 2)]
    checkpoints = Checkpoints(tmp_path / "unfinished", every=3600)
    with pytest.raises(Interrupted):
        finished([specs[1]], [None], {50}, checkpoints)
    outcomes = run_group(specs, ExecutionConfig("cpu", checkpoints=checkpoints))
    assert [o.accuracy for o in outcomes] == [finished([spec], [None])[0][0] for spec in specs]
    assert ["resumed at example" in o.environment for o in outcomes] == [False, True, False]


def test_checkpoint_with_fewer_measurements_resumes(tmp_path):
    """A prequential run begins anew where nothing was predicted; passes that an older checkpoint lacks stay unknown."""
    spec = RunSpec.make("split-mnist", "er", 0)
    checkpoints = Checkpoints(tmp_path / "unfinished", every=3600)
    with pytest.raises(Interrupted):
        finished([spec], [None], {50}, checkpoints)
    whole = finished([spec], [None], prequential=True)[2][0]
    (anew,) = run_group([spec], ExecutionConfig("cpu", checkpoints=checkpoints, prequential=True))
    assert "resumed at example" not in anew.environment
    assert (anew.accuracy, anew.prequential) == (whole.accuracy, whole.prequential)
    older = replace(checkpoints.load(spec), untrained=None, passes=None)
    checkpoints.save(spec, older)
    (resumed,) = run_group([spec], ExecutionConfig("cpu", checkpoints=checkpoints))
    assert (resumed.accuracy, resumed.untrained) == (whole.accuracy, whole.untrained)
    assert resumed.passes is resumed.prequential is None


def test_checkpoint_interval_is_respected(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MIN_INTERVAL_RATIO", 0.0)
    specs = [RunSpec.make("split-mnist", "er", 0)]
    saved = []

    class Counting(Checkpoints):
        def save(self, spec, checkpoint):
            saved.append(checkpoint.seen)
            super().save(spec, checkpoint)

    run_group(specs, ExecutionConfig("cpu", checkpoints=Counting(tmp_path / "often", every=1e-9)))
    assert len(saved) > 5
    assert saved == sorted(set(saved))
    saved.clear()
    run_group(
        [RunSpec.make("split-mnist", "er", 1)], ExecutionConfig("cpu", checkpoints=Counting(tmp_path / "x", every=3600))
    )
    assert saved == []
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "another run's", "another version's"])
def test_corrupt_checkpoint_is_ignored(tmp_path, damage):
    spec, other = (RunSpec.make("split-mnist", "er", seed) for seed in (0, 1))
    checkpoints = Checkpoints(tmp_path, every=1)
    checkpoints.save(spec, Checkpoint(10, [], {}, [], {"steps": torch.tensor(1)}))
    path = checkpoints._path(spec)
    raw = path.read_bytes()
    if damage == "another run's":
        path.rename(checkpoints._path(other))
        spec = other
    else:
        changed = {
            "truncated": raw[: len(raw) // 2],
            "flipped": raw[:9] + bytes([raw[9] ^ 4]) + raw[10:],
            "empty": b"",
            "another version's": raw.replace(b"gmed-state/2", b"gmed-state/9"),
        }
        path.write_bytes(changed[damage])
    assert checkpoints.load(spec) is None


def test_incompatible_checkpoint_is_discarded_with_a_reason(tmp_path):
    spec = RunSpec.make("split-mnist", "er", 0)
    checkpoints = Checkpoints(tmp_path / "unfinished", every=3600)
    checkpoints.save(spec, Checkpoint(10, [], {}, [], {"steps": torch.tensor(1)}))
    (outcome,) = run_group([spec], ExecutionConfig("cpu", checkpoints=checkpoints))
    assert "did not match the run and was discarded" in str(outcome)
    (again,) = run_group([spec], ExecutionConfig("cpu", checkpoints=checkpoints))
    assert again.accuracy == finished([spec], [None])[0][0]
