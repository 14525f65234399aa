"""Learners with growing networks against references."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, one_hot

from gmed.engine import ExecutionConfig, RunResult, RunSpec, get_benchmark, run_one
from gmed.engine.result import MemoryFootprint
from gmed.engine.runner import evaluate_tasks
from gmed.errors import GmedError, InputError, UsageError
from gmed.learners import CNDPM, CompCL, ERAdam, ProgNN
from gmed.learners.adam import Adam
from gmed.memory import Reservoir
from gmed.models import MLP, CompositionalNet, ExpertMixture, ProgressiveNet, ResNet18
from gmed.models.expert_mixture import expanded_classifier
from gmed.paper import quantities
from gmed.paper.artifacts import Request, get_artifact
from gmed.results import Store
from gmed.results.metrics import Metrics
from gmed.streams import Examples
from helpers import random_batch


def small(inputs=16, classes=4):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, classes)
    )


def images(count=8, seed=0, classes=4, shape=(1, 4, 4)):
    return random_batch(count, shape, classes, seed)


def changed(before, after):
    """The names whose tensors differ, and those that only one of two states has."""
    return {
        n for n in before.keys() | after.keys() if n not in before or n not in after or not same(before[n], after[n])
    }


def same(a, b):
    return a.shape == b.shape and torch.equal(a, b)


# ---------------------------------------------------------------------- Adam


def test_adam_equals_torch():
    torch.manual_seed(0)
    theirs = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
    ours = [p.detach().clone() for p in theirs]
    reference, mine = torch.optim.Adam(theirs, lr=0.03), Adam(ours, lr=0.03)
    for step in range(20):
        for p in theirs:
            p.grad = torch.randn(p.shape) * 10.0 ** (step % 5 - 3)
        mine.step([p.grad for p in theirs])
        reference.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-5, atol=1e-6)


def test_er_with_adam_differs_from_er_only_in_the_update():
    """Against torch's Adam on the sum of the two mean losses, examples replayed as the memory drew them."""
    model, reference = small(), small()
    learner = ERAdam(model, lr=0.1, adam_lr=0.01, memory=Reservoir(50), seed=3)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.01)
    for step in range(6):
        x, y = images(seed=step)
        drawn = learner.sample(10, "replay") if step else None
        replayed = (learner.memory.x[drawn], learner.memory.y[drawn]) if step else None
        learner.observe(x, y)
        loss = cross_entropy(reference(x), y)
        if replayed:
            loss = loss + cross_entropy(reference(replayed[0]), replayed[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------- CN-DPM


def mixture(experts=3, counts=(7.0, 2.0, 30.0)):
    torch.manual_seed(1)
    made = ExpertMixture.for_model(small(), samples=5)
    for _ in range(experts):
        made.add()
    made.counts.copy_(torch.tensor(counts[:experts]))
    return made.double().eval()


def by_hand(mixture, x):
    """-log p(x | k) and log P(y | x, k) of the expert that is not there and of each there is, one example at a time."""
    bounds, classes = [], []
    for example in x.double():
        rows = [part_fn([mixture.untrained], mixture.noise, example)]
        rows += [part_fn(mixture.experts[: k + 1], mixture.noise, example) for k in range(len(mixture.experts))]
        bounds.append(torch.stack([row[0] for row in rows]))
        classes.append(torch.stack([row[1] for row in rows]))
    return torch.stack(bounds), torch.stack(classes)


def part_fn(experts, noise, x):
    """What the last of some experts says of one example; it reads what the others have at every stage."""
    last = experts[-1]

    def top(part):
        first = torch.cat([torch.relu(getattr(e, part).stages[0][1](x.flatten())) for e in experts])
        widths = [
            sum(getattr(e, part).stages[0][1].out_features for e in experts[: i + 1]) for i in range(len(experts))
        ]
        own = [torch.relu(getattr(e, part).stages[1][0](first[:w])) for e, w in zip(experts, widths, strict=True)]
        return torch.cat(own)

    h = top("generator")
    code = Normal(last.generator.mean(h), torch.exp(last.generator.log_var(h) / 2))
    error = 0.0
    for e in noise:
        decoded = torch.sigmoid(last.generator.decoder(code.mean + e * code.stddev))
        error = error - Normal(decoded, 1.0).log_prob(x.flatten()).sum() / len(noise)
    least = x.numel() * 0.001 / 2
    divergence = kl_divergence(code, Normal(torch.zeros_like(code.mean), torch.ones_like(code.mean))).sum()
    return error + least + divergence, torch.log_softmax(last.classifier.head(top("classifier")), 0)


def test_densities_by_hand():
    made, (x, _) = mixture(), images()
    found = made(x.double(), return_all=True)
    bounds, classes = by_hand(made, x)
    torch.testing.assert_close(found.neg_log_px, bounds)
    torch.testing.assert_close(found.log_py, classes)


def test_predictions_equal_the_mixture():
    made, (x, _) = mixture(), images()
    bounds, classes = by_hand(made, x)
    share = made.counts / made.counts.sum() * torch.exp(-bounds[:, 1:])
    expected = (share[:, :, None] * torch.exp(classes[:, 1:])).sum(1)
    torch.testing.assert_close(made(x.double()), torch.log(expected))


def test_assignment_equals_its_formula():
    """P(k | x, y) = N_k p(x | k) P(y | x, k)^(1/τ) / Σ, with α in place of N for the expert that is not there."""
    learner = CNDPM(small(), log_alpha=-1.5, temperature=0.5)
    learner.model, (x, y) = mixture(), images()
    bounds, classes = by_hand(learner.model, x)
    tempered = torch.softmax(classes / 0.5, 2)
    weight = torch.cat([torch.tensor([np.exp(-1.5)]), learner.model.counts])
    joint = weight * torch.exp(-bounds) * (tempered * one_hot(y, 4)[:, None]).sum(2)
    found = torch.softmax(learner.log_joint(learner.model(x.double(), return_all=True), y), 1)
    torch.testing.assert_close(found, joint / joint.sum(1, keepdim=True))


def test_an_update_by_hand():
    """Each expert descends the losses of a batch weighted by what belongs to it, and nothing flows to earlier ones."""
    torch.manual_seed(0)
    learner = CNDPM(small().double(), log_alpha=-1e6, temperature=1.0, adam_lr=0.01, generator_lr=0.02, min_usage=0.0)
    learner.resize(2)
    learner.model.eval()  # the same noise for both
    learner.model.counts.copy_(torch.tensor([1.0, 1.0]))
    x, y = images(6)
    densities = learner.model(x.double(), return_all=True)
    share = torch.softmax(learner.log_joint(densities, y)[:, 1:], 1).detach()
    label = densities.log_py[torch.arange(6), :, y][:, 1:]
    loss = (share * (densities.neg_log_px[:, 1:] - label)).sum()
    before = {n: p.detach().clone() for n, p in learner.model.named_parameters()}
    slope = dict(zip(before, torch.autograd.grad(loss, learner.model.parameters(), allow_unused=True), strict=True))
    learner.observe(x, y)
    for name, p in learner.model.named_parameters():
        if name.startswith("untrained"):
            assert torch.equal(p, before[name])
        else:
            g, lr = slope[name].clamp(-0.5, 0.5), 0.02 if "generator" in name else 0.01
            torch.testing.assert_close(p.detach(), before[name] - lr * g / (g.abs() + 1e-8), rtol=0, atol=1e-9)
    torch.testing.assert_close(learner.model.counts, 1 + share.sum(0))
    assert learner.short_term_memory is None


def clusters(count, size=400):
    """Binary patterns with a little noise: examples of each, all with labels of both kinds.

    Of size pixels a pattern of another cluster differs in half, so that -log p(x) is about size/4 where an expert knows
    another cluster, size/8 where none has learned anything (pixels of ½), and size/100 where it knows this one. With
    400 the first two are 50 apart, well beyond log N - log α < 13.
    """
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2, (count, size))
    for pattern in patterns:
        flipped = rng.random((60, size)) < 0.02
        yield torch.from_numpy(np.abs(pattern - flipped)).float(), torch.from_numpy(rng.integers(0, 2, 60))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_one_expert_is_made_per_cluster(count):
    """What x alone tells apart. LabelEncoder are of no use, and classifiers are not trained."""
    torch.manual_seed(0)
    learner = CNDPM(
        nn.Linear(400, 2), log_alpha=-8.0, stm_capacity=30, generator_steps=80, classifier_steps=0,
        generator_lr=0.01, temperature=1.0, seed=0,
    )  # fmt: skip
    data = list(clusters(count))
    for x, y in data:
        for at in range(0, len(y), 10):
            learner.observe(x[at : at + 10], y[at : at + 10])
    assert learner.num_modules == count
    assert learner.short_term_memory is None
    mixed = torch.randperm(60 * count)
    x, y = (torch.cat(parts)[mixed] for parts in zip(*data, strict=True))
    for at in range(0, len(y), 10):
        learner.observe(x[at : at + 10], y[at : at + 10])
    assert learner.num_modules == count
    torch.testing.assert_close(learner.model.counts, torch.full((count,), 120.0), rtol=1e-3, atol=0.5)


def test_unknown_classes_create_another_expert():
    """The same inputs with other labels."""
    learner = CNDPM(
        nn.Linear(20, 4), log_alpha=-50.0, stm_capacity=30, generator_steps=5, classifier_steps=200, adam_lr=0.01
    )
    x = torch.rand(30, 20, generator=torch.Generator().manual_seed(0))
    first = (x[:, 0] > 0.5).long()
    for y in (first, first + 2):
        learner.observe(x, y)
    assert learner.num_modules == 2
    assert sorted(learner.model.counts.tolist()) == [30.0, 30.0]


def test_sleep_trains_only_the_new_expert():
    learner = CNDPM(small(), stm_capacity=8, generator_steps=4, classifier_steps=4, log_alpha=1e9)
    learner.observe(*images(8, seed=0))
    before = learner.state_dict()
    learner.observe(*images(8, seed=1))
    assert learner.num_modules == 2
    new = {n for n in changed(before, learner.state_dict()) if n.startswith("model.")}
    assert new
    assert all(n.startswith("model.experts.1.") or n == "model.counts" for n in new)


@pytest.mark.slow
@pytest.mark.parametrize("size", [28, 33])
def test_convolutional_experts(size):
    """Images whose sides are not multiples of four are generated all the same; a state goes on exactly."""
    make = lambda: CNDPM(  # noqa: E731
        ResNet18(classes=3, size=size), stm_capacity=4, generator_steps=1, classifier_steps=1, log_alpha=1e9
    )
    learner, other = make(), make()
    for seed in range(2):
        learner.observe(*images(4, seed=seed, classes=3, shape=(3, size, size)))
    assert learner.num_modules == 2
    other.load_state_dict(learner.state_dict())
    x, _ = images(5, seed=9, shape=(3, size, size))
    assert torch.equal(learner.logits(x), other.logits(x))
    assert learner.logits(x).shape == (5, 3)


@pytest.mark.parametrize("part", ["generator", "classifier"])
@pytest.mark.parametrize(
    ("model", "shape"), [(small, (1, 4, 4)), (lambda: ResNet18(classes=3, size=25), (3, 25, 25))], ids=["dense", "conv"]
)
def test_frozen_features_of_earlier_experts_can_be_precomputed(model, shape, part):
    torch.manual_seed(1)
    made = ExpertMixture.for_model(model(), samples=5).double().eval()
    x, rows = images(230, shape=shape)[0].double(), torch.tensor([0, 99, 100, 229, 7, 7])
    made.add()
    assert made.frozen_features(part, x) == []
    made.add()
    made.add()
    earlier = [level[rows] for level in made.frozen_features(part, x)]
    assert earlier and not any(level.requires_grad for level in earlier)
    outputs = made(x[rows], return_all=True)
    torch.testing.assert_close(
        made(x[rows], part=part, earlier=earlier),
        outputs.neg_log_px[:, -1] if part == "generator" else outputs.log_py[:, -1],
    )


def test_failed_sleep_changes_nothing(monkeypatch):
    learner = CNDPM(small(), stm_capacity=8, generator_steps=4, classifier_steps=4, log_alpha=-1e9)
    learner.observe(*images(8, seed=0))
    learner.observe(*images(8, seed=1))
    learner.log_alpha = 1e9
    learner.observe(*images(7, seed=2))
    before = learner.state_dict()
    monkeypatch.setattr(learner, "clipped", lambda slope: [g * torch.inf for g in slope])
    with pytest.raises(GmedError, match="not finite"):
        learner.observe(*images(7, seed=3))
    assert changed(before, learner.state_dict()) == set()
    assert learner.num_modules == len(learner.optimizers) == 1


# ---------------------------------------------------------------------- progressive networks


def test_columns_by_hand():
    torch.manual_seed(2)
    columns = ProgressiveNet(small())
    columns.add()
    columns.add()
    with torch.no_grad():
        for gates in columns.gates:
            gates.normal_()
    x, _ = images()
    layers = [[part[-2] if len(part) > 1 else part[-1] for part in column] for column in columns.columns]
    a = [torch.relu(layer[0](x.flatten(1))) for layer in layers]
    b = [
        torch.relu(layers[0][1](a[0])),
        torch.relu(layers[1][1](a[1] + columns.gates[0][0, 0] * a[0])),
        torch.relu(layers[2][1](a[2] + columns.gates[1][0, 0] * a[0] + columns.gates[1][0, 1] * a[1])),
    ]
    out = [
        layers[0][2](b[0]),
        layers[1][2](b[1] + columns.gates[0][1, 0] * b[0]),
        layers[2][2](b[2] + columns.gates[1][1, 0] * b[0] + columns.gates[1][1, 1] * b[1]),
    ]
    for column in range(3):
        torch.testing.assert_close(columns(x, column), out[column])
    mean = torch.stack([torch.softmax(logits, 1) for logits in out]).mean(0)
    torch.testing.assert_close(columns(x), torch.log(mean))


@pytest.mark.parametrize("model", [small, lambda: ResNet18(classes=4, width=2)], ids=["layers", "blocks"])
def test_trained_columns_are_frozen(model):
    """Neither parameters nor batch-norm statistics nor, told the task, predictions: bit for bit."""
    learner = ProgNN(model(), adam_lr=0.01)
    shape = (3, 32, 32) if isinstance(model(), ResNet18) else (1, 4, 4)
    test, _ = images(shape=shape, seed=99)
    kept = []
    for task in range(3):
        for seed in range(2):
            before = learner.state_dict()
            learner.observe(*images(seed=10 * task + seed, shape=shape), task)
            moved = changed(before, learner.state_dict())
            learns = (f"model.columns.{task}.", f"model.gates.{task - 1}")
            assert all(n.startswith(learns) for n in moved if n.startswith("model."))
            assert any(n.startswith(learns) for n in moved)
        kept.append(
            ({n: t for n, t in learner.state_dict().items() if f"columns.{task}." in n}, learner.logits(test, task))
        )
    for task, (state, logits) in enumerate(kept):
        now = learner.state_dict()
        assert all(torch.equal(t, now[n]) for n, t in state.items())
        assert torch.equal(learner.logits(test, task), logits)
    assert learner.model.gates[1].abs().min() > 0  # the connections learn


# ---------------------------------------------------------------------- compositional structures


def test_compositions_by_hand():
    torch.manual_seed(2)
    made = CompositionalNet(small())
    made.add()
    with torch.no_grad():
        made.structure[1].normal_()
    x, _ = images()
    weights = torch.softmax(made.structure[1], 1)
    h = x.flatten(1)
    for level, layer in enumerate(made.layers):
        linear = [next(m for m in component if isinstance(m, nn.Linear)) for component in layer]
        given = [torch.relu(f(h)) if level < 2 else f(h) for f in linear]
        h = weights[level, 0] * given[0] + weights[level, 1] * given[1]
    torch.testing.assert_close(made(x, 1), h)
    torch.testing.assert_close(made(x, 0), small()(x))


@pytest.mark.parametrize("freeze_old", [True, False])
@pytest.mark.parametrize("model", [small, lambda: ResNet18(classes=4, width=2)], ids=["layers", "blocks"])
def test_structure_is_trained_before_parameters(model, freeze_old):
    learner = CompCL(model(), adam_lr=0.01, structure_steps=2, freeze_old=freeze_old)
    shape = (3, 32, 32) if isinstance(model(), ResNet18) else (1, 4, 4)
    learner.observe(*images(seed=0, shape=shape), 0)
    for task in (1, 2):
        for step in range(4):
            before = learner.state_dict()
            learner.observe(*images(seed=10 * task + step, shape=shape), task)
            moved = {n for n in changed(before, learner.state_dict()) if n.startswith("model.")}
            if step == 0:  # the new components are at their first weights
                moved = {n for n in moved if n in before} | {f"model.structure.{task}"}
            if step < 2:
                assert moved == {f"model.structure.{task}"}
            else:
                numbers = {int(n.split(".")[3]) for n in moved}
                assert {n.split(".")[1] for n in moved} == {"layers"}
                assert numbers == ({task} if freeze_old else set(range(task + 1)))


# ---------------------------------------------------------------------- what all of them owe


GROWING = {
    "cn-dpm": lambda: CNDPM(small(), stm_capacity=8, generator_steps=2, classifier_steps=2, log_alpha=1e9),
    "prog-nn": lambda: ProgNN(small()),
    "comp-cl": lambda: CompCL(small(), structure_steps=1),
}


def grown(name, parts):
    learner = GROWING[name]()
    for task in range(parts):
        learner.observe(*images(8, seed=task), *((task,) if learner.task_aware else ()))
    assert learner.num_modules == parts
    return learner


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize(("had", "has"), [(1, 3), (3, 1), (2, 2)])
def test_a_state_of_another_size(name, had, has):
    learner, other = grown(name, had), grown(name, has)
    learner.load_state_dict(other.state_dict())
    assert changed(learner.state_dict(), other.state_dict()) == set()
    for made in (learner, other):
        made.observe(*images(8, seed=7), *((has,) if made.task_aware else ()))
    assert changed(learner.state_dict(), other.state_dict()) == set()


@pytest.mark.parametrize("name", GROWING)
def test_a_damaged_state_changes_nothing(name):
    learner, other = grown(name, 3), grown(name, 2)
    before = learner.state_dict()
    for damage in ("missing", "nan", "foreign"):
        state = other.state_dict()
        part = next(n for n in state if n.startswith("model.") and n.endswith("weight"))
        if damage == "missing":
            del state[part]
        elif damage == "nan":
            state[part][0] = torch.nan
        else:
            state = {"steps": torch.tensor(1)}
        with pytest.raises(GmedError, match="state"):
            learner.load_state_dict(state)
        assert changed(before, learner.state_dict()) == set()
    learner.observe(*images(8, seed=9), *((2,) if learner.task_aware else ()))


@pytest.mark.parametrize("name", ["prog-nn", "comp-cl"])
def test_tasks_come_one_by_one(name):
    learner = grown(name, 2)
    before = learner.state_dict()
    with pytest.raises(InputError, match="task 0 ended when task 1 began"):
        learner.observe(*images(8), 0)
    assert changed(before, learner.state_dict()) == set()


@pytest.mark.parametrize("name", ["prog-nn", "comp-cl"])
def test_given_task_selects_the_module(name):
    learner, (x, y) = grown(name, 3), images(30, seed=50)
    for task in range(3):
        assert torch.equal(learner.predict(x, task), learner.model.eval()(x, task).argmax(1))
    assert torch.equal(learner.predict(x, 77), learner.predict(x, 2))  # one that has not come yet
    learner.task_at_test = True
    tests = [Examples((255 * x).byte(), y)] * 3
    right = [(learner.predict((255 * x).byte().float() / 255, task) == y).float().mean().item() for task in range(3)]
    assert evaluate_tasks(learner, tests) == pytest.approx(right)


def test_memory_size_as_counted_in_the_paper():
    """Four further networks and their connections; the generative models and the short-term memory of CN-DPM."""
    published = {(q.row, q.benchmark): q.value for q in quantities() if q.quantity.startswith("memory overhead")}
    for row, make in {"Prog. NN": ProgNN, "CompCL": CompCL}.items():
        learner = make(MLP())
        learner.resize(5)
        added = 4 * 478_410 + {"Prog. NN": 2 * (1 + 2 + 3 + 4), "CompCL": 3 * (1 + 2 + 3 + 4 + 5)}[row]
        assert learner.extra_parameters() == added
        assert MemoryFootprint.of(learner, 784).examples == 4 * added / 785
        assert MemoryFootprint.of(learner, 784).examples == pytest.approx(published[row, "split-mnist"], rel=0.0005)
    for benchmark, parts, to_float, waiting in (("split-mnist", 5, 784, 500), ("split-cifar10", 5, 3072, 1000)):
        learner = CNDPM(get_benchmark(benchmark).make_model(), stm_capacity=waiting)
        learner.resize(parts)
        assert round(4 * learner.extra_parameters() / to_float + waiting) == published["CN-DPM", benchmark]
        assert MemoryFootprint.of(learner, to_float).examples == pytest.approx(
            published["CN-DPM", benchmark], rel=0.001
        )


def test_true_bytes():
    learner = grown("prog-nn", 2)
    parameters = sum(p.numel() for p in small().parameters())
    adam_state = 2 * (parameters + 2) * 4 + 8  # of the column that learns, its two connections among them
    assert MemoryFootprint.of(learner, 16).bytes == (parameters + 2) * 4 + adam_state + 2 * 8


def test_final_cn_dpm_network_has_the_expected_parameters():
    """The first expert's layers, the further ones' beside them, and the last one's output."""
    made = expanded_classifier(MLP(), tasks=5)
    first = 784 * 64 + 64 + 64 * 64 + 64
    further = sum(784 * 16 + 16 + (64 + 16 * k) * 16 + 16 for k in range(1, 5))
    assert sum(p.numel() for p in made.parameters()) == first + further + 128 * 10 + 10
    made(torch.rand(3, 1, 28, 28)).sum().backward()
    assert all(p.grad is not None for p in made.parameters())  # it learns as a whole


def test_runs_report_their_memory():
    run = run_one(RunSpec.make("split-mnist", "er(memory=100)", 0), ExecutionConfig("cpu"))
    assert run.overhead == {"examples": 100.0, "bytes": 100 * (784 * 4 + 3 * 8) + 8}
    assert Metrics.of(run).overhead == 100
    assert Metrics.of(run).overhead_mb == (100 * (784 * 4 + 3 * 8) + 8) / 1e6  # and how many were seen


def test_examples_waiting_for_an_expert_can_be_removed():
    torch.manual_seed(0)
    learner = CNDPM(nn.Linear(4, 3), stm_capacity=50)
    assert learner.remove_examples(label=1) == 0
    x, y = torch.rand(9, 4), torch.arange(9) % 3
    learner.observe(x, y)
    assert learner.remove_examples(label=1) == 3
    assert learner.short_term_memory[1].tolist() == [0, 2] * 3 and torch.equal(learner.short_term_memory[0], x[y != 1])
    assert learner.remove_examples(where=lambda x, y: y >= 0) == 6 and learner.short_term_memory is None
    learner.observe(x, y)
    assert len(learner.short_term_memory[1]) == 9
    with pytest.raises(UsageError, match="by label or where"):
        learner.remove_examples(stream_index=0)
    with pytest.raises(UsageError, match="one of"):
        learner.remove_examples()


def test_the_table_of_equal_memory(tmp_path):
    """From stored runs: every row of the paper beside ours, and the memory of each as the paper and we count it."""
    study, taken = get_artifact("equal-memory"), {"examples": 2578.6, "bytes": 5912832}
    with Store(tmp_path / "r.db") as store:
        for benchmark, method, _ in study.plan():
            if benchmark == "split-mnist-full":
                spec = RunSpec.make(benchmark, method, 0)
                run = RunResult(benchmark, spec.method.name, 0, [[0.5]], 0.5, 0.5, 1, {}, {}, overhead=taken)
                store.add(spec, run)
    found = study.run(Request(["split-mnist-full"], seeds=1, options={"store": tmp_path / "r.db"}))
    assert [row.cell.row for row in found.table.rows] == [
        "CN-DPM", "Prog. NN", "Prog. NN", "CompCL", "CompCL", "ER", "ER+GMED", "ER", "ER+GMED",
    ]  # fmt: skip
    first, second, *others = found.numbers
    assert (first.quantity, first.mean, first.published) == ("memory of cn-dpm, in examples", 2578.6, 2581)
    assert (second.quantity, second.mean) == ("memory of cn-dpm, in MB", pytest.approx(5.912832))
    assert [number.published for number in others[::2]] == [9755] * 4 + [2581] * 4
    assert found.to_dict()["numbers"][0]["mean"] == 2578.6
