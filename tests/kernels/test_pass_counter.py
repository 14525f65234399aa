"""Counted passes through the model against counts by hand."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gmed.editing import GMED, OptimalEdit
from gmed.engine import ExecutionConfig, RunSpec, run_one
from gmed.kernels.pass_counter import counted_as
from gmed.learners import AGEM, BGD, CNDPM, ER, GEM, GSS, HAL, MIR, CompCL, FineTune, ProgNN
from gmed.memory import GSSGreedy, Reservoir, TaskRing
from gmed.models import MLP, PassCounter, ResNet18, is_batch_independent

N = 10  # examples in a batch, and replayed ones


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 4))


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))


def counted(learner, steps, tasks=(0, 0, 0, 0)):
    """The passes of each step, in examples."""
    found, g = [], torch.Generator().manual_seed(0)
    for step in range(steps):
        learner.passes = PassCounter()
        task = (tasks[step],) if learner.task_aware else ()
        learner.observe(torch.rand(N, 1, 4, 4, generator=g), torch.randint(4, (N,), generator=g), *task)
        found.append((learner.passes.forward, learner.passes.backward))
    return found


EDIT = GMED(alpha=1.0, beta=0.1)
BY_HAND = {
    # the batch alone; then the batch and ten replayed examples
    "finetune": (lambda: FineTune(plain(), lr=0.1), [(10, 10), (10, 10)]),
    "er": (lambda: ER(plain(), lr=0.1, memory=Reservoir(50)), [(10, 10), (20, 20)]),
    "er, two updates": (
        lambda: ER(plain(), lr=0.1, memory=Reservoir(50), updates_per_batch=2), [(20, 20), (40, 40)],
    ),
    # look-ahead 10; edit at θ and θ', 10 each; the update sends through what is replayed, the stream is known
    "er+gmed": (lambda: ER(plain(), lr=0.1, memory=Reservoir(50), editing=EDIT), [(10, 10), (40, 40)]),
    "er+gmed, three edits": (
        lambda: ER(plain(), lr=0.1, memory=Reservoir(50), editing=GMED(alpha=1.0, beta=0.1, steps=3)),
        [(10, 10), (80, 80)],
    ),
    # with batch-norm the update sends through stream and replay together
    "er+gmed, batch-norm": (
        lambda: ER(normed(), lr=0.1, memory=Reservoir(50), editing=EDIT), [(10, 10), (50, 50)],
    ),
    # 15 candidates at θ and θ' without gradients; with 10 stored there is nothing to choose
    "mir": (
        lambda: MIR(plain(), lr=0.1, memory=Reservoir(50), subsample=15),
        [(10, 10), (20, 20), (10 + 2 * 15 + 10, 20)],
    ),
    "agem": (lambda: AGEM(plain(), lr=0.1, memory=Reservoir(50), ref_batch_size=15), [(10, 10), (20, 20), (25, 25)]),
    "bgd": (lambda: BGD(plain(), samples=3), [(30, 30), (30, 30)]),
    # the second task has the first's 20 examples as its constraint
    "gem": (
        lambda: GEM(plain(), lr=0.1, memory=TaskRing(100, tasks=2)),
        [(10, 10), (10, 10), (30, 30), (30, 30)],
    ),
    # 3 + 2 updates on batches of 5 where it sleeps; examples are assigned once there is an expert, and all wait
    "cn-dpm": (
        lambda: CNDPM(plain(), stm_capacity=10, generator_steps=3, classifier_steps=2, sleep_batch=5, log_alpha=1e9),
        [(25, 25), (10 + 25, 25)],
    ),
    "cn-dpm, nothing new": (
        lambda: CNDPM(plain(), stm_capacity=10, generator_steps=3, classifier_steps=2, sleep_batch=5, log_alpha=-1e9),
        [(25, 25), (10, 10)],
    ),
    "prog-nn": (lambda: ProgNN(plain()), [(10, 10), (10, 10), (10, 10)]),
    "comp-cl": (lambda: CompCL(plain(), structure_steps=1), [(10, 10), (10, 10), (10, 10), (10, 10)]),
    # 10 replayed after θ' of the edit on 10, and 20 earlier ones: a first and a second derivative of the edited ones
    "er+optimal-edit": (
        lambda: ER(plain(), lr=0.1, memory=Reservoir(50), editing=OptimalEdit(alpha=0.1, examples=20)),
        [(10, 10), (10 + 10 + 10 + 10, 10 + 10 + 10 + 10 + 10), (10 + 10 + 20 + 10, 10 + 10 + 10 + 20 + 10)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_passes_by_hand(name):
    make, expected = BY_HAND[name]
    assert counted(make(), len(expected), tasks=(0, 0, 1, 1)) == expected


def test_gss_by_hand():
    """A step of ER; directions of stored batches, of each example, and of the batch where memory is full."""
    learner = GSS(plain(), lr=0.1, memory=GSSGreedy(20), updates_per_batch=1, n_compare=3)
    first, second, third = counted(learner, 3)
    assert first == (10, 10)  # nothing stored to compare with
    assert second == (20 + 10 + 10, 20 + 10 + 10)
    assert third in [(20 + 20 + 10, 20 + 20 + 10), (20 + 20 + 10 + 10, 20 + 20 + 10 + 10)]


def test_hal_by_hand():
    """Two passes over 20 stored examples and three steps of ascent where a task ends, with as many anchors as it has
    classes; their embedding is a pass of its own, and so is that of every batch, without gradient.
    """
    learner = HAL(plain(), lr=0.1, memory=Reservoir(50), memory_epochs=2, anchor_steps=3)
    first, second, third = counted(learner, 3, tasks=(0, 0, 1))
    assert (first, second) == ((20, 10), (30, 20))
    anchors = len(learner.anchors)
    assert anchors == 4
    made = 2 * 20 + 3 * 3 * anchors
    assert third == (made + 20 + 2 * anchors + 10, made + 20 + anchors)


def test_run_reports_passes_per_stream_example():
    """499 steps of 500 edit and replay; passes of evaluation and of the first look at a model are not the method's."""
    run = run_one(RunSpec.make("split-mnist", "er+gmed", 0), ExecutionConfig("cpu"))
    each = (10 + 499 * 40) / 5000
    assert run.passes == {"forward": each, "backward": each}


def test_counting_does_not_change_the_model():
    for watched in (MLP(), ResNet18()):
        with PassCounter().counting(watched):
            assert ER(watched, lr=0.1, memory=Reservoir(5)).is_capturable()
            assert is_batch_independent(watched) == isinstance(watched, MLP)


def test_only_the_counted_model_is_counted_and_only_inside():
    passes, watched, other = PassCounter(), plain(), plain()
    x, y = torch.rand(3, 1, 4, 4), torch.tensor([0, 1, 2])
    with passes.counting(watched):
        cross_entropy(other(x), y).backward()
        loss = cross_entropy(watched(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        watched[1](x.flatten(1)).sum().backward()  # a layer by itself is no pass of the model
    cross_entropy(watched(x), y).backward()
    assert passes == PassCounter(forward=3, backward=6)


def test_counted_as_multiplies_a_pass():
    model, passes = plain(), PassCounter()
    with passes.counting(model):
        model(torch.rand(3, 1, 4, 4)).sum().backward()
        with counted_as(7):
            loss = model(torch.rand(2, 1, 4, 4)).sum()
        loss.backward()
        model(torch.rand(1, 1, 4, 4))
    assert (passes.forward, passes.backward) == (3 + 7 * 2 + 1, 3 + 7 * 2)
