"""The Avalanche plugin against the package's own learner. Skipped where Avalanche cannot be imported."""

import copy
import doctest
import pickle
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gmed.editing import GMED, RandomEdit
from gmed.errors import DivergedError, InputError, UsageError
from gmed.learners import ER, ERAdam
from gmed.memory import Reservoir
from gmed.retrieval import Retrieval

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "avalanche.md"
DECLARED = []  # a torch library lives as long as somebody holds it


def declare_operators_of_torchvision():
    """A torchvision that was compiled for another torch has no operators, and stops at declaring more about them."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARED.append(library)


@pytest.fixture(scope="module")
def plugin():
    """gmed.avalanche.GMEDPlugin, where Avalanche is installed."""
    if find_spec("avalanche") is None or find_spec("torchvision") is None:
        pytest.skip("Avalanche is not installed: pip install 'gmed[avalanche]'")
    declare_operators_of_torchvision()
    from gmed.avalanche import GMEDPlugin

    return GMEDPlugin


class OwnForward(nn.Module):
    """Nothing is known of its layers, so ER sends stream and replay through it together."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(16, 20), nn.Linear(20, 10)

    def forward(self, x):
        return self.out(self.hidden(x.flatten(1)).relu())


def batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 10)).double()


def made(model):
    torch.manual_seed(3)
    return model()


TASKS, SIZE, BATCH = 5, 96, 10  # the last batch of a task has 6 examples


def tasks(dtype=torch.float32):
    """Two classes a task."""
    rng = np.random.default_rng(5)
    for task in range(TASKS):
        x = torch.from_numpy(rng.random((SIZE, 1, 4, 4))).to(dtype)
        yield x, torch.from_numpy(rng.integers(2 * task, 2 * task + 2, SIZE))


def batches(dtype=torch.float32):
    for x, y in tasks(dtype):
        yield from zip(x.split(BATCH), y.split(BATCH), strict=True)


class Labelled(torch.utils.data.TensorDataset):
    @property
    def targets(self):
        return self.tensors[1].tolist()


def benchmark(dtype=torch.float32):
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
    from avalanche.benchmarks.utils import as_classification_dataset

    datasets = [as_classification_dataset(Labelled(x, y)) for x, y in tasks(dtype)]
    return with_classes_timeline(benchmark_from_datasets(train=datasets))


def online(stream):
    from avalanche.benchmarks.scenarios.online import split_online_stream

    return split_online_stream(stream, experience_size=BATCH, shuffle=False)


def naive(model, *plugins, optimizer=None, **options):
    from avalanche.training import Naive

    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    options = {"train_mb_size": BATCH, "evaluator": None, **options}
    return Naive(model=model, optimizer=optimizer, plugins=list(plugins), **options)


def train(strategy, experiences):
    for experience in experiences:
        strategy.train(experience, shuffle=False)


def state(model, memory):
    """Parameters, batch-norm statistics and memory, as they are now."""
    held = {f"memory {name}": tensor for name, tensor in memory.state_dict().items()}
    return {name: tensor.clone() for name, tensor in (model.state_dict() | held).items()}


def assert_same(found, expected, atol=0.0):
    """Two states are equal: bit for bit, or within ``atol``."""
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], rtol=0, atol=atol, msg=lambda said, name=name: f"{name}: {said}"
        )


def learned(learner, dtype=torch.float32):
    """The state of our own learner after the stream."""
    for x, y in batches(dtype):
        learner.observe(x, y)
    return state(learner.model, learner.memory)


class Newest(Retrieval):
    def retrieve(self, memory, count, ahead, rng):
        return memory.stream_index[torch.from_numpy(memory.occupied())].topk(min(count, len(memory))).indices


EDITS = {
    "none": None,
    "gmed": GMED(alpha=5.0, beta=0.01),
    "gmed, all settings": GMED(alpha=2.0, beta=0.1, gamma=0.9, steps=2, clamp=(0, 1), extra=5),
    "not written back": GMED(alpha=5.0, beta=0.01, write_back=False),
    "random": RandomEdit(stride=0.1),
}


@pytest.mark.parametrize("way", ["tasks", "online"])
@pytest.mark.parametrize("model", [OwnForward, batch_norm])
@pytest.mark.parametrize("editing", EDITS.values(), ids=EDITS.keys())
def test_plugin_equals_learner_bit_for_bit(plugin, editing, model, way):
    expected = learned(ER(made(model), lr=0.05, memory=Reservoir(30), editing=editing, seed=7))

    network, memory = made(model), Reservoir(30)
    stream = benchmark().train_stream
    train(naive(network, plugin(memory, editing, seed=7)), stream if way == "tasks" else online(stream))
    assert memory.num_seen == TASKS * SIZE
    assert bool(memory.edit_count.any()) == (editing is not None and editing.write_back)
    assert_same(state(network, memory), expected)


@pytest.mark.parametrize("editing", [None, GMED(alpha=5.0, beta=0.01)])
def test_plugin_agrees_to_rounding_with_other_summation_order(plugin, editing):
    """Of known layers ER uses the look-ahead's gradient again: the same sum, rounded otherwise (here in float64)."""
    expected = learned(ER(made(mlp), lr=0.05, memory=Reservoir(30), editing=editing), torch.float64)
    network, memory = made(mlp), Reservoir(30)
    train(naive(network, plugin(memory, editing)), benchmark(torch.float64).train_stream)
    assert_same(state(network, memory), expected, atol=1e-10)


def test_passes_over_online_experiences_are_updates_per_batch(plugin):
    editing = GMED(alpha=5.0, beta=0.01)
    expected = learned(ER(made(OwnForward), lr=0.05, memory=Reservoir(30), editing=editing, updates_per_batch=3))
    network, memory = made(OwnForward), Reservoir(30)
    train(naive(network, plugin(memory, editing), train_epochs=3), online(benchmark().train_stream))
    assert_same(state(network, memory), expected)


def test_another_retrieval(plugin):
    expected = learned(ER(made(OwnForward), lr=0.05, memory=Reservoir(30), retrieval=Newest(), replay_size=4))
    network, memory = made(OwnForward), Reservoir(30)
    train(naive(network, plugin(memory, retrieval=Newest(), replay_size=4)), benchmark().train_stream)
    assert_same(state(network, memory), expected)


def test_adam_with_a_look_ahead_of_its_own(plugin):
    editing = GMED(alpha=5.0, beta=0.01)
    expected = learned(ERAdam(made(mlp), lr=0.05, adam_lr=1e-3, memory=Reservoir(30), editing=editing), torch.float64)
    network, memory = made(mlp), Reservoir(30)
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)
    train(naive(network, plugin(memory, editing, lr=0.05), optimizer=adam), benchmark(torch.float64).train_stream)
    assert_same(state(network, memory), expected, atol=1e-8)


def test_task_labels_change_nothing(plugin):
    from avalanche.benchmarks import task_incremental_benchmark

    found = []
    for labelled in (False, True):
        network, memory = made(OwnForward), Reservoir(30)
        stream = (task_incremental_benchmark(benchmark()) if labelled else benchmark()).train_stream
        train(naive(network, plugin(memory, GMED(alpha=5.0, beta=0.01))), stream)
        found.append(state(network, memory))
    assert_same(*found)


def test_other_plugins_see_the_incoming_batch(plugin):
    from avalanche.core import SupervisedPlugin

    seen = []

    class Witness(SupervisedPlugin):
        def before_backward(self, strategy, **kwargs):
            seen.append((strategy.mb_x.clone(), strategy.mb_y.clone(), len(strategy.mb_output)))

    train(naive(made(OwnForward), plugin(Reservoir(30)), Witness()), benchmark().train_stream)
    for (x, y, outputs), (x_d, y_d) in zip(seen, batches(), strict=True):
        assert torch.equal(x, x_d) and torch.equal(y, y_d) and outputs == len(y_d)


@pytest.mark.parametrize("way", ["checkpoint", "deepcopy", "pickle"])
def test_copied_plugin_continues_identically(plugin, way, tmp_path, monkeypatch):
    """Torch hides the module of SGD from dill, which Avalanche's checkpoints are written by: here it is shown."""
    monkeypatch.setattr(torch.optim, "sgd", sys.modules["torch.optim.sgd"], raising=False)
    from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint

    def fresh():
        network = made(batch_norm)
        return naive(network, plugin(Reservoir(30), GMED(alpha=5.0, beta=0.01, gamma=0.9)))

    strategy, experiences = fresh(), list(benchmark().train_stream)
    train(strategy, experiences[:2])
    if way == "checkpoint":
        save_checkpoint(strategy, tmp_path / "strategy.pkl")
        again, first = maybe_load_checkpoint(fresh(), tmp_path / "strategy.pkl")
        assert first == 2
    else:
        again = copy.deepcopy(strategy) if way == "deepcopy" else pickle.loads(pickle.dumps(strategy))
    before = strategy.plugins[0].memory.x.clone()
    train(again, experiences[2:])
    assert torch.equal(strategy.plugins[0].memory.x, before)  # the copy has a memory of its own
    train(strategy, experiences[2:])
    learner = strategy.plugins[0].learner
    assert again.plugins[0].learner.model is again.model and learner.steps == 50
    assert_same(state(again.model, again.plugins[0].memory), state(strategy.model, learner.memory))


def test_classes_that_come_one_after_another(plugin):
    """Avalanche's growing output layer: old examples are replayed on the outputs there are now."""
    from avalanche.models import IncrementalClassifier

    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.ReLU(), IncrementalClassifier(20, 2))
    memory = Reservoir(30)
    train(naive(network, plugin(memory, GMED(alpha=5.0, beta=0.01))), benchmark().train_stream)
    assert network(torch.rand(1, 1, 4, 4)).shape == (1, 10) and len(set(memory.y.tolist())) > 2


def test_non_finite_step_is_skipped(plugin):
    network, memory = made(OwnForward), Reservoir(30)
    strategy, first = naive(network, plugin(memory)), benchmark().train_stream[0]
    train(strategy, [first])
    before = state(network, memory)
    strategy._criterion = lambda output, y: nn.functional.cross_entropy(output, y) * torch.inf
    with pytest.raises(DivergedError, match="the step was not taken"):
        train(strategy, [first])
    assert_same(state(network, memory), before)


def test_stored_examples_are_forgotten_on_request(plugin):
    network, memory = made(OwnForward), Reservoir(30)
    replay, asked, stream = plugin(memory), 2, benchmark().train_stream
    strategy = naive(network, replay)
    train(strategy, stream[:3])
    stored = int((memory.y == asked).sum())
    assert stored and replay.learner.remove_examples(label=asked) == stored and len(memory) == 30 - stored
    train(strategy, stream[3:])
    assert asked not in memory.y[torch.from_numpy(memory.occupied())]


def multi_task():
    from avalanche.models import MTSimpleMLP

    return MTSimpleMLP(input_size=16)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (multi_task, {}, "needs task labels"),
        (OwnForward, {"criterion": nn.CrossEntropyLoss(reduction="sum")}, "must be a mean .* not 'sum'"),
        (OwnForward, {"train_epochs": 2}, "2 epochs over an experience of 10 batches are not online"),
    ],
)
def test_strategies_that_replay_cannot_join(plugin, model, options, says):
    with pytest.raises(UsageError, match=says):
        train(naive(model(), plugin(Reservoir(30)), **options), benchmark().train_stream)


def test_optimizers_that_do_not_say_how_far_to_look_ahead(plugin):
    network = OwnForward()
    groups = [{"params": network.hidden.parameters(), "lr": 0.1}, {"params": network.out.parameters(), "lr": 0.2}]
    for optimizer, kind in (
        (torch.optim.Adam(network.parameters()), "Adam;"),
        (torch.optim.SGD(groups), r"SGD with learning rates \[0.1, 0.2\]"),
    ):
        with pytest.raises(UsageError, match=rf"{kind}.*GMEDPlugin\(lr=...\)"):
            train(naive(network, plugin(Reservoir(30)), optimizer=optimizer), benchmark().train_stream)


def test_examples_that_cannot_be_stored(plugin):
    with pytest.raises(InputError, match=r"not torch.uint8; add a transform"):
        train(naive(OwnForward(), plugin(Reservoir(30))), benchmark(torch.uint8).train_stream)
    memory = Reservoir(30)
    memory.allocate(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(InputError, match=r"shape \(1, 4, 4\), stored ones \(3,\)"):
        train(naive(OwnForward(), plugin(memory)), benchmark().train_stream)


def test_memory_cannot_be_shared(plugin):
    memory = Reservoir(30)
    train(naive(OwnForward(), plugin(memory)), benchmark().train_stream)
    with pytest.raises(UsageError, match="is used by another learner"):
        train(naive(OwnForward(), plugin(memory)), benchmark().train_stream)


def test_the_page_and_the_docstring(plugin):
    import gmed.avalanche

    assert doctest.testmod(gmed.avalanche, optionflags=doctest.ELLIPSIS) == (0, 6)
    code, _ = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert len(names["plugin"].memory) == 500 and names["accuracy"] > 0.5


def test_missing_avalanche_says_what_to_install():
    code = "import sys; sys.modules['avalanche'] = sys.modules['avalanche.core'] = None; import gmed.avalanche"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "gmed.errors.UsageError: the Avalanche plugin needs Avalanche" in done.stderr
    assert "pip install 'gmed[avalanche]'" in done.stderr
