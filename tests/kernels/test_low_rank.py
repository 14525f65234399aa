"""Low-rank gradients of linear layers against autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import gmed
from gmed.engine import get_benchmark, resolve
from gmed.errors import DivergedError
from gmed.kernels.low_rank import LinearChain, LowRankGradient, OuterFactors, add_grads, finite_checks, sgd_step
from gmed.models import LookAhead, PassCounter, gradient, trainable
from gmed.models.functional import forward
from helpers import random_batch

CHAINS = {
    "mlp": lambda: gmed.models.MLP(12, 9, 4),
    "nested, without biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(12, 7, bias=False), nn.Tanh()), nn.Linear(7, 4, bias=False)
    ),
    "one layer": lambda: nn.Linear(12, 4),
}


def made(name, seed=0):
    torch.manual_seed(seed)
    return CHAINS[name]().double()


def batch(name, count, seed):
    return random_batch(count, (12,), 4, seed, torch.float64)


def both(name, count, seed):
    """The gradient of one batch in factors, and written out by autograd."""
    model, (x, y) = made(name, seed), batch(name, count, seed)
    loss, slope = LinearChain.of(model).gradient(x, lambda output: cross_entropy(output, y))
    dense = cross_entropy(model(x), y)
    torch.testing.assert_close(loss, dense.detach())
    return model, slope, gradient(dense, trainable(model))


@given(name=st.sampled_from(list(CHAINS)), count=st.integers(1, 6), seed=st.integers(0, 20))
def test_dense_gradient_equals_autograd(name, count, seed):
    model, slope, dense = both(name, count, seed)
    assert list(slope) == list(dense) == list(trainable(model)) and len(slope) == len(dense)
    for parameter in dense:
        torch.testing.assert_close(slope[parameter], dense[parameter])


@given(name=st.sampled_from(list(CHAINS)), count=st.integers(1, 6), seed=st.integers(0, 20))
def test_low_rank_step_equals_dense_step(name, count, seed):
    model, slope, dense = both(name, count, seed)
    expected = {parameter: p.detach() - 0.3 * dense[parameter] for parameter, p in trainable(model).items()}
    sgd_step(trainable(model), slope, 0.3)
    for parameter, p in trainable(model).items():
        torch.testing.assert_close(p.detach(), expected[parameter])


@given(name=st.sampled_from(list(CHAINS)), count=st.integers(1, 6), seed=st.integers(0, 20), rows=st.integers(1, 5))
def test_outputs_before_and_after_a_step_and_their_slopes(name, count, seed, rows):
    model, slope, dense = both(name, count, seed)
    x, y = batch(name, rows, seed + 100)
    ahead = {parameter: p.detach() - 0.3 * dense[parameter] for parameter, p in trainable(model).items()}

    def direction(outputs):
        return torch.autograd.grad(cross_entropy(outputs[1], y) - 2 * cross_entropy(outputs[0], y), x)[0]

    x.requires_grad_()
    found, expected = slope.outputs(x, 0.0, 0.3), (model(x), forward(model, ahead, x))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(direction(found), direction(expected))


@given(seed=st.integers(0, 20))
def test_sum_equals_gradient_of_summed_loss(seed):
    model, first, dense = both("mlp", 4, seed)
    x, y = batch("mlp", 3, seed + 50)
    _, second = LinearChain.of(model).gradient(x, lambda output: cross_entropy(output, y))
    summed, written_out = (
        add_grads(first, second),
        add_grads(dense, gradient(cross_entropy(model(x), y), trainable(model))),
    )
    assert isinstance(summed, LowRankGradient)
    for parameter in written_out:
        torch.testing.assert_close(summed[parameter], written_out[parameter])


class HalfWeight(nn.Linear):
    """Its weight is computed."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.raw = nn.Parameter(self._parameters.pop("weight").detach())

    @property
    def weight(self):
        return 0.5 * self.raw


class WithAParameter(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        nn.Sequential(*[nn.Linear(4, 4)] * 2),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)),
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
        weight_norm(nn.Linear(4, 4)),
        spectral_norm(nn.Linear(4, 4)),
        HalfWeight(4, 4),
        WithAParameter(nn.Linear(4, 4)),
        nn.ReLU(),
        gmed.models.ResNet18(),
    ],
    ids=[
        *("batch norm", "layer norm", "dropout", "a layer twice", "a frozen layer", "convolution", "in place"),
        *("weight norm", "spectral norm", "a computed weight", "a parameter aside", "nothing", "ResNet"),
    ],
)
def test_other_models_are_not_chains(model):
    assert LinearChain.of(model) is None


@pytest.mark.parametrize(
    "watch",
    [
        lambda model: model[1].register_forward_hook(lambda layer, inputs, output: 2 * output),
        lambda model: model[3].register_full_backward_hook(lambda layer, inwards, outwards: None),
        lambda model: model.register_full_backward_pre_hook(lambda layer, outwards: None),
        lambda model: model[5].weight.register_hook(lambda slope: 0 * slope),
    ],
    ids=["output", "gradient", "gradient of the model", "gradient of a parameter"],
)
def test_hooked_layers_disable_low_rank_gradients(watch):
    model = gmed.models.MLP()
    assert LinearChain.of(model) is not None
    watch(model)
    assert LinearChain.of(model) is None


def test_inspection_does_not_change_the_model():
    model = nn.Sequential(spectral_norm(nn.Linear(40, 40)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    LinearChain.of(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "x", "suits"),
    [
        (gmed.models.MLP(), torch.rand(10, 1, 28, 28), True),
        (gmed.models.MLP(), torch.rand(10, 784), True),
        (gmed.models.MLP(), torch.rand(200, 784), False),
        (gmed.models.MLP(hidden=20), torch.rand(10, 784), False),
        (gmed.models.MLP().half(), torch.rand(10, 784).half(), False),
        (nn.Sequential(nn.Linear(200, 200), nn.Flatten(), nn.Linear(400, 200)), torch.rand(3, 2, 200), False),
        (nn.Sequential(nn.Flatten(1, 2), nn.Linear(400, 300)), torch.rand(3, 2, 200), True),
        (nn.Sequential(nn.Flatten(1, 2), nn.Linear(400, 300)), torch.rand(3, 1, 2, 400), False),
    ],
    ids=["images", "rows", "many", "narrow", "half precision", "rows of rows", "flattened", "not flattened enough"],
)
def test_models_that_benefit_from_factors(model, x, suits):
    assert LinearChain.of(model).is_beneficial(x) == suits


def test_factors_are_not_used_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert not LinearChain.of(gmed.models.MLP()).is_beneficial(torch.rand(10, 784))
        learner = gmed.learners.ER(
            gmed.models.MLP(), lr=0.1, memory=gmed.memory.Reservoir(50), editing=gmed.editing.GMED(alpha=1.0, beta=0.0)
        )
        for _ in range(2):
            learner.observe(torch.rand(10, 784), torch.arange(10))


def test_loss_using_more_than_the_output_uses_autograd():
    model = gmed.models.MLP()

    def decayed(output, y):
        return cross_entropy(output, y) + 0.05 * sum(p.square().sum() for p in model.parameters())

    x, y = torch.rand(10, 784), torch.arange(10)
    found = LookAhead(model, x, y, lr=0.1, loss=decayed).stream_gradient
    expected = gradient(decayed(model(x), y), trainable(model))
    assert all(torch.equal(found[name], slope) for name, slope in expected.items())


def test_only_given_parameters_are_updated():
    torch.manual_seed(0)
    model, other = gmed.models.MLP(), gmed.models.MLP()
    slope = LookAhead(model, torch.rand(10, 784), torch.arange(10), lr=0.1).stream_gradient
    before = [{name: p.detach().clone() for name, p in each.named_parameters()} for each in (model, other)]
    sgd_step(dict(list(trainable(other).items())[:2]), slope, 0.1)
    assert all(torch.equal(p, before[0][name]) for name, p in model.named_parameters())
    moved = {name for name, p in other.named_parameters() if not torch.equal(p, before[1][name])}
    assert moved == {"1.weight", "1.bias"}


def test_sum_of_low_rank_and_dense_gradients():
    _, slope, dense = both("mlp", 4, 0)
    for parameter, summed in add_grads(slope, {name: g.clone() for name, g in dense.items()}).items():
        torch.testing.assert_close(summed, 2 * dense[parameter])


def test_edit_is_the_same_with_and_without_factors(monkeypatch):
    torch.manual_seed(0)
    model = gmed.models.MLP().double()
    x, y, x_m, y_m = torch.rand(10, 784).double(), torch.arange(10), torch.rand(7, 784).double(), torch.arange(7)
    settings = {"lr": 0.05, "alpha": 5.0, "beta": 0.01, "steps": 2}
    factored = gmed.edit_examples(model, x_m, y_m, x, y, **settings)
    monkeypatch.setattr(LinearChain, "is_beneficial", lambda self, x: False)
    torch.testing.assert_close(gmed.edit_examples(model, x_m, y_m, x, y, **settings), factored)


@pytest.mark.parametrize("method", ["er+gmed", "mir", "mir+gmed", "er-aug+gmed"])
def test_learning_and_pass_counts_are_the_same_with_and_without_factors(method, monkeypatch):
    def learned():
        torch.manual_seed(1)
        learner = resolve(get_benchmark("split-mnist"), method).make_learner(gmed.models.MLP().double(), 0)
        learner.passes = PassCounter()
        for step in range(12):
            source = torch.Generator().manual_seed(step)
            x = torch.rand(10, 1, 28, 28, generator=source, dtype=torch.float64)
            learner.observe(x, torch.randint(10, (10,), generator=source))
        return learner

    factored = learned()
    monkeypatch.setattr(LinearChain, "is_beneficial", lambda self, x: False)
    written_out = learned()
    assert factored.passes == written_out.passes
    for name, tensor in written_out.state_dict().items():
        torch.testing.assert_close(factored.state_dict()[name], tensor)


def test_a_batch_too_large_for_its_type_is_refused():
    torch.manual_seed(0)
    editing = gmed.editing.GMED(alpha=1.0, beta=0.0)
    learner = gmed.learners.ER(gmed.models.MLP(), lr=0.1, memory=gmed.memory.Reservoir(50), editing=editing)
    learner.observe(torch.rand(10, 784), torch.arange(10))
    before = learner.state_dict()
    with pytest.raises(DivergedError, match="not finite"):
        learner.observe(torch.full((10, 784), 3e38), torch.arange(10))
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())


def test_finite_gradient_with_overflowing_bound_is_accepted():
    chain = LinearChain.of(nn.Linear(2, 1, bias=False))
    far_apart = OuterFactors(torch.tensor([[1e30, 0.0], [0.0, 1.0]]), torch.tensor([[0.0], [1e30]]))
    slope = LowRankGradient(chain, {"": far_apart})
    assert not chain.is_bounded(slope.factors)
    assert all(torch.isfinite(tensor).all() for tensor in finite_checks(slope))
    too_large = OuterFactors(torch.tensor([[1e30, 0.0]]), torch.tensor([[1e30]]))
    assert not all(torch.isfinite(tensor).all() for tensor in finite_checks(LowRankGradient(chain, {"": too_large})))
