"""The interface for method authors: losses, optimizers, stored values and extras."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from gmed.editing import GMED
from gmed.engine.result import MemoryFootprint
from gmed.errors import DivergedError, UsageError
from gmed.learners import AGEM, BGD, ER, GEM, GSS, HAL, MIR, CompCL, ERAdam, ERAug, FineTune, ProgNN, Replay
from gmed.memory import GSSGreedy, Reservoir, TaskRing
from gmed.models import MLP
from gmed.registry import constructor_parameters
from helpers import random_batch


def batch(seed, classes=4):
    return random_batch(8, (6,), classes, seed)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


LEARNERS = {
    "finetune": lambda **options: FineTune(network(), lr=0.05, **options),
    "er": lambda **options: ER(network(), lr=0.05, memory=Reservoir(12), **options),
    "er+gmed": lambda **o: ER(network(), lr=0.05, memory=Reservoir(12), editing=GMED(alpha=1.0, beta=0.1), **o),
    "er, two updates": lambda **o: ER(network(), lr=0.05, memory=Reservoir(12), updates_per_batch=2, **o),
    "mir": lambda **options: MIR(network(), lr=0.05, memory=Reservoir(12), **options),
    "gss": lambda **options: GSS(network(), lr=0.05, memory=GSSGreedy(12), **options),
    "agem": lambda **options: AGEM(network(), lr=0.05, memory=Reservoir(12), **options),
    "gem": lambda **options: GEM(network(), lr=0.05, memory=TaskRing(12, tasks=2), **options),
    "hal": lambda **o: HAL(network(), lr=0.05, memory=Reservoir(12), anchor_steps=2, memory_epochs=1, **o),
}


def seeded(make, criterion):
    torch.manual_seed(0)
    return make(criterion=criterion)


def observe(learner, first, last):
    for seed in range(first, last):
        learner.observe(*batch(seed), *([seed // 5] if learner.task_aware else []))


# ---------------------------------------------------------------------- optimizers


@pytest.mark.parametrize("name", LEARNERS)
def test_torch_sgd_equals_the_builtin_step(name):
    usual, torchs = LEARNERS[name](), LEARNERS[name](optimizer=torch.optim.SGD)
    observe(usual, 0, 8)
    observe(torchs, 0, 8)
    x, _ = batch(99)
    torch.testing.assert_close(usual.logits(x), torchs.logits(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.SGD, momentum=0.9),
        torch.optim.Adam,
        partial(torch.optim.AdamW, lr=0.01),
        torch.optim.Adagrad,
        torch.optim.RMSprop,
    ],
    ids=["momentum", "adam", "adamw", "adagrad", "rmsprop"],
)
@pytest.mark.parametrize("name", ["er+gmed", "er, two updates", "gem"])
def test_saved_optimizers_continue_exactly(make, name, tmp_path):
    learner = LEARNERS[name](optimizer=make)
    observe(learner, 0, 6)
    learner.save(tmp_path / "state")
    other = LEARNERS[name](optimizer=make)
    other.load(tmp_path / "state")
    observe(learner, 6, 10)
    observe(other, 6, 10)
    same(learner.state_dict(), other.state_dict())
    assert all(p.grad is None for p in learner.model.parameters())


def test_momentum_equals_a_manual_loop():
    learner = FineTune(network(), lr=0.05, optimizer=partial(torch.optim.SGD, momentum=0.9))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for seed in range(5):
        x, y = batch(seed)
        learner.observe(x, y)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(learner.logits(x), model(x).detach(), rtol=0, atol=1e-6)


def test_an_optimizer_grows_with_the_model():
    learner = LEARNERS["er"](optimizer=torch.optim.Adam)
    observe(learner, 0, 4)
    before = learner.optimizer.state_dict()
    learner.add_classes(6)
    after = learner.optimizer.state_dict()
    assert torch.equal(after["2.exp_avg"][:4], before["2.exp_avg"])
    assert not after["2.exp_avg"][4:].any()
    learner.observe(*batch(7, classes=6))
    assert learner.optimizer.state_dict()["0.step"] == 5


def test_factored_optimizer_grows_with_the_model():
    learner = LEARNERS["er"](optimizer=torch.optim.Adafactor)
    observe(learner, 0, 4)
    learner.add_classes(6)
    learner.observe(*batch(7, classes=6))
    state = learner.optimizer.state_dict()
    assert (state["2.row_var"].shape, state["2.col_var"].shape) == ((6, 1), (1, 10))


@pytest.mark.parametrize("make", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9)], ids=["adam", "momentum"])
def test_optimizer_follows_the_dtype_of_the_model(make):
    learner, other = LEARNERS["er"](optimizer=make), LEARNERS["er"](optimizer=make)
    observe(learner, 0, 4)
    learner.model.double()
    other.model.double()
    other.load_state_dict(learner.state_dict())
    observe(learner, 4, 7)
    observe(other, 4, 7)
    same(learner.state_dict(), other.state_dict())
    kept = [t for name, t in learner.optimizer.state_dict().items() if not name.endswith("step")]
    assert {t.dtype for t in kept} == {torch.float64}


@pytest.mark.parametrize("make", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_unsupported_torch_optimizers_are_refused(make):
    with pytest.raises(UsageError, match=f"{make.__name__} cannot be the optimizer of a learner"):
        LEARNERS["er"](optimizer=make)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_diverging_step_does_not_change_the_optimizer(steps):
    learner = LEARNERS["er, two updates"](optimizer=torch.optim.Adam)
    observe(learner, 0, steps)
    before = learner.state_dict()
    x, y = batch(5)
    calls = []

    first_update = 3 if steps else 1  # calls until the second update fails

    def fails_later(output, labels):
        calls.append(1)
        return cross_entropy(output, labels) * (float("nan") if len(calls) > first_update else 1.0)

    learner.criterion = fails_later
    with pytest.raises(DivergedError):
        learner.observe(x, y)
    assert len(calls) > first_update
    same(learner.state_dict(), before)


def test_states_of_other_optimizers_are_refused():
    plain, adam = LEARNERS["er"](), LEARNERS["er"](optimizer=torch.optim.Adam)
    observe(adam, 0, 3)
    before = plain.state_dict()
    with pytest.raises(UsageError, match="another optimizer"):
        plain.load_state_dict(adam.state_dict())
    same(plain.state_dict(), before)


@pytest.mark.parametrize("wrong", [3, lambda parameters, lr: None, partial(torch.optim.SGD, nonsense=1)])
def test_non_optimizer_is_refused(wrong):
    with pytest.raises(UsageError, match="optimizer"):
        LEARNERS["er"](optimizer=wrong)


# ---------------------------------------------------------------------- losses


UPDATE_BY_THEIR_OWN_RULE = {
    "er-expanded": lambda **o: ERAdam(network(), lr=0.05, adam_lr=0.01, memory=Reservoir(12), **o),
    "bgd": lambda **o: BGD(network(), initial_std=0.1, samples=2, **o),
    "prog-nn": lambda **o: ProgNN(MLP(6, 10, classes=4), adam_lr=0.01, **o),
    "comp-cl": lambda **o: CompCL(MLP(6, 10, classes=4), adam_lr=0.01, structure_steps=1, **o),
}


@pytest.mark.parametrize("name", LEARNERS | UPDATE_BY_THEIR_OWN_RULE)
def test_criterion_replaces_cross_entropy(name):
    make = (LEARNERS | UPDATE_BY_THEIR_OWN_RULE)[name]
    usual, other = (seeded(make, criterion) for criterion in (cross_entropy, lambda o, y: cross_entropy(o, y)))
    halved = seeded(make, nn.CrossEntropyLoss(label_smoothing=0.3))
    for learner in (usual, other, halved):
        observe(learner, 0, 8)
    x, _ = batch(99)
    torch.testing.assert_close(usual.logits(x), other.logits(x), rtol=0, atol=1e-5)
    assert not torch.allclose(usual.logits(x), halved.logits(x), atol=1e-3)


class Squared(Replay):
    def loss(self, stream, replay):
        total = (stream.output**2).mean()
        return total if replay is None else total + cross_entropy(replay.output, replay.y)


def test_edit_looks_ahead_with_the_stream_loss():
    learner = Squared(network(), lr=0.1, memory=Reservoir(8), editing=GMED(alpha=1.0, beta=0.1))
    learner.observe(*batch(0))
    model, x_m, y_m = copy.deepcopy(learner.model), learner.memory.x.clone(), learner.memory.y.clone()
    x, y = batch(1)

    ahead = copy.deepcopy(model)
    (ahead(x) ** 2).mean().backward()
    torch.optim.SGD(ahead.parameters(), lr=0.1).step()
    x_e = x_m.clone().requires_grad_()
    before, after = cross_entropy(model(x_e), y_m), cross_entropy(ahead(x_e), y_m)
    (direction,) = torch.autograd.grad(after - before - 0.1 * before, x_e)
    expected = x_m + len(x_m) / learner.replay_size * direction

    drawn = learner.sample()
    edited = learner.edit(drawn, learner.look_ahead(x, y)).x
    torch.testing.assert_close(edited, expected[drawn], rtol=0, atol=1e-6)


class Distilling(Replay):
    """Keeps logits, replays towards them, from a second batch too."""

    def loss(self, stream, replay):
        stream.store(logits=stream.output)
        total = super().loss(stream, replay)
        if replay is not None:
            other = self.replayed("other")
            total = total + mse_loss(replay.output, replay["logits"]) + mse_loss(other.output, other["logits"])
        return total


def test_values_stored_by_a_loss_are_kept_with_the_examples():
    learner = Distilling(network(), lr=0.05, memory=Reservoir(30))
    first = copy.deepcopy(learner.model)
    learner.observe(*batch(0))
    torch.testing.assert_close(learner.memory.logits[:8], first(batch(0)[0]).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("stored", "message"), [(None, "takes a tensor"), (torch.ones(3, 2), "a row for each of the 8")]
)
def test_unstorable_values_are_refused(stored, message):
    class Wrong(Replay):
        def loss(self, stream, replay):
            stream.store(logits=stored)
            return super().loss(stream, replay)

    with pytest.raises(UsageError, match=message):
        Wrong(network(), lr=0.05, memory=Reservoir(30)).observe(*batch(0))


@pytest.mark.parametrize("name", ["agem", "gem", "hal"])
def test_every_step_stores_the_values_of_its_loss(name):
    learner = LEARNERS[name]()
    kind = type(learner)

    class Storing(kind):
        def loss(self, stream, replay):
            stream.store(logits=stream.output)
            return super().loss(stream, replay)

    learner.__class__ = Storing
    first = copy.deepcopy(learner.model)
    observe(learner, 0, 1)
    torch.testing.assert_close(learner.memory.logits[:6], first(learner.memory.x[:6]).detach(), rtol=0, atol=1e-6)


def test_stored_value_of_changed_shape_is_refused_before_the_update():
    learner = Distilling(network(), lr=0.05, memory=Reservoir(30))
    observe(learner, 0, 1)
    learner.loss = lambda stream, replay: (stream.store(logits=stream.output[:, :2]), stream.output.sum())[1]
    before = learner.state_dict()
    with pytest.raises(UsageError, match=r"'logits' in memory has the shape \(4,\) for each example, not \(2,\)"):
        learner.observe(*batch(1))
    same(learner.state_dict(), before)


def test_reading_a_value_never_stored_is_an_error():
    class Asks(Replay):
        def loss(self, stream, replay):
            return super().loss(stream, replay) + (0 if replay is None else replay["logits"].sum())

    learner = Asks(network(), lr=0.05, memory=Reservoir(30))
    learner.observe(*batch(0))
    with pytest.raises(UsageError, match=r"no 'logits' is stored .* stream.store\(logits=...\)"):
        learner.observe(*batch(1))


# ---------------------------------------------------------------------- extras


class Averaging(ER):
    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.register_extra("average", copy.deepcopy(model).requires_grad_(False))
        self.register_extra("count", torch.zeros((), dtype=torch.int64))
        self.fails = False

    def step(self, x, y):
        super().step(x, y)
        self.count = self.count + 1
        for mine, p in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mine.lerp_(p.detach(), 0.5)
        if self.fails:
            raise ZeroDivisionError

    @property
    def prediction_model(self):
        return self.average


def averaging(**options):
    return Averaging(network(), lr=0.05, memory=Reservoir(12), **options)


def test_extras_are_saved_and_loaded(tmp_path):
    learner, other = averaging(), averaging()
    observe(learner, 0, 5)
    learner.save(tmp_path / "state")
    other.load(tmp_path / "state")
    observe(learner, 5, 8)
    observe(other, 5, 8)
    same(learner.state_dict(), other.state_dict())
    assert other.count == 8
    same(copy.deepcopy(learner).state_dict(), other.state_dict())


class FailingMemory(Reservoir):
    fails = False

    def select_slots(self, labels, rng):
        if self.fails:
            raise ZeroDivisionError
        return super().select_slots(labels, rng)


class FailingOptimizer(torch.optim.SGD):
    fails = False

    def step(self, closure=None):
        super().step(closure)
        if self.fails:
            raise ZeroDivisionError


@pytest.mark.parametrize("fails", ["memory", "optimizer"])
def test_custom_code_failing_after_the_update_changes_nothing(fails):
    learner = ER(network(), lr=0.05, memory=FailingMemory(12), optimizer=partial(FailingOptimizer, momentum=0.9))
    observe(learner, 0, 3)
    before = learner.state_dict()
    {"memory": learner.memory, "optimizer": learner.optimizer.optimizer}[fails].fails = True
    with pytest.raises(ZeroDivisionError):
        learner.observe(*batch(3))
    same(learner.state_dict(), before)


@pytest.mark.parametrize("updates", [1, 2])
def test_extras_are_rolled_back_with_a_failed_step(updates):
    learner = averaging(updates_per_batch=updates)
    observe(learner, 0, 3)
    before, learner.fails = learner.state_dict(), True
    with pytest.raises(ZeroDivisionError):
        learner.observe(*batch(3))
    same(learner.state_dict(), before)


def test_predictions_use_the_network_named_by_the_method():
    learner = averaging()
    observe(learner, 0, 3)
    x, _ = batch(9)
    assert torch.equal(learner.logits(x), learner.average(x))
    assert torch.equal(learner.features(x), learner.average[:2](x))
    assert not torch.equal(learner.logits(x), learner.model(x))


def test_extras_follow_the_model_and_grow_with_it():
    learner = averaging()
    observe(learner, 0, 3)
    learner.add_classes(6)
    assert learner.average[-1].out_features == 6
    assert torch.equal(learner.average[-1].weight[4:], learner.model[-1].weight[4:])
    learner.model.double()
    learner.observe(*batch(4, classes=6))
    assert next(learner.average.parameters()).dtype == torch.float64
    assert learner.count.dtype == torch.int64


def test_extras_other_than_model_copies_do_not_grow():
    learner = averaging()
    learner.register_extra("head", nn.Sequential(nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 3)))
    observe(learner, 0, 2)
    learner.add_classes(6)
    assert (learner.head[-1].out_features, learner.average[-1].out_features) == (3, 6)
    learner.observe(*batch(4, classes=6))


@pytest.mark.parametrize("name", ["model", "step", "memory", "two words"])
def test_extras_cannot_reuse_a_name(name):
    with pytest.raises(UsageError, match=r"cannot be registered: .*; choose another name"):
        averaging().register_extra(name, torch.zeros(1))


def test_states_without_extras_are_refused_and_change_nothing():
    plain, learner = ER(network(), lr=0.05, memory=Reservoir(12)), averaging()
    observe(plain, 0, 2)
    observe(learner, 0, 3)
    before = learner.state_dict()
    with pytest.raises(UsageError):
        learner.load_state_dict(plain.state_dict())
    same(learner.state_dict(), before)


def test_extras_and_optimizers_count_as_memory():
    plain, learner = ER(network(), lr=0.05, memory=Reservoir(12)), averaging(optimizer=torch.optim.Adam)
    observe(plain, 0, 2)
    observe(learner, 0, 2)
    network_bytes = sum(p.nbytes for p in network().parameters())
    added = MemoryFootprint.of(learner, 6).bytes - MemoryFootprint.of(plain, 6).bytes
    assert added == network_bytes + 8 + 2 * network_bytes + 4 * 4  # average, count, moments, Adam's counts of steps


# ---------------------------------------------------------------------- constructors


def test_constructors_forward_shared_parameters():
    learner = ERAug(network(), lr=0.05, memory=Reservoir(12), replay_size=3, crop=1)
    assert learner.replay_size == 3
    with pytest.raises(TypeError, match="nonsense"):
        ER(network(), lr=0.05, memory=Reservoir(12), nonsense=1)
    with pytest.raises(UsageError, match="GSS needs a GSSGreedy memory"):
        GSS(network(), lr=0.05)
    assert "replay_size" in constructor_parameters(GSS)
