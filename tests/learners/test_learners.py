"""Learners: steps, random draws, states, batch norm and input validation."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import gmed
from gmed.editing import GMED
from gmed.errors import DivergedError, InputError, UsageError
from gmed.learners import ER, FineTune
from gmed.memory import Reservoir
from gmed.models import LookAhead


def mlp(seed=0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)).double()


def batch_norm_net(seed=0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).double()


def dropout_net(seed=0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Dropout(0.3), nn.ReLU(), nn.Linear(12, 4)).double()


MODELS = pytest.mark.parametrize("make", [mlp, batch_norm_net, dropout_net])


def stream(steps, size=10, seed=0):
    g = torch.Generator().manual_seed(seed)
    for t in range(steps):
        x = torch.rand(size, 1, 4, 4, generator=g, dtype=torch.float64)
        yield x, (x.flatten(1)[:, :4].argmax(1) + t // 20) % 4


def er(model, editing=None, seed=0, capacity=40, **kwargs):
    return ER(model, lr=0.1, memory=Reservoir(capacity), editing=editing, seed=seed, **kwargs)


def assert_same_state(a, b, tolerance=0.0):
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("make", [mlp, batch_norm_net])
@pytest.mark.parametrize("beta", [0.0, 0.01])
def test_zero_stride_equals_the_base_method(make, beta):
    """100 steps in double precision: the same draws and insertions, parameters equal to rounding."""
    plain, edited = er(make()), er(make(), GMED(alpha=0.0, beta=beta))
    for x, y in stream(100):
        plain.observe(x, y)
        edited.observe(x, y)
    edited.memory.edit_count.zero_()  # the one thing an edit of no length leaves behind
    assert_same_state(plain, edited, tolerance=1e-10)


@pytest.mark.parametrize("make", [mlp, batch_norm_net])
def test_step_equals_the_plain_computation(make):
    """Shared look-ahead and stream gradient against a step with copied models and torch's own SGD."""
    learner = er(make(), GMED(alpha=2.0, beta=0.1))
    batches = list(stream(13))
    for x, y in batches[:12]:
        learner.observe(x, y)
    model, memory = copy.deepcopy(learner.model), copy.deepcopy(learner.memory)
    x, y = batches[12]
    drawn = gmed.retrieval.uniform(memory.occupied(), 10, learner.random("replay"))
    x_m = gmed.edit_examples(model, memory.x[drawn], memory.y[drawn], x, y, lr=0.1, alpha=2.0, beta=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(torch.cat([x, x_m]))
    (cross_entropy(logits[:10], y) + cross_entropy(logits[10:], memory.y[drawn])).backward()
    optimizer.step()

    rng = learner.random("reservoir")
    learner.observe(x, y)
    for (name, ours), theirs in zip(learner.model.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13, msg=name)
    memory.replace(drawn, x_m)
    memory.insert(x, y, rng)
    for name, stored in memory.state_dict().items():
        torch.testing.assert_close(learner.memory.state_dict()[name], stored, rtol=0, atol=1e-13)


def test_one_stream_gradient_per_step(monkeypatch):
    """With GMED on an independent model, the incoming batch goes through the model once."""
    learner = er(mlp(), GMED(alpha=1.0, beta=0.1, steps=3))
    batches = list(stream(6))
    for x, y in batches[:5]:
        learner.observe(x, y)
    gradients, passes = [], []
    original = LookAhead.stream_gradient.func
    monkeypatch.setattr(LookAhead.stream_gradient, "func", lambda self: gradients.append(1) or original(self))
    learner.model[1].register_forward_pre_hook(lambda module, args: passes.append(args[0].clone()))
    learner._batch_independent = True
    learner.observe(*batches[5])
    assert len(gradients) == 1
    incoming = batches[5][0].flatten(1)
    assert sum(torch.equal(p, incoming) for p in passes) == 1
    assert all(len(p) == 10 for p in passes)


def test_draws_precede_insertion():
    learner = er(mlp())
    seen = []
    learner.sgd_step = lambda ahead, x_m=None, y_m=None, slots=None: seen.append((ahead.x, x_m))
    for x, y in stream(10):
        learner.observe(x, y)
    assert len(seen[0][1]) == 0  # nothing stored yet: stream only
    for incoming, replayed in seen[1:]:
        assert len(replayed) == 10
        assert not (replayed[:, None] == incoming[None]).flatten(2).all(2).any()


def test_methods_at_one_seed_make_the_same_draws_and_insertions():
    plain, edited, other = er(mlp()), er(mlp(), GMED(alpha=3.0, beta=0.1)), er(mlp(), seed=1)
    for x, y in stream(60):
        for learner in (plain, edited, other):
            learner.observe(x, y)
    assert torch.equal(plain.memory.stream_index, edited.memory.stream_index)
    assert not torch.equal(plain.memory.stream_index, other.memory.stream_index)
    assert not torch.equal(plain.memory.x, edited.memory.x)


@MODELS
def test_results_do_not_depend_on_other_random_numbers(make):
    alone, beside = er(make(), GMED(1.0, 0.1)), er(make(), GMED(1.0, 0.1))
    for x, y in stream(15):
        alone.observe(x, y)
    torch.manual_seed(99)
    neighbour = er(make(3), GMED(2.0, 0.1), seed=9)
    for x, y in stream(15):
        neighbour.observe(x, y)
        torch.rand(7)
        beside.observe(x, y)
    assert_same_state(alone, beside)


@MODELS
def test_loaded_state_continues_exactly(make, tmp_path):
    batches = list(stream(30))
    whole = er(make(), GMED(1.0, 0.1, gamma=0.9))
    for x, y in batches[:17]:
        whole.observe(x, y)
    whole.save(tmp_path / "learner.safetensors")
    resumed = er(make(5), GMED(1.0, 0.1, gamma=0.9))
    resumed.load(tmp_path / "learner.safetensors")
    for x, y in batches[17:]:
        whole.observe(x, y)
        resumed.observe(x, y)
    assert_same_state(whole, resumed)
    assert [p.name for p in tmp_path.iterdir()] == ["learner.safetensors"]


def test_a_state_of_another_kind_is_refused(tmp_path):
    tuned = FineTune(mlp(), lr=0.1)
    tuned.save(tmp_path / "a")
    with pytest.raises(UsageError, match="FineTune"):
        er(mlp()).load(tmp_path / "a")
    with pytest.raises(UsageError, match="another kind of learner"):
        er(mlp()).load_state_dict(tuned.state_dict())
    (tmp_path / "b").write_bytes(b"nonsense, and not safetensors")
    with pytest.raises(UsageError, match="not a valid state file"):
        er(mlp()).load(tmp_path / "b")
    with pytest.raises(UsageError, match="no such file"):
        er(mlp()).load(tmp_path / "c")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: er(mlp(), capacity=50), "40 slots"),
        (lambda: er(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()), "another|here|has no"),
        (lambda: er(nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 4))), "here"),
    ],
)
def test_incompatible_state_changes_nothing(other, message):
    source, target = er(mlp()), other()
    for x, y in stream(6):
        source.observe(x, y)
    before = target.state_dict()
    with pytest.raises(UsageError, match=message):
        target.load_state_dict(source.state_dict())
    assert before.keys() == target.state_dict().keys()
    for name, then in before.items():
        assert torch.equal(target.state_dict()[name], then)


def test_loaded_state_restores_seed_shape_and_dtype():
    source, target = er(mlp().float(), seed=7), er(mlp(), seed=1)
    for x, y in stream(6):
        source.observe(x, y)
        target.observe(x, y)
    target.load_state_dict(source.state_dict())
    assert target.seed == 7
    assert target.memory.x.dtype == torch.float64
    with pytest.raises(InputError, match="earlier ones of this stream"):
        target.observe(GOOD[0].flatten(1), GOOD[1])
    target.observe(*GOOD)
    target.load_state_dict(er(mlp()).state_dict())  # back to the beginning
    assert len(target.memory) == 0
    target.observe(*GOOD)


def test_dropout_masks_are_the_same_before_and_after():
    """At a look-ahead of no length nothing is forgotten, so the edit must not move either."""
    model = dropout_net()
    x, y = GOOD
    edited = gmed.edit_examples(model, x, y, x, y, lr=1e-13, alpha=1.0, beta=0.0)
    assert (edited - x).abs().max() < 1e-10
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    gmed.edit_examples(model, x, y, x, y, lr=0.1, alpha=1.0, beta=0.0)
    assert torch.equal(torch.rand(3), expected)  # and the caller's random numbers are left alone


def test_batch_norm_statistics_change_only_with_the_update():
    learner = er(batch_norm_net(), GMED(alpha=1.0, beta=0.1, steps=2))
    for x, y in stream(8):
        learner.observe(x, y)
    assert int(learner.model[1].num_batches_tracked) == 8


def test_predict_changes_nothing():
    learner = er(batch_norm_net())
    for x, y in stream(5):
        learner.observe(x, y)
    learner.model[3].eval()  # a mode of its own
    modes = [m.training for m in learner.model.modules()]
    before = learner.state_dict()
    predicted = learner.predict(next(stream(1))[0])
    assert predicted.shape == (10,)
    assert [m.training for m in learner.model.modules()] == modes
    for name, then in before.items():
        assert torch.equal(learner.state_dict()[name], then)


# ---------------------------------------------------------------------- bad input

GOOD = (torch.rand(10, 1, 4, 4, dtype=torch.float64), torch.arange(10) % 4)


def with_nan(value):
    x = GOOD[0].clone()
    x[3, 0, 1, 1] = value
    return x


BAD = {
    "nan": (with_nan(float("nan")), GOOD[1], r"NaN or infinity .* example\(s\) \[3\]"),
    "infinity": (with_nan(float("inf")), GOOD[1], "NaN or infinity"),
    "shape": (torch.rand(10, 1, 5, 5, dtype=torch.float64), GOOD[1], "earlier ones of this stream"),
    "one dimension": (torch.rand(10, dtype=torch.float64), GOOD[1], "batch of at least one"),
    "label too high": (GOOD[0], GOOD[1] + 1, r"0 \.\. 3"),
    "label negative": (GOOD[0], GOOD[1] - 1, r"0 \.\. 3"),
    "label not integer": (GOOD[0], GOOD[1].double(), "integer class labels"),
    "label bool": (GOOD[0], GOOD[1] > 1, "integer class labels"),
    "empty": (GOOD[0][:0], GOOD[1][:0], "at least one example"),
    "different length": (GOOD[0], GOOD[1][:7], "one label per example"),
    "labels of two dimensions": (GOOD[0], GOOD[1][:, None], "one label per example"),
    "not numbers": (["a", "b"], GOOD[1], "cannot be read as a tensor"),
    "none": (None, GOOD[1], "cannot be read as a tensor"),
    "ragged labels": (GOOD[0], [[1], [1, 2]], "cannot be read as a tensor"),
    "integer pixels": ((GOOD[0] * 255).to(torch.uint8), GOOD[1], r"x\.float\(\) / 255"),
}


@pytest.mark.parametrize("started", [True, False], ids=["in mid-stream", "first batch"])
@pytest.mark.parametrize(("x", "y", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_and_changes_nothing(x, y, message, started):
    learner = er(mlp(), GMED(1.0, 0.1))
    if started:
        for batch in stream(8):
            learner.observe(*batch)
    elif message == "earlier ones of this stream":
        message = "does not accept inputs of shape"
    before = learner.state_dict()
    with pytest.raises(InputError, match=message):
        learner.observe(x, y)
    after = learner.state_dict()
    assert before.keys() == after.keys()
    for name in before:
        assert torch.equal(before[name], after[name]), name
    learner.observe(*GOOD)  # and the stream goes on


@MODELS
def test_divergence_is_reported_and_the_step_is_undone(make):
    learner = er(make(), GMED(1.0, 0.1))
    for batch in stream(8):
        learner.observe(*batch)
    with torch.no_grad():
        for p in learner.model.parameters():
            p.fill_(1e308)
    before = learner.state_dict()
    with pytest.raises(DivergedError, match="step 8"):
        learner.observe(*GOOD)
    for name, then in before.items():
        assert torch.equal(learner.state_dict()[name], then), name


def test_numpy_arrays_other_dtypes_and_odd_batches_are_accepted():
    learner = er(mlp(), GMED(1.0, 0.1), capacity=4)
    x, y = GOOD
    learner.observe(x.numpy().astype(np.float32), y.numpy().astype(np.int32))
    learner.observe(x.half(), y.to(torch.uint8))
    learner.observe(x[:1], y[:1])  # a single example
    learner.observe(torch.cat([x, x]), torch.cat([y, y]))  # more than memory holds
    assert len(learner.memory) == 4
    assert learner.memory.num_seen == 41
    assert learner.memory.x.dtype == torch.float64


def test_inference_mode_is_refused_but_no_grad_accepted():
    learner = er(mlp())
    with torch.no_grad():
        learner.observe(*GOOD)
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        learner.observe(*GOOD)
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        gmed.edit_examples(learner.model, *GOOD, *GOOD, lr=0.1, alpha=1.0, beta=0.1)


def test_saving_to_an_unwritable_path_names_it(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        er(mlp()).save(tmp_path / "nowhere" / "state")


def test_negative_strides_are_accepted():
    er(mlp()).observe(GOOD[0].numpy()[:, :, ::-1], GOOD[1].numpy()[::-1])


def test_one_example_and_batch_norm_is_refused_and_changes_nothing():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    learner = er(model)
    before = learner.state_dict()
    with pytest.raises(InputError, match="more than 1 value per channel"):
        learner.observe(GOOD[0][:1], GOOD[1][:1])
    assert not learner.memory.is_allocated
    for name in ("steps", "memory.seen", "model.2.running_mean", "model.1.weight"):
        assert torch.equal(learner.state_dict()[name], before[name])


def test_a_model_of_the_wrong_kind_is_refused():
    for memory in (500, None, "big"):
        with pytest.raises(UsageError, match="memory"):
            ER(mlp(), lr=0.1, memory=memory)
    for editing in ("gmed", GMED, 5.0):
        with pytest.raises(UsageError, match="editing"):
            ER(mlp(), lr=0.1, memory=Reservoir(5), editing=editing)
    for seed in (None, -1, 0.5):
        with pytest.raises(UsageError, match="seed"):
            FineTune(mlp(), lr=0.1, seed=seed)
    with pytest.raises(InputError, match="logits"):
        er(nn.Conv2d(1, 3, 3).double()).observe(*GOOD)
    with pytest.raises(UsageError, match="parameters to train"):
        er(nn.Flatten())
    for lr in (0.0, -0.1, float("nan"), float("inf"), "0.1", None):
        with pytest.raises(UsageError, match="lr"):
            FineTune(mlp(), lr=lr)
    with pytest.raises(UsageError, match="replay_size"):
        er(mlp(), replay_size=0)


def test_two_learners_cannot_share_a_memory():
    memory = Reservoir(10)
    ER(mlp(), lr=0.1, memory=memory).observe(*GOOD)
    with pytest.raises(UsageError, match="another learner"):
        ER(mlp(), lr=0.1, memory=memory)
    fresh = Reservoir(10)
    ER(mlp(), lr=0.1, memory=fresh)
    with pytest.raises(UsageError, match="another learner"):
        ER(mlp(), lr=0.1, memory=fresh)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=10), st.integers(1, 25), st.integers(1, 20))
def test_memory_is_consistent_for_any_batch_sizes(sizes, capacity, replay_size):
    learner = er(mlp(), GMED(5.0, 0.01), capacity=capacity, replay_size=replay_size)
    for i, size in enumerate(sizes):
        learner.observe(*next(stream(1, size, seed=i)))
    assert len(learner.memory) == min(capacity, sum(sizes))
    assert torch.isfinite(learner.memory.x).all()
    assert learner.steps == len(sizes)
