"""GMED's edit against an independent implementation and finite differences of its objective."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gmed
from gmed.errors import InputError, UsageError


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 4)).double()


def batch_norm_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.SiLU(), nn.Flatten(), nn.Linear(48, 4), nn.BatchNorm1d(4)
    ).double()


MODELS = pytest.mark.parametrize("make", [mlp, batch_norm_net])
BETAS = pytest.mark.parametrize("beta", [0.0, 0.3, -0.7])


@pytest.fixture
def batches():
    torch.manual_seed(3)
    x_mem, x_new = torch.rand(7, 1, 6, 6).double(), torch.rand(5, 1, 6, 6).double()
    return x_mem, torch.randint(4, (7,)), x_new, torch.randint(4, (5,))


def stepped(model, x_new, y_new, lr):
    """A copy of the model after one step of torch's own SGD."""
    ahead = copy.deepcopy(model)
    optimizer = torch.optim.SGD(ahead.parameters(), lr=lr)
    cross_entropy(ahead(x_new), y_new).backward()
    optimizer.step()
    return ahead


def objective(model, ahead, x, y, beta, divisor):
    """(1 / divisor) * sum over examples of d - beta * loss before."""
    before = cross_entropy(copy.deepcopy(model)(x), y, reduction="none")
    after = cross_entropy(copy.deepcopy(ahead)(x), y, reduction="none")
    return ((after - before) - beta * before).sum() / divisor


def reference_edit(model, x, y, x_new, y_new, *, lr, alpha, beta, gamma, edit_count, steps, divisor):
    ahead = stepped(model, x_new, y_new, lr)
    x = x.clone()
    for _ in range(steps):
        moving = x.clone().requires_grad_()
        objective(model, ahead, moving, y, beta, divisor).backward()
        for i in range(len(x)):
            x[i] += gamma ** int(edit_count[i]) * alpha * moving.grad[i]
    return x


@MODELS
@BETAS
@pytest.mark.parametrize(
    ("steps", "gamma", "batch_size"), [(1, 1.0, None), (3, 1.0, None), (1, 0.9, None), (5, 0.99, 10)]
)
def test_edit_equals_an_independent_implementation(make, beta, steps, gamma, batch_size, batches):
    torch.manual_seed(0)
    model, edit_count = make(), torch.tensor([0, 1, 2, 3, 0, 9, 40])
    edited = gmed.edit_examples(
        model,
        *batches,
        lr=0.4,
        alpha=2.0,
        beta=beta,
        gamma=gamma,
        edit_count=edit_count,
        steps=steps,
        batch_size=batch_size,
    )
    expected = reference_edit(
        model,
        *batches,
        lr=0.4,
        alpha=2.0,
        beta=beta,
        gamma=gamma,
        edit_count=edit_count,
        steps=steps,
        divisor=batch_size or 7,
    )
    assert (edited - batches[0]).abs().max() > 1e-4
    torch.testing.assert_close(edited, expected, rtol=0, atol=1e-12)


@MODELS
@BETAS
def test_edit_direction_equals_finite_differences(make, beta, batches):
    torch.manual_seed(1)
    model = make()
    x_mem, y_mem, x_new, y_new = batches
    direction = gmed.edit_examples(model, *batches, lr=0.4, alpha=1.0, beta=beta) - x_mem
    ahead = stepped(model, x_new, y_new, 0.4)
    numeric, h = torch.zeros_like(x_mem), 1e-5
    for i in range(x_mem.numel()):
        bump = torch.zeros_like(x_mem)
        bump.view(-1)[i] = h
        with torch.no_grad():
            up = objective(model, ahead, x_mem + bump, y_mem, beta, 7)
            down = objective(model, ahead, x_mem - bump, y_mem, beta, 7)
        numeric.view(-1)[i] = (up - down) / (2 * h)
    torch.testing.assert_close(direction, numeric, rtol=1e-5, atol=1e-9)


def test_edit_increases_its_objective(batches):
    model = mlp()
    x_mem, y_mem, x_new, y_new = batches
    edited = gmed.edit_examples(model, *batches, lr=0.4, alpha=0.1, beta=0.1)
    ahead = stepped(model, x_new, y_new, 0.4)
    assert objective(model, ahead, edited, y_mem, 0.1, 7) > objective(model, ahead, x_mem, y_mem, 0.1, 7)


@MODELS
@pytest.mark.parametrize("training", [True, False])
def test_edit_is_pure(make, training, batches):
    model = make().train(training)
    model[-1].train(not training)  # a submodule in a mode of its own
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = copy.deepcopy(model)
    inputs = [t.clone() for t in batches]
    with torch.no_grad():  # a caller's no_grad does not hinder it
        edited = gmed.edit_examples(model, *batches, lr=0.1, alpha=1.0, beta=0.1, steps=2)
    assert not edited.requires_grad
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    for (name, now), (_, then) in zip(model.state_dict().items(), before.state_dict().items(), strict=True):
        assert torch.equal(now, then), name
    for now in model.parameters():
        assert torch.equal(now.grad, torch.ones_like(now))
    for now, then in zip(batches, inputs, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_edit_keeps_the_dtype(dtype, batches):
    x_mem, y_mem, x_new, y_new = batches
    edited = gmed.edit_examples(
        mlp().to(dtype),
        x_mem.to(dtype),
        y_mem,
        x_new.to(dtype),
        y_new,
        lr=0.1,
        alpha=1.0,
        beta=0.1,
        gamma=0.9,
    )
    assert edited.dtype == dtype


def test_edit_supports_frozen_parameters_and_other_losses(batches):
    model = mlp()
    model[1].requires_grad_(False)
    x_mem, _, x_new, _ = batches
    edited = gmed.edit_examples(
        model, x_mem, torch.rand(7, 4).double(), x_new, torch.rand(5, 4).double(),
        lr=0.1, alpha=1.0, beta=0.1, loss=nn.MSELoss(),
    )  # fmt: skip
    assert not torch.equal(edited, x_mem)


def test_stride_is_independent_of_batch_size(batches):
    model = mlp()
    x_mem, y_mem, x_new, y_new = batches
    kwargs = {"lr": 0.1, "alpha": 1.0, "beta": 0.1, "batch_size": 10}
    together = gmed.edit_examples(model, x_mem, y_mem, x_new, y_new, **kwargs)
    alone = gmed.edit_examples(model, x_mem[2:3], y_mem[2:3], x_new, y_new, **kwargs)
    torch.testing.assert_close(together[2:3], alone, rtol=0, atol=1e-14)


def test_edited_examples_are_clamped(batches):
    edited = gmed.edit_examples(mlp(), *batches, lr=0.5, alpha=100.0, beta=0.1, clamp=(0.0, 1.0))
    assert edited.min() >= 0
    assert edited.max() <= 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"alpha": float("inf")}, UsageError),
        ({"alpha": -1.0}, UsageError),
        ({"beta": float("nan")}, UsageError),
        ({"gamma": 0.0}, UsageError),
        ({"gamma": 1.5}, UsageError),
        ({"steps": 0}, UsageError),
        ({"clamp": (1.0, 0.0)}, UsageError),
        ({"batch_size": 0}, UsageError),
        ({"batch_size": 1.5}, UsageError),
        ({"lr": float("nan")}, UsageError),
        ({"clamp": (0.0, 1.0, 2.0)}, UsageError),
        ({"clamp": (None, 1.0)}, UsageError),
        ({"edit_count": torch.tensor([0, 0, 0, 0, 0, 0, -1])}, InputError),
        ({"y_mem": [0, 1, 2, 3, 0, 1, 2]}, InputError),
        ({"edit_count": torch.zeros(2)}, InputError),
        ({"x_mem": torch.zeros(7, 1, 6, 6, dtype=torch.uint8)}, InputError),
        ({"x_mem": torch.zeros(0, 1, 6, 6), "y_mem": torch.zeros(0, dtype=torch.long)}, InputError),
        ({"y_stream": torch.zeros(3, dtype=torch.long)}, InputError),
    ],
)
def test_bad_arguments_are_refused(change, error, batches):
    names = ("x_mem", "y_mem", "x_stream", "y_stream")
    kwargs = {**dict(zip(names, batches, strict=True)), "lr": 0.1, "alpha": 1.0, "beta": 0.1} | change
    with pytest.raises(error):
        gmed.edit_examples(mlp(), **kwargs)
