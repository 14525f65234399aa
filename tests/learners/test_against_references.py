"""Each method against an independent reference: brute force, closed form or finite differences."""

import copy
import math

import numpy as np
import pytest
import quadprog
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gmed.augmentation import Augmentation
from gmed.editing import EditContext, OptimalEdit, RandomEdit
from gmed.editing.base import History
from gmed.learners import AGEM, BGD, GEM, GSS, HAL, MIR, ERTricks
from gmed.learners.gem import dual
from gmed.memory import GSSGreedy, LossAwareReservoir, Reservoir, TaskRing
from gmed.memory.loss_aware import eviction_probabilities
from gmed.models import LookAhead
from gmed.retrieval import interference, most_interfered
from gmed.rng import make_rng
from helpers import random_batch


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def batch(n, seed):
    return random_batch(n, (1, 4, 4), 4, seed, torch.float64)


def stepped(model, loss, lr):
    after = copy.deepcopy(model)
    grads = torch.autograd.grad(loss(after), list(after.parameters()))
    with torch.no_grad():
        for p, g in zip(after.parameters(), grads, strict=True):
            p -= lr * g
    return after


# ---------------------------------------------------------------- MIR


def test_mir_scores_and_choice_by_brute_force():
    model, (x, y) = mlp(), batch(10, 1)
    memory = Reservoir(60)
    stored = batch(60, 2)
    memory.allocate(*stored)
    memory.insert(*stored, make_rng(0, "reservoir"))
    ahead = LookAhead(model, x, y, lr=0.3)
    after = stepped(model, lambda m: cross_entropy(m(x), y), 0.3)
    candidates = torch.arange(5, 55)
    rise = []
    for slot in candidates.tolist():
        one = stored[0][slot : slot + 1], stored[1][slot : slot + 1]
        with torch.no_grad():
            rise.append(float(cross_entropy(after(one[0]), one[1]) - cross_entropy(model(one[0]), one[1])))
    scores = interference(ahead, stored[0][candidates], stored[1][candidates])
    np.testing.assert_allclose(scores.numpy(), rise, atol=1e-12)
    expected = {candidates[i].item() for i in np.argsort(rise)[-10:]}
    assert set(most_interfered(memory, candidates, 10, ahead).tolist()) == expected


def test_mir_shares_one_look_ahead(monkeypatch):
    made = []
    original = LookAhead.stream_gradient.func
    monkeypatch.setattr(LookAhead.stream_gradient, "func", lambda self: made.append(1) or original(self))
    learner = MIR(mlp(), lr=0.1, memory=Reservoir(100), subsample=20, extra_batches=2)
    for t in range(5):
        learner.observe(*batch(10, t))
    made.clear()
    learner.observe(*batch(10, 9))
    assert len(made) == 1


# ---------------------------------------------------------------- GEM, A-GEM


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_gem_projection_by_another_solver_and_by_its_constraints(seed, margin):
    rng = np.random.default_rng(seed)
    G, g = torch.tensor(rng.standard_normal((4, 30))), torch.tensor(rng.standard_normal(30))
    v = dual(G, g, margin)
    P = (G @ G.T).numpy() + 1e-3 * np.eye(4)
    expected = quadprog.solve_qp(P, -(G @ g).numpy(), np.eye(4), np.full(4, margin))[0]
    np.testing.assert_allclose(v, expected, atol=1e-9)
    projected = g + G.T @ torch.tensor(v)
    assert (G @ projected > -1e-2).all()  # 1e-3 on the diagonal leaves a little slack
    if margin == 0:  # and no closer gradient obeys them, among many tried
        distance = float((projected - g).norm())
        for _ in range(200):
            other = projected + 0.05 * torch.tensor(rng.standard_normal(30))
            assert (G @ other < 0).any() or float((other - g).norm()) > distance - 1e-3


def test_gem_never_steps_against_an_earlier_task():
    learner = GEM(mlp(), lr=1e-4, memory=TaskRing(60, tasks=3), memory_strength=0.0)
    for t in range(30):
        learner.observe(*batch(10, t), t // 10)
    held = learner.memory
    for t in range(30, 40):
        before = copy.deepcopy(learner.model)
        learner.observe(*batch(10, 100 + t), 2)
        for task in (0, 1):
            slots = torch.from_numpy(held.task_slots(task))
            old, new = (cross_entropy(m(held.x[slots]), held.y[slots]) for m in (before, learner.model))
            assert float((new - old).detach()) < 1e-6


def test_task_ring_keeps_the_latest_of_every_task():
    ring = TaskRing(12, tasks=3)
    x = torch.arange(40.0).unsqueeze(1)
    ring.allocate(x, x[:, 0].long())
    for task, start in ((0, 0), (1, 14), (2, 30)):
        ring.set_task(task)
        for at in range(start, {0: 14, 1: 30, 2: 33}[task], 3):
            ring.insert(x[at : at + 3], x[at : at + 3, 0].long(), make_rng(0, "reservoir", at))
    assert sorted(ring.stream_index[ring.task_slots(0)].tolist()) == [11, 12, 13, 14]
    assert len(ring.task_slots(1)) == 4
    assert len(ring.task_slots(2)) == 3
    assert len(ring) == 11


def test_agem_by_its_formula():
    model, lr = mlp(), 0.1
    learner = AGEM(copy.deepcopy(model), lr=lr, memory=Reservoir(30), ref_batch_size=256)
    x = batch(10, 1)[0]
    first, second = (x, torch.zeros(10).long()), (x, torch.ones(10).long())  # a conflict: other labels
    learner.observe(*first)
    before = copy.deepcopy(learner.model)
    learner.observe(*second)

    def flat(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(before.parameters()))])

    g, ref = flat(cross_entropy(before(second[0]), second[1])), flat(cross_entropy(before(first[0]), first[1]))
    assert g @ ref < 0
    expected = g - (g @ ref) / (ref @ ref) * ref
    moved = torch.cat([(b - a).flatten() for a, b in zip(learner.model.parameters(), before.parameters(), strict=True)])
    torch.testing.assert_close(moved / lr, expected.detach(), rtol=0, atol=1e-12)


# ---------------------------------------------------------------- GSS


def test_gss_scores_by_brute_force():
    """Compared with every stored example, one at a time: the largest of all cosines."""
    learner = GSS(mlp(), lr=0.05, memory=GSSGreedy(6), replay_size=1, n_compare=6)
    learner.observe(*batch(4, 2))
    x, y = batch(3, 3)
    g, stored = (
        [flat_gradient(learner.model, *e) for e in zip(*pair, strict=True)] for pair in ((x, y), held(learner))
    )
    expected = [1 + max(float(a @ b / a.norm() / b.norm()) for b in stored) for a in g]
    torch.testing.assert_close(learner.scores(x, y), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def held(learner):
    slots = learner.memory.occupied()
    return learner.memory.x[slots], learner.memory.y[slots]


def flat_gradient(model, x, y):
    loss = cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0))
    return torch.cat([p.flatten() for p in torch.autograd.grad(loss, list(model.parameters()))])


def test_gss_replacement_probabilities_by_enumeration():
    """Two slots, one newcomer: how often each is taken against the product of the two chances."""
    held, score, draws = np.array([1.6, 0.8]), 0.5, 20_000
    redundancy = held - held.min() + 0.01
    expected = redundancy / redundancy.sum() * held / (held + score)
    taken = np.zeros(2)
    memory = GSSGreedy(2)
    x, y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)
    memory.allocate(x, y)
    memory.insert(x, y, make_rng(0, "reservoir"), score=torch.tensor(held))
    rng = np.random.default_rng(0)
    for _ in range(draws):
        slot = memory.select_slots(y[:1], rng, score=torch.tensor([score]))[0]
        if slot < 2:
            taken[slot] += 1
    error = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(taken / draws - expected) < 4.5 * error + 1e-4).all()


def test_gss_ignores_repeated_batches():
    learner = GSS(mlp(), lr=0.05, memory=GSSGreedy(10), n_compare=4)
    same = batch(10, 5)
    for _ in range(6):
        learner.observe(*same)  # its own gradient is in memory: nothing new
    assert learner.memory.stream_index.tolist() == list(range(10))
    assert learner.memory.num_seen == 60


# ---------------------------------------------------------------- ER with tricks


def test_loss_aware_reservoir_by_its_formula():
    labels, losses = np.array([0, 0, 0, 1, 2, 2]), np.array([0.1, 2.0, 0.5, 0.2, 1.0, 0.3])
    counts = np.array([3, 3, 3, 1, 2, 2.0])
    scale = sum(abs(losses)) / sum(counts)
    score = [max(0.0, scale * c - loss) for c, loss in zip(counts, losses, strict=True)]
    np.testing.assert_allclose(eviction_probabilities(labels, losses), np.array(score) / sum(score))


def test_tricks_decay_the_learning_rate_and_track_losses():
    learner = ERTricks(mlp(), lr=0.1, memory=LossAwareReservoir(25), lr_decay=0.99)
    for t in range(8):
        learner.observe(*batch(10, t))
    assert learner.lr_now == pytest.approx(0.1 * 0.99**80)
    assert (learner.memory.loss > 0).all()
    assert len(set(learner.memory.stream_index.tolist())) == 25


# ---------------------------------------------------------------- BGD


class Quadratic(nn.Module):
    """Logits (w, 0): with label 1 the loss is log(1 + e^w), smooth and known."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))

    def forward(self, x):
        return torch.stack([self.w.expand(len(x)) * x[:, 0], torch.zeros(len(x), dtype=torch.float64)], 1)


@pytest.mark.slow
def test_bgd_against_its_closed_form_with_exact_expectations():
    """Expectations over ε by quadrature against Monte Carlo with many samples, one step."""
    x, y = torch.ones(6, 1, dtype=torch.float64), torch.ones(6, dtype=torch.long)
    mu, sigma, eta = 0.3, 0.5, 2.0
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    slope = 6 / (1 + np.exp(-(mu + sigma * nodes)))  # gradient of 6 log(1 + e^w)
    first, second = float(weights @ slope), float(weights @ (slope * nodes))
    expected_mu = mu - eta * sigma**2 * first
    expected_sigma = sigma * math.sqrt(1 + (0.5 * sigma * second) ** 2) - 0.5 * sigma**2 * second

    samples = 40_000
    learner = BGD(Quadratic(), eta=eta, initial_std=sigma, samples=samples)
    learner.observe(x, y)
    spread = float(np.sqrt(weights @ slope**2 - first**2)) / math.sqrt(samples)
    assert float(learner.model.w.detach()) == pytest.approx(expected_mu, abs=5 * eta * sigma**2 * spread)
    assert float(learner.std["w"]) == pytest.approx(expected_sigma, abs=0.01)


class Regression(nn.Module):
    """A linear model of two inputs; the labels 0 .. 9 are its targets."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return (x @ self.w).unsqueeze(1).expand(-1, 10)


class GaussianBGD(BGD):
    precision = 0.01  # of the observation noise

    def summed_loss(self, output, y):
        return 0.5 * self.precision * ((output[:, 0] - y) ** 2).sum()


@pytest.mark.slow
def test_bgd_finds_the_exact_posterior_of_a_linear_gaussian_model():
    """Inputs along the axes, so the posterior is a product of two Gaussians, known in closed form. BGD's steps approach
    it as each example carries less information: here at most 0.01 of the prior's."""
    rng = np.random.default_rng(0)
    axis, scale = rng.integers(2, size=300), np.array([1.0, 0.5])
    x = np.eye(2)[axis] * scale
    y = rng.integers(0, 10, 300)
    learner = GaussianBGD(Regression(), eta=1.0, initial_std=1.0, samples=100)
    for i in range(300):
        learner.observe(x[i : i + 1], y[i : i + 1])
    information = 1.0 + learner.precision * (x**2).sum(0)
    mean = learner.precision * (x * y[:, None]).sum(0) / information
    np.testing.assert_allclose(learner.std["w"], information**-0.5, rtol=0.02)
    np.testing.assert_allclose(learner.model.w.detach(), mean, rtol=0.02)


# ---------------------------------------------------------------- the optimal and the random edit


def test_optimal_edit_against_finite_differences_through_the_update():
    model, (x_m, y_m), (x, y), earlier = mlp(), batch(4, 1), batch(10, 2), batch(30, 3)
    lr, alpha = 0.5, 1.0

    def forgotten(x_moved):
        after = stepped(model, lambda m: cross_entropy(m(x), y) + cross_entropy(m(x_moved), y_m), lr)
        with torch.no_grad():
            rise = cross_entropy(after(earlier[0]), earlier[1]) - cross_entropy(model(earlier[0]), earlier[1])
        return 30 * float(rise)

    context = EditContext(LookAhead(model, x, y, lr=lr), 10, lambda: make_rng(0, "editing"), History(*earlier))
    moved = OptimalEdit(alpha=alpha, examples=30).edit(x_m, y_m, torch.zeros(4), context)
    numeric, h = torch.zeros_like(x_m), 1e-5
    for i in range(x_m.numel()):
        bump = torch.zeros_like(x_m)
        bump.view(-1)[i] = h
        numeric.view(-1)[i] = (forgotten(x_m + bump) - forgotten(x_m - bump)) / (2 * h)
    torch.testing.assert_close(moved - x_m, -alpha * numeric, rtol=1e-4, atol=1e-8)
    assert forgotten(x_m + 0.01 * (moved - x_m)) < forgotten(x_m)  # it protects


def test_random_edit_has_its_length_and_no_preferred_direction():
    x = torch.zeros(4000, 1, 2, 2, dtype=torch.float64)
    moved = RandomEdit(stride=0.7).edit(
        x, torch.zeros(4000), torch.zeros(4000), EditContext(None, 10, lambda: make_rng(0, "e"))
    )
    np.testing.assert_allclose(moved.flatten(1).norm(dim=1), 0.7)
    assert moved.mean(0).abs().max() < 4.5 * 0.7 / 2 / math.sqrt(4000)


# ---------------------------------------------------------------- HAL


def test_hal_makes_one_anchor_for_each_class_of_a_finished_task():
    learner = HAL(mlp(), lr=0.1, memory=Reservoir(40), anchor_steps=5, memory_epochs=2)
    for task, classes in enumerate(([0, 1], [2, 3], [1, 2])):
        for t in range(3):
            x, y = batch(10, 10 * task + t)
            learner.observe(x, torch.tensor(classes)[y % 2], task)
    assert [label for _, label in learner.anchors] == [0, 1, 2, 3]  # the third task is not over
    assert all(torch.isfinite(anchor).all() for anchor, _ in learner.anchors)


def test_hal_anchors_climb_their_objective():
    learner = HAL(mlp(), lr=0.1, memory=Reservoir(40), anchor_steps=0, memory_epochs=3, anchor_lr=0.05)
    for t in range(5):
        learner.observe(*batch(10, t), 0)

    def value(steps):
        learner.anchor_steps = steps
        anchors = learner.make_anchors()
        e, y = torch.stack([a for a, _ in anchors]), torch.tensor([label for _, label in anchors])
        hindsight, trained = copy.deepcopy(learner.model), learner.finetune_on_memory()
        with torch.no_grad():
            for name, p in hindsight.named_parameters():
                p.copy_(trained[name])
            features = learner.model[:-1](e)
            near = sum(((f - learner.embeddings[int(label)]) ** 2).sum() for f, label in zip(features, y, strict=True))
            rise = cross_entropy(hindsight(e), y, reduction="sum") - cross_entropy(learner.model(e), y, reduction="sum")
            return float(rise - learner.embedding_weight * near)

    assert value(40) > value(0)


# ---------------------------------------------------------------- augmentation


def augmented(x, **options):
    augment = Augmentation(**options)
    return augment(x, torch.from_numpy(augment.maps(x.shape, make_rng(0, "a"))))


def test_augmentation_without_parameters_changes_nothing():
    x = torch.rand(6, 3, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(augmented(x), x, rtol=0, atol=1e-12)


def test_shifts_are_whole_pixels_with_zero_fill():
    x = torch.rand(200, 1, 8, 8, dtype=torch.float64) + 1
    seen = set()
    for image, moved in zip(x, augmented(x, crop=2), strict=True):
        padded = nn.functional.pad(image, (2, 2, 2, 2))
        fits = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.allclose(moved, padded[:, i : i + 8, j : j + 8], atol=1e-9)
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) == 25


def test_flips_mirror_about_half_of_the_images():
    x = torch.rand(400, 1, 5, 7, dtype=torch.float64)
    y = augmented(x, flip=True)
    flipped = (y - x.flip(3)).abs().flatten(1).amax(1) < 1e-9
    same = (y - x).abs().flatten(1).amax(1) < 1e-9
    assert (flipped ^ same).all()
    assert 150 < int(flipped.sum()) < 250


def test_rotation_and_scaling_move_a_point_as_they_should():
    x = torch.zeros(300, 1, 33, 33, dtype=torch.float64)
    x[:, 0, 16, 26] = 1  # ten pixels right of the centre
    y = augmented(x, rotation=30, scaling=0.2)
    rows, columns = torch.meshgrid(torch.arange(33.0) - 16, torch.arange(33.0) - 16, indexing="ij")
    mass = y.sum((1, 2, 3))
    down, right = ((y[:, 0] * c.double()).sum((1, 2)) / mass for c in (rows, columns))
    angle, radius = torch.atan2(down, right).rad2deg(), (down**2 + right**2).sqrt()
    assert -31 < angle.min() < -25
    assert 25 < angle.max() < 31
    assert 7.7 < radius.min() < 8.8
    assert 11.2 < radius.max() < 12.3
