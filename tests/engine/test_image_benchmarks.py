"""Every method and edit on the image benchmarks, with small generated images."""

import numpy as np
import pytest
import torch

from gmed.data import Dataset
from gmed.data.registry import DATASETS
from gmed.editing import GMED
from gmed.engine import BENCHMARKS, METHODS, ExecutionConfig, RunSpec, run_one
from gmed.engine.benchmarks import clear_stream_cache
from gmed.learners import ER
from gmed.memory import Reservoir

pytestmark = pytest.mark.slow

CPU = ExecutionConfig(device="cpu")
PHOTOGRAPHS = {  # tasks, classes of each, size of an image
    "split-cifar10": (5, 2, 32),
    "split-cifar100": (20, 5, 32),
    "split-mini-imagenet": (20, 5, 84),
}
CHEAP = {
    "hal": "hal(memory_epochs=1,anchor_steps=2)",
    "cn-dpm": "cn-dpm(stm_capacity=10,generator_steps=2,classifier_steps=2)",
    "comp-cl": "comp-cl(structure_steps=0)",
    "iid-offline": "iid-offline(passes=2)",
}
EDITED = ["er+gmed", "mir+gmed", "er-aug+gmed", "er-t+gmed", "gss+gmed", "gem+gmed", "er-expanded+gmed"]
EDITS = ["er+random-edit", "er+adv-edit", "er+optimal-edit", "mir+adv-edit"]


@pytest.fixture
def small(monkeypatch):
    """The benchmark of a name, on so many images per class and one test image per task."""

    def made(name, per_class):
        sharp = name.removesuffix("-fuzzy")
        tasks, each, size = PHOTOGRAPHS[sharp]
        rng = np.random.default_rng(0)
        images = lambda n: rng.integers(0, 256, (n, 3, size, size), dtype=np.uint8)  # noqa: E731
        train, test = np.repeat(np.arange(tasks * each), per_class), np.arange(tasks) * each
        data = Dataset(sharp, images(len(train)), train, images(tasks), test, tasks * each)
        monkeypatch.setattr(DATASETS[BENCHMARKS[name].data], "load", lambda directory, progress: data)
        clear_stream_cache()

    yield made
    clear_stream_cache()


@pytest.mark.parametrize("method", [*METHODS, *EDITED, *EDITS])
def test_every_method_and_edit_runs_on_images(small, method):
    small("split-cifar10", per_class=5)
    method = CHEAP.get(method, method)
    result = run_one(RunSpec.make("split-cifar10", method, seed=0), CPU)
    assert result.steps == (10 if method == "iid-offline(passes=2)" else 5)
    assert all(0 <= a <= 1 for row in result.accuracy for a in row)


@pytest.mark.parametrize(
    ("name", "method", "tasks"),
    [
        ("split-cifar100", "er(memory=20)+gmed", 20),
        ("split-cifar10-fuzzy", "er(memory=20)+gmed", 5),
        ("split-mini-imagenet", "finetune", 20),
    ],
)
def test_image_streams_have_the_documented_tasks(small, name, method, tasks):
    small(name, per_class=1)
    result = run_one(RunSpec.make(name, method, seed=0), CPU)
    assert np.shape(result.accuracy) == (tasks, tasks)


def test_large_image_memory_is_updated_in_place():
    learner = ER(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 84 * 84, 2)),
        lr=0.01,
        memory=Reservoir(10_000),
        editing=GMED(alpha=1.0, beta=0.1),
    )
    places = set()
    for _ in range(5):
        learner.observe(torch.rand(10, 3, 84, 84), torch.arange(10) % 2)
        places.add(learner.memory.x.data_ptr())
    assert learner.memory.x.shape == (10_000, 3, 84, 84)
    assert len(places) == 1
    assert int(learner.memory.edit_count.sum()) == 40  # ten edits a step once there is something to edit
