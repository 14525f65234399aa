"""A unit of a residual network in kernels of its own, against the same unit in torch's operations.

Without a GPU the kernels run in Triton's interpreter: the same code, program by program, in NumPy.
"""

import copy
import doctest
import importlib
import os
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, relu

from gmed.editing import GMED
from gmed.kernels import conv_bn_relu as unit_module
from gmed.kernels.conv_bn_relu import conv_bn_relu, use_triton
from gmed.learners import ER
from gmed.memory import Reservoir
from gmed.models import LookAhead, ResNet18, gradient, trainable
from gmed.models.batch_norm import BatchNorm
from helpers import random_batch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
pytest.importorskip("triton", reason="the kernels are in Triton, which is not installed")
fused = importlib.import_module("gmed.kernels.conv_bn_relu_autograd")


@pytest.fixture(autouse=True)
def float32(monkeypatch):
    """Products in full precision, so that nothing but the order of sums differs."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def kernels(monkeypatch):
    """Scaler are made of kernels wherever they can be, with or without a GPU."""
    monkeypatch.setattr(unit_module, "_triton_runs_on", lambda x: True)
    with use_triton():
        yield


@pytest.fixture
def few_programs(monkeypatch):
    """Every program has many small tiles to make."""
    monkeypatch.setattr(fused, "MAX_PROGRAMS", 3)
    monkeypatch.setattr(fused, "ELEMENTS_PER_PROGRAM", 64)
    monkeypatch.setattr(fused, "MAX_PARTIALS", 128)
    for tiles in (fused.FORWARD, fused.GRAD_INPUT, fused.GRAD_WEIGHT):
        monkeypatch.setitem(tiles, "BLOCK_M", 16 if DEVICE == "cpu" else 64)


@pytest.fixture
def large_tiles(monkeypatch):
    """The interpreter, which takes a while for each tile, has few to make."""
    if DEVICE == "cpu":
        monkeypatch.setattr(fused, "ELEMENTS_PER_PROGRAM", 2**14)
        for tiles in (fused.FORWARD, fused.GRAD_INPUT, fused.GRAD_WEIGHT):
            monkeypatch.setitem(tiles, "BLOCK_M", 2048)


@pytest.fixture
def made(monkeypatch):
    """The units that were made of kernels."""
    units, fused_conv_bn_relu = [], fused.fused_conv_bn_relu
    monkeypatch.setattr(fused, "fused_conv_bn_relu", lambda *given: units.append(given) or fused_conv_bn_relu(*given))
    return units


def layers(before, after, size=3, stride=1):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(before, after, size, stride=stride, padding=size // 2, bias=False), BatchNorm(after)
    with torch.no_grad():
        norm.weight.uniform_(-1.5, 1.5)
        norm.bias.uniform_(-1, 1)
    return conv.to(DEVICE), norm.to(DEVICE)


def images(n, channels, *sides, seed=0):
    drawn = torch.randn(n, channels, *sides, generator=torch.Generator().manual_seed(seed))
    return (0.7 + drawn).to(DEVICE).requires_grad_()


def plain(conv, norm, x, residual, apply_relu):
    out = norm(conv(x))
    out = out if residual is None else out + residual
    return relu(out) if apply_relu else out


def check(conv, norm, x, residual=None, apply_relu=True):
    """Output, all gradients and kept statistics against torch's."""
    conv_too, norm_too = copy.deepcopy(conv), copy.deepcopy(norm)
    expected, found = (
        plain(conv, norm, x, residual, apply_relu),
        fused.fused_conv_bn_relu(conv_too, norm_too, x, residual, apply_relu),
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).to(DEVICE)
    away_from_the_kink = ((expected.detach() > 1e-4) | (expected.detach() == 0) & (found.detach() == 0)).float()
    slope = slope * away_from_the_kink if apply_relu else slope

    def slopes(out, conv, norm):
        asked = [x, conv.weight, norm.weight, norm.bias, *([] if residual is None else [residual])]
        return torch.autograd.grad(out, asked, slope)

    for ours, torchs in zip(slopes(found, conv_too, norm_too), slopes(expected, conv, norm), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-3, atol=1e-4 * torchs.abs().max().item())
    torch.testing.assert_close(norm_too.running_mean, norm.running_mean)
    torch.testing.assert_close(norm_too.running_var, norm.running_var)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 1), (1, 2), (5, 1), (5, 3)])
@pytest.mark.parametrize(("before", "after"), [(3, 4), (20, 40)])
def test_fused_unit_equals_convolution_batch_norm_and_relu(size, stride, before, after):
    check(*layers(before, after, size, stride), images(2, before, 9, 7))
    check(*layers(before, after, size, stride), images(2, before, 9, 7), apply_relu=False)


@pytest.mark.slow
@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("apply_relu", [True, False])
def test_fused_unit_with_residual_and_more_tiles_than_programs(stride, apply_relu):
    conv, norm = layers(4, 8, stride=stride)
    sides = -(-9 // stride), -(-11 // stride)
    check(conv, norm, images(3, 4, 9, 11), images(3, 8, *sides, seed=1), apply_relu)


def test_more_channels_than_a_tile_has_columns():
    check(*layers(70, 80), images(2, 70, 4, 4), images(2, 80, 4, 4, seed=1))


@pytest.mark.slow
@settings(max_examples=20 if DEVICE == "cpu" else 40, deadline=None)
@given(
    st.integers(1, 4),
    st.tuples(st.integers(2, 9), st.integers(2, 9)),
    st.tuples(st.integers(1, 9), st.integers(1, 18)),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.booleans(),
)
def test_fused_unit_of_any_size(n, sides, channels, size, stride, has_residual, apply_relu):
    sides_after = tuple(-(-side // stride) for side in sides)
    if n * sides_after[0] * sides_after[1] < 4:
        return  # a variance of so few is next to nothing, and what is divided by it is noise
    residual = images(n, channels[1], *sides_after, seed=1) if has_residual else None
    check(*layers(*channels, size, stride), images(n, channels[0], *sides), residual, apply_relu)


def test_statistics_of_values_far_from_zero():
    """Mean and variance are not taken as the difference of large numbers."""
    conv, norm = layers(3, 4, size=1)
    x = (images(4, 3, 8, 8).detach() + 3000).requires_grad_()
    found = fused.fused_conv_bn_relu(conv, copy.deepcopy(norm), x, None, False)
    exact = norm.double()(conv.double()(x.double()))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=5e-3)


@pytest.mark.usefixtures("kernels")
def test_statistics_are_kept_only_where_they_are_tracked():
    conv, norm = layers(3, 4)
    before = norm.running_var.clone()
    norm.track_running_stats = False
    conv_bn_relu(conv, norm, images(2, 3, 5, 5))
    assert torch.equal(norm.running_var, before)
    norm.track_running_stats = True
    with torch.no_grad():
        conv_bn_relu(conv, norm, images(2, 3, 5, 5))
    assert not torch.equal(norm.running_var, before)


def test_only_the_gradients_that_are_asked_for_are_computed(monkeypatch):
    conv, norm = layers(3, 4)
    monkeypatch.setattr(fused.ConvShape, "grad_weight", None)  # calling it would fail
    still = [p.requires_grad_(False) for p in (conv.weight, norm.weight, norm.bias)]
    x = images(2, 3, 5, 5)
    fused.fused_conv_bn_relu(conv, norm, x, None, True).sum().backward()
    assert x.grad is not None and all(p.grad is None for p in still)
    monkeypatch.undo()
    monkeypatch.setattr(fused.ConvShape, "grad_input", None)
    conv.weight.requires_grad_(True)
    fused.fused_conv_bn_relu(conv, norm, x.detach(), None, True).sum().backward()
    assert conv.weight.grad is not None


def test_a_gradient_can_be_differentiated():
    conv, norm = layers(3, 4)
    norm.double(), conv.double()
    x = images(2, 3, 5, 5).double().detach().requires_grad_()

    def twice(f, conv, norm, x):
        (slope,) = torch.autograd.grad(f(conv, norm, x).pow(2).sum(), conv.weight, create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), [x, norm.weight])

    expected = twice(lambda *given: plain(*given, None, True), conv, norm, x)
    small = copy.deepcopy(conv).float(), copy.deepcopy(norm).float(), x.detach().float().requires_grad_()
    found = twice(lambda *given: fused.fused_conv_bn_relu(*given, None, True), *small)
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item())


def conv(**how):
    return nn.Conv2d(4, 4, **{"kernel_size": 3, "padding": 1, "bias": False, **how})


class OwnConv(nn.Conv2d):
    """Which may do anything."""


NOT_SUITED = {
    "evaluation": lambda conv, norm, x: (conv, norm.eval(), x),
    "float64": lambda conv, norm, x: (conv.double(), norm.double(), x.double()),
    "one type among others": lambda conv, norm, x: (conv, norm.to(torch.float64), x.double()),
    "hook on the convolution": lambda conv, norm, x: (hooked(conv), norm, x),
    "hook on the normalisation": lambda conv, norm, x: (conv, hooked(norm), x),
    "bias": lambda _, norm, x: (conv(bias=True), norm, x),
    "groups": lambda _, norm, x: (conv(groups=2), norm, x),
    "dilation": lambda _, norm, x: (conv(dilation=2), norm, x),
    "padding": lambda _, norm, x: (conv(padding=0), norm, x),
    "padding by reflection": lambda _, norm, x: (conv(padding_mode="reflect"), norm, x),
    "oblong": lambda _, norm, x: (conv(kernel_size=(3, 1)), norm, x),
    "oblong stride": lambda _, norm, x: (conv(stride=(1, 2)), norm, x),
    "even": lambda _, norm, x: (conv(kernel_size=2), norm, x),
    "other norm": lambda conv, _, x: (conv, nn.BatchNorm2d(4), x),
    "norm without parameters": lambda conv, norm, x: (conv, bare(norm), x),
    "other conv": lambda _, norm, x: (OwnConv(4, 4, 3, padding=1, bias=False), norm, x),
    "no examples": lambda conv, norm, x: (conv, norm, x[:0]),
}


def hooked(module):
    module.register_forward_hook(lambda *_: None)
    return module


def bare(norm):
    norm.affine, norm.weight, norm.bias = False, None, None
    return norm


@pytest.mark.parametrize("why", NOT_SUITED)
@pytest.mark.usefixtures("kernels")
def test_unsupported_layers_use_torch(made, why):
    first, norm, x = NOT_SUITED[why](*layers(4, 4), images(2, 4, 6, 6))
    first, norm = first.to(DEVICE), norm.to(DEVICE)
    try:
        expected = relu(norm(first(x)))
    except (RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            conv_bn_relu(first, norm, x)
    else:
        assert torch.equal(conv_bn_relu(first, norm, x), expected)
    assert not made


@pytest.mark.usefixtures("kernels")
def test_broadcast_residual_and_autocast_use_torch(made):
    first, norm = layers(4, 4)
    x, residual = images(2, 4, 6, 6), images(1, 4, 1, 1, seed=1)
    assert torch.equal(conv_bn_relu(first, norm, x, residual), relu(norm(first(x)) + residual))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        conv_bn_relu(first, norm, x)
    with pytest.raises(RuntimeError, match="channels"):
        conv_bn_relu(first, norm, images(2, 3, 6, 6))
    assert not made
    conv_bn_relu(first, norm, x)
    assert made


@pytest.mark.usefixtures("kernels")
def test_one_number_has_no_variance():
    conv, norm = layers(3, 4, stride=2)
    with pytest.raises(ValueError, match="more than 1 value"):
        conv_bn_relu(conv, norm, images(1, 3, 2, 2))


def test_nan_is_propagated():
    conv, norm = layers(3, 4)
    with torch.no_grad():
        conv.weight[1] = torch.nan
    out = fused.fused_conv_bn_relu(conv, norm, images(2, 3, 5, 5), None, True)
    assert out[:, 1].isnan().all() and not out[:, 0].isnan().any()
    (slope,) = torch.autograd.grad(out.sum(), conv.weight)
    assert slope[1].isnan().all() and not slope[0].isnan().any()


def test_without_a_gpu_kernels_are_not_used(made):
    first, norm = layers(3, 4)
    conv_bn_relu(first, norm, images(2, 3, 5, 5))  # nor with one, outside of use_triton
    with use_triton():
        conv_bn_relu(first.cpu(), norm.cpu(), images(2, 3, 5, 5).cpu())
    assert not made


def test_trial_compilation_draws_no_random_numbers(monkeypatch, made):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    unit_module._triton_available.cache_clear()
    before = torch.get_rng_state()
    assert unit_module._triton_available(torch.device(DEVICE))
    assert torch.equal(torch.get_rng_state(), before) and made
    unit_module._triton_available.cache_clear()


def test_torch_is_used_where_triton_cannot_compile(monkeypatch):
    def fails(*given):
        raise OSError("there is no compiler\nand more about that")

    monkeypatch.setattr(fused, "fused_conv_bn_relu", fails)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    unit_module._triton_available.cache_clear()
    with pytest.warns(UserWarning, match=r"compile kernels on this machine \(there is no compiler\)"):
        assert not unit_module._triton_available(torch.device(DEVICE))
    unit_module._triton_available.cache_clear()


def test_precision_follows_the_convolution_setting(monkeypatch):
    assert fused.precision() == "ieee"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert fused.precision() == "tf32"


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="a torch without such settings")
def test_precision_follows_the_per_convolution_setting():
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    try:
        assert fused.precision() == "tf32"
    finally:
        torch.backends.cudnn.conv.fp32_precision = "ieee"  # as everything is here
    assert fused.precision() == "ieee"


def test_the_examples_in_the_module():
    results = doctest.testmod(fused)
    assert results.attempted and not results.failed


def networks():
    torch.manual_seed(0)
    model = ResNet18(classes=4, size=25, width=4).to(DEVICE)
    return model, copy.deepcopy(model)


def batch(n, seed):
    return tuple(tensor.to(DEVICE) for tensor in random_batch(n, (3, 25, 25), 4, seed))


@pytest.mark.slow
@pytest.mark.usefixtures("kernels", "large_tiles")
def test_network_of_fused_units(made):
    """Loss, its gradients and one step ahead, as torch's operations have them in float64."""
    model, exact = networks()
    exact.double()
    (x, y), (x_m, y_m) = batch(4, 0), batch(3, 1)
    reference, found = LookAhead(exact, x.double(), y, lr=0.1), LookAhead(model, x, y, lr=0.1)
    expected, ahead = reference.stream_gradient, reference.loss_after(x_m.double(), y_m)
    assert not made
    for name, slope in gradient(cross_entropy(model(x), y), trainable(model)).items():
        scale = expected[name].abs().max().item()
        torch.testing.assert_close(slope.double(), expected[name], rtol=5e-3, atol=5e-3 * scale + 1e-6)
    torch.testing.assert_close(found.loss_after(x_m, y_m).double(), ahead, rtol=1e-3, atol=1e-4)
    assert len(made) == 3 * 20  # convolutions of a pass


@pytest.mark.slow
@pytest.mark.usefixtures("large_tiles")
def test_learner_with_fused_units(made, monkeypatch):
    """Two steps of ER with edits: the same parameters and the same edited memory, but for the order of sums."""
    monkeypatch.setattr(unit_module, "_triton_runs_on", lambda x: True)
    ours, torchs = (
        ER(model, lr=0.05, memory=Reservoir(8), editing=GMED(alpha=0.5, beta=0.1), seed=3) for model in networks()
    )
    for learner, where in ((ours, use_triton()), (torchs, nullcontext())):
        with where:
            for step in range(2):
                learner.observe(*batch(3, step))
    assert len(made) == 5 * 20  # the first step has nothing to edit
    for p, q in zip(ours.model.parameters(), torchs.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(ours.memory.x, torchs.memory.x, rtol=1e-2, atol=2e-3)
    for name, kept in ours.model.named_buffers():
        torch.testing.assert_close(kept, torchs.model.get_buffer(name), rtol=1e-2, atol=1e-4)
