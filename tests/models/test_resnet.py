"""The reduced ResNet-18, and batch norm in learners."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gmed.editing import GMED, AdversarialEdit, EditContext, History, OptimalEdit
from gmed.engine import RunSpec
from gmed.engine.runner import make_learner
from gmed.errors import UsageError
from gmed.learners import AGEM, BGD, ER, GEM, GSS, HAL, MIR, ERAug, ERTricks, FineTune, ProgNN
from gmed.memory import GSSGreedy, LossAwareReservoir, Reservoir, TaskRing
from gmed.models import LookAhead, ResNet18, forward, trainable
from gmed.models.batch_norm import BatchNorm
from gmed.retrieval import interference
from helpers import random_batch


def small(classes=4):
    torch.manual_seed(0)
    return ResNet18(classes=classes, size=25, width=4)


def batch(n=6, seed=0, size=25):
    return random_batch(n, (3, size, size), 4, seed)


def statistics(model):
    return {name: b.clone() for name, b in model.named_buffers()}


def unchanged(model, before):
    return all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_resnet18_has_the_reduced_architecture():
    """1.09 million parameters with nf = 20: the count follows from the architecture alone."""

    def conv(before, after, size=3):
        return before * after * size * size + 2 * after  # with its batch-norm

    expected = conv(3, 20) + 160 * 10 + 10
    for before, after in ((20, 20), (20, 40), (40, 80), (80, 160)):
        expected += conv(before, after) + 3 * conv(after, after)
        expected += conv(before, after, 1) if before != after else 0
    assert sum(p.numel() for p in ResNet18().parameters()) == expected
    assert ResNet18(classes=100, size=84)(torch.zeros(1, 3, 84, 84)).shape == (1, 100)
    assert [m.stride for m in ResNet18().modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)].count(
        (2, 2)
    ) == 3
    assert not any(isinstance(m, nn.MaxPool2d) for m in ResNet18().modules())
    with pytest.raises(UsageError, match="25 x 25"):
        ResNet18(size=24)


def test_passes_at_other_parameters_use_batch_statistics_and_keep_none():
    model, (x, y) = small(), batch()
    before = statistics(model)
    assert torch.allclose(forward(model, trainable(model), x), copy.deepcopy(model)(x))  # as the training pass
    ahead = LookAhead(model, x, y, lr=0.1)
    ahead.loss_after(*batch(seed=1))
    interference(ahead, *batch(seed=2))
    GMED(alpha=1.0, beta=0.1).edit(*batch(seed=3), torch.zeros(6), _moment(ahead))
    AdversarialEdit(stride=0.1).edit(*batch(seed=3), torch.zeros(6), _moment(ahead))
    OptimalEdit(alpha=0.1).edit(*batch(seed=3), torch.zeros(6), _moment(ahead))
    assert unchanged(model, before)
    assert all(m.track_running_stats for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def _moment(ahead):
    return EditContext(ahead, 10, history=History(*batch(12, seed=9)))


def test_evaluation_mode_uses_running_statistics():
    model, x = small(), batch()[0]
    model(x)
    model.eval()
    before = statistics(model)
    assert torch.allclose(forward(model, trainable(model), x), model(x))
    assert unchanged(model, before)
    assert not torch.allclose(model(x), copy.deepcopy(model).train()(x))


def test_predicting_uses_running_statistics_and_changes_nothing():
    learner = ER(small(), lr=0.1, memory=Reservoir(20))
    learner.observe(*batch())
    before = statistics(learner.model)
    one = learner.logits(batch(1, seed=5)[0])
    among_others = learner.logits(torch.cat([batch(1, seed=5)[0], batch(7, seed=6)[0]]))[:1]
    torch.testing.assert_close(one, among_others)
    assert unchanged(learner.model, before)
    assert learner.model.training


def counting(model):
    """The same model with torch's own batch-norm, which counts the batches it keeps statistics of."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, BatchNorm):
                setattr(module, name, nn.BatchNorm2d(child.num_features))
    return model


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("keeping", [True, False])
def test_batch_norm_equals_torch_except_for_the_counter(training, keeping):
    ours, torchs = BatchNorm(3), nn.BatchNorm2d(3)
    for norm in (ours, torchs):
        norm(batch()[0])
        norm.train(training)
        norm.track_running_stats = keeping
    x = batch(seed=1)[0]
    assert torch.equal(ours(x), torchs(x))
    assert torch.equal(ours.running_mean, torchs.running_mean) and torch.equal(ours.running_var, torchs.running_var)


LEARNERS = {
    "finetune": lambda m: FineTune(m, lr=0.1),
    "er": lambda m: ER(m, lr=0.1, memory=Reservoir(8)),
    "er+gmed": lambda m: ER(m, lr=0.1, memory=Reservoir(8), editing=GMED(alpha=1.0, beta=0.1, steps=2, extra=3)),
    "mir+gmed": lambda m: MIR(m, lr=0.1, memory=Reservoir(8), editing=GMED(alpha=1.0, beta=0.1), replay_size=3),
    "er-aug+gmed": lambda m: ERAug(
        m, lr=0.1, memory=Reservoir(8), editing=GMED(alpha=1.0, beta=0.1), crop=2, flip=True
    ),
    "er-t": lambda m: ERTricks(m, lr=0.1, memory=LossAwareReservoir(8), lr_decay=0.9),
    "agem": lambda m: AGEM(m, lr=0.1, memory=Reservoir(8)),
    "gss": lambda m: GSS(m, lr=0.1, memory=GSSGreedy(8), updates_per_batch=1),
    "bgd": lambda m: BGD(m, samples=3),
    "gem": lambda m: GEM(m, lr=0.1, memory=TaskRing(8, tasks=2)),
    "hal": lambda m: HAL(m, lr=0.1, memory=Reservoir(8), anchor_steps=2, memory_epochs=1),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_one_update_keeps_the_statistics_of_one_batch(name):
    """Whatever else a step computes, running statistics move once, by the pass the update is made with."""
    learner = LEARNERS[name](counting(small()))
    for step in range(4):
        learner.observe(*batch(seed=step), *((step // 2,) if learner.task_aware else ()))
    counted = {int(b) for n, b in learner.model.named_buffers() if n.endswith("num_batches_tracked")}
    assert counted == {4}
    assert all(torch.isfinite(b).all() for b in learner.model.buffers())
    assert learner.predict(batch(3, seed=7)[0]).shape == (3,)


def test_stream_and_replay_share_one_batch_of_statistics():
    """The update is made with one forward over both, so the first layer's mean is that of all examples together."""
    learner = ER(small(), lr=0.1, memory=Reservoir(8), replay_size=4)
    learner.observe(*batch(seed=0))
    x, y = batch(seed=1)
    twin = copy.deepcopy(learner.model)
    drawn = learner.draw()
    x_m, y_m = learner.memory.x[drawn], learner.memory.y[drawn]
    learner.observe(x, y)
    logits = twin(torch.cat([x, x_m]))
    loss = cross_entropy(logits[:6], y) + cross_entropy(logits[6:], y_m)
    slope = torch.autograd.grad(loss, list(twin.parameters()))
    for after, before, g in zip(learner.model.parameters(), twin.parameters(), slope, strict=True):
        torch.testing.assert_close(after, before - 0.1 * g)
    assert unchanged(learner.model, statistics(twin))


def test_a_batch_of_one_image_is_enough():
    learner = ER(small(), lr=0.1, memory=Reservoir(8), editing=GMED(alpha=1.0, beta=0.1))
    for step in range(3):
        learner.observe(*batch(1, seed=step))
    assert len(learner.memory) == 3


@pytest.mark.slow
@pytest.mark.parametrize("size", [25, 40])
def test_memory_format_changes_only_rounding(size):
    def learned(layout):
        torch.manual_seed(0)
        model = ResNet18(size=size).double().to(memory_format=layout)
        learner = ER(model, lr=0.05, memory=Reservoir(20), editing=GMED(alpha=1.0, beta=0.1))
        g = torch.Generator().manual_seed(0)
        for _ in range(3):
            x = torch.rand(5, 3, size, size, generator=g, dtype=torch.float64)
            learner.observe(x, torch.randint(10, (5,), generator=g))
        return learner

    first, last = learned(torch.contiguous_format), learned(torch.channels_last)
    kernels = [p for p in last.model.parameters() if p.ndim == 4]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(last.state_dict()[name], tensor)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("benchmark", ["split-cifar10", "split-mini-imagenet"])
def test_weights_use_the_fastest_memory_format(device, benchmark):
    model = make_learner(RunSpec.make(benchmark, "er", 0), torch.device(device)).model
    kernels = [p for p in model.parameters() if p.ndim == 4 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)


def with_old_names(state):
    """The names that the tensors of a ResNet-18 had before the release that renamed its layers."""
    pairs = (("shortcut.", "around."), (".bn1.", ".norm1."), (".bn2.", ".norm2."))
    renamed = {}
    for name, tensor in state.items():
        if ".0." not in name and ".1." not in name and "blocks" not in name:
            name = name.replace("conv1.", "first.").replace("bn1.", "norm.")
        for new, old in pairs:
            name = name.replace(new, old)
        renamed[name] = tensor
    return renamed


def test_states_saved_before_layers_were_renamed_still_load():
    model = ResNet18()
    old = with_old_names(model.state_dict())
    assert {"first.weight", "norm.bias", "blocks.2.around.1.weight", "blocks.0.norm2.bias"} <= old.keys()
    loaded = ResNet18()
    loaded.load_state_dict(old)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    with pytest.warns(DeprecationWarning, match="conv1"):
        assert loaded.first is loaded.conv1


@pytest.mark.parametrize("make", [lambda m: FineTune(m, lr=0.1), ProgNN])
def test_learners_saved_before_layers_were_renamed_still_load(make):
    torch.manual_seed(0)
    first, second = make(ResNet18()), make(ResNet18())
    state = with_old_names(first.state_dict())
    assert any("around" in name for name in state)
    second.load_state_dict(state)
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())
