"""Hand-written gradients of ReLU chains, in torch and compiled from C, against autograd."""

import shutil
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import gmed
from gmed.engine import get_benchmark, resolve
from gmed.errors import DivergedError
from gmed.kernels import relu_chain_compiled
from gmed.kernels.relu_chain import MAX_ROWS, ReLUChain
from gmed.kernels.relu_chain_compiled import CompiledChain, fused_chain
from gmed.models import PassCounter

MODELS = {
    "mlp": lambda: gmed.models.MLP(12, 9, 4),
    "one layer": lambda: nn.Linear(12, 4),
    "two layers, flattened, without biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 7, bias=False), nn.ReLU(), nn.Linear(7, 4, bias=False)
    ),
    "nested, without ReLU between": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(12, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4, bias=False))
    ),
    "ReLU at the end": lambda: nn.Sequential(nn.Linear(12, 4), nn.ReLU()),
}
METHODS = (
    *("finetune", "er", "er+gmed", "mir", "mir+gmed", "er+random-edit", "er+adv-edit", "er(updates_per_batch=3)"),
    "er+gmed(gamma=0.5,steps=2)",
)


@pytest.fixture(autouse=True, params=["torch", "compiled"])
def arithmetic(request, monkeypatch):
    """Both kinds of chains."""
    if request.param == "compiled" and shutil.which("cc") is None:
        pytest.skip("there is no compiler")
    monkeypatch.setattr(relu_chain_compiled, "compiler", lambda: ("cc",) if request.param == "compiled" else ())
    relu_chain_compiled._library.cache_clear()
    yield request.param
    relu_chain_compiled._library.cache_clear()


def batch(count, seed, shape=(12,)):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *shape, generator=source, dtype=torch.float64)
    return x, torch.randint(4, (count,), generator=source)


def learner_of(model, method="er+gmed"):
    return resolve(get_benchmark("split-mnist"), method).make_learner(model, 0)


def learned(model, method, sizes):
    """A learner after batches of these sizes, with its passes."""
    torch.manual_seed(1)
    learner = learner_of(MODELS[model]().double(), method)
    learner.passes = PassCounter()
    for step, size in enumerate(sizes):
        learner.observe(*batch(size, step))
    return learner


def without_chains(monkeypatch):
    monkeypatch.setattr(ReLUChain, "of", classmethod(lambda cls, model: None))


def assert_same_state(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("method", METHODS)
def test_learning_and_pass_counts_equal_autograd(model, method, monkeypatch):
    sizes = (10, 10, 1, 3, *(10,) * 8)
    by_hand = learned(model, method, sizes)
    assert by_hand.arithmetic != "autograd"
    without_chains(monkeypatch)
    plain = learned(model, method, sizes)
    assert plain.arithmetic == "autograd"
    assert by_hand.passes == plain.passes
    assert_same_state(by_hand.state_dict(), plain.state_dict())


@pytest.mark.parametrize("model", list(MODELS))
def test_predictions_equal_the_model(model):
    learner = learner_of(MODELS[model]().double())
    x, _ = batch(300, 0)
    torch.testing.assert_close(learner.logits(x), learner.model(x).detach())


def test_edit_with_ignored_labels(monkeypatch):
    model, (x, y), (x_m, y_m) = MODELS["mlp"]().double(), batch(5, 0), batch(6, 1)
    y_m[2] = -100
    edited = gmed.edit_examples(model, x_m, y_m, x, y, lr=0.1, alpha=1.0, beta=0.1)
    without_chains(monkeypatch)
    torch.testing.assert_close(gmed.edit_examples(model, x_m, y_m, x, y, lr=0.1, alpha=1.0, beta=0.1), edited)
    assert torch.equal(edited[2], x_m[2])


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class WithAParameter(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.ones(1))


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def hooked(register):
    model = gmed.models.MLP()
    register(model)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 4)),
        lambda: nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 4)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)),
        lambda: nn.Sequential(nn.Linear(4, 4), Scaled(4, 4)),
        lambda: WithAParameter(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.Linear(4, 4).bfloat16(),
        shared,
        tied,
        lambda: nn.ReLU(),
        lambda: gmed.models.ResNet18(),
        lambda: hooked(lambda model: model.register_forward_hook(lambda *given: None)),
        lambda: hooked(lambda model: model[1].register_forward_pre_hook(lambda *given: None)),
        lambda: hooked(lambda model: model[1].register_full_backward_hook(lambda *given: None)),
        lambda: hooked(lambda model: model[5].weight.register_hook(lambda grad: 2 * grad)),
    ],
)
def test_other_models_use_autograd(make):
    assert ReLUChain.of(make()) is None


def test_model_changes_take_effect_at_the_next_step():
    learner = learner_of(gmed.models.MLP(12, 9, 4).double())
    learner.observe(*batch(10, 0))
    assert learner.arithmetic != "autograd"
    seen = []
    learner.model[1].register_forward_hook(lambda layer, inputs, output: seen.append(len(output)))
    assert learner.arithmetic == "autograd"
    learner.observe(*batch(10, 1))
    assert seen
    learner.model[1]._forward_hooks.clear()
    learner.model[3].weight.requires_grad_(False)
    before = learner.model[3].weight.clone()
    learner.observe(*batch(10, 2))
    assert torch.equal(learner.model[3].weight, before)


def test_fast_path_is_off_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert ReLUChain.of(gmed.models.MLP()) is None


@pytest.mark.parametrize(
    ("x", "y", "accepted"),
    [
        (torch.rand(3, 12), torch.zeros(3, dtype=torch.int64), True),
        (torch.rand(3, 1, 3, 4), torch.zeros(3, dtype=torch.int64), True),
        (torch.rand(3, 12), torch.rand(3, 4), False),
        (torch.rand(3, 12), torch.zeros(3, dtype=torch.int32), False),
        (torch.rand(3, 11), None, False),
        (torch.rand(3, 12).double(), None, False),
        (torch.rand(0, 12), None, False),
    ],
    ids=["rows", "images", "probabilities", "int32", "another width", "another type", "nothing"],
)
def test_accepted_batches(x, y, accepted):
    assert ReLUChain.of(gmed.models.MLP(12, 9, 4)).accepts(x, y) == accepted


def test_other_losses_use_autograd():
    def squared(output, y):
        return mse_loss(output, nn.functional.one_hot(y, 4).to(output))

    def trained(criterion):
        torch.manual_seed(0)
        model, memory = gmed.models.MLP(12, 9, 4).double(), gmed.memory.Reservoir(50)
        learner = gmed.learners.ER(model, lr=0.1, memory=memory, criterion=criterion)
        for step in range(3):
            learner.observe(*batch(10, step))
        return learner

    learner = trained(squared)
    assert learner.arithmetic == "autograd"
    assert not torch.equal(learner.model[1].weight, trained(cross_entropy).model[1].weight)


def test_large_batches_use_autograd(monkeypatch):
    sizes = (MAX_ROWS + 1, 10, MAX_ROWS + 1)
    found = learned("mlp", "er+gmed", sizes).state_dict()
    without_chains(monkeypatch)
    assert_same_state(found, learned("mlp", "er+gmed", sizes).state_dict())


@pytest.mark.parametrize("method", ["finetune", "er", "er+gmed", "mir+gmed"])
@pytest.mark.parametrize("value", [1e38, 1e34])
def test_a_step_that_diverges_changes_nothing(method, value):
    torch.manual_seed(0)
    learner = learner_of(gmed.models.MLP(12, 9, 4), method)
    for step in range(3):
        x, y = batch(10, step)
        learner.observe(x.float(), y)
    with torch.no_grad():
        learner.model[5].weight.mul_(value)
    before = learner.state_dict()
    x, y = batch(10, 5)
    with pytest.raises(DivergedError, match="the step was not taken"):
        learner.observe(1e9 * x.float(), y)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())


@pytest.mark.parametrize("method", ["er", "er+gmed", "mir+gmed"])
def test_resumed_learner_equals_uninterrupted_one(method):
    def continued(learner, start, stop):
        for step in range(start, stop):
            x, y = batch(10, step, (1, 28, 28))
            learner.observe(x.float(), y)
        return learner

    torch.manual_seed(0)
    whole = continued(learner_of(gmed.models.MLP(), method), 0, 12)
    torch.manual_seed(0)
    first = continued(learner_of(gmed.models.MLP(), method), 0, 7)
    resumed = learner_of(gmed.models.MLP(), method)
    resumed.load_state_dict(first.state_dict())
    continued(resumed, 7, 12)
    assert all(torch.equal(tensor, whole.state_dict()[name]) for name, tensor in resumed.state_dict().items())


def test_run_records_its_arithmetic(arithmetic):
    (run,) = gmed.run("split-mnist", ["er"], seeds=[0], device="cpu", store=None, workers=0).runs
    assert (run.environment["arithmetic"] == "compiled") == (arithmetic == "compiled")
    assert run.environment["arithmetic"] != "autograd"


def test_failing_compiler_is_reported_and_not_required(monkeypatch):
    monkeypatch.setattr(relu_chain_compiled, "compiler", lambda: ("false",))
    relu_chain_compiled._library.cache_clear()
    with pytest.warns(UserWarning, match="cannot compile"):
        chain = fused_chain(gmed.models.MLP(12, 9, 4))
    assert type(chain) is ReLUChain


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("widths", [(784, 400, 10), (17, 3), (16, 8, 4), (33, 21, 7), (5, 1)])
@pytest.mark.parametrize("rows", [1, 5, 7, 20, 64])
def test_matrix_products_of_any_size(dtype, widths, rows, arithmetic):
    torch.manual_seed(rows)
    layers = [nn.Linear(one, other) for one, other in pairwise(widths)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU()))).to(dtype)
    chain, x, y = fused_chain(model), torch.randn(rows, widths[0], dtype=dtype), torch.randint(widths[-1], (rows,))
    assert (type(chain) is CompiledChain) == (arithmetic == "compiled")
    loss, grads = chain.loss_and_gradient(x, y)
    expected = cross_entropy(model(x), y)
    torch.testing.assert_close(loss, expected.detach())
    for (name, _), grad in zip(
        model.named_parameters(), torch.autograd.grad(expected, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(grads[name], grad)


def test_weights_that_are_not_contiguous_are_not_compiled():
    layer = nn.Linear(6, 6)
    layer.weight = nn.Parameter(torch.rand(6, 6).t())
    assert type(fused_chain(layer)) is ReLUChain
