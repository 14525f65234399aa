"""Method names: defaults, canonical form, validation and keys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gmed.engine import BENCHMARKS, METHODS, RunSpec, get_benchmark, resolve
from gmed.engine.methods import Component, parse
from gmed.errors import UsageError
from gmed.paper import PREVIOUS_BEST, cells

SPLIT = get_benchmark("split-mnist")


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_defaults_on_every_benchmark(benchmark, method):
    found = resolve(get_benchmark(benchmark), method)
    assert found.name == method


@pytest.mark.parametrize("ending", ["", "-fuzzy"])
@pytest.mark.parametrize(
    ("benchmark", "lr", "memory", "gmed", "augmented"),
    [
        ("split-mnist", 0.05, 500, (5.0, 0.01), (5.0, 0.001)),
        ("permuted-mnist", 0.05, 500, (0.05, 0.001), (0.05, 0.001)),
        ("rotated-mnist", 0.05, 500, (1.0, 0.01), (1.0, 0.01)),
        ("split-cifar10", 0.1, 500, (0.05, 0.001), (0.07, 0.01)),
        ("split-cifar100", 0.03, 10_000, (0.01, 0.001), (0.05, 0.001)),
        ("split-mini-imagenet", 0.1, 10_000, (1.0, 0.1), (0.5, 0.0)),
    ],
)
def test_published_hyper_parameters_are_the_defaults(benchmark, ending, lr, memory, gmed, augmented):
    """Table 6 of the paper, and its Appendix A."""
    for name, (alpha, beta) in (("er+gmed", gmed), ("mir+gmed", gmed), ("er-aug+gmed", augmented)):
        method = resolve(get_benchmark(benchmark + ending), name)
        edit = method.edit.parameters
        assert (edit["alpha"], edit["beta"], edit["gamma"], edit["steps"]) == (alpha, beta, 1.0, 1)
        assert (method.base.parameters["lr"], method.base.parameters["memory"]) == (lr, memory)
    candidates = resolve(get_benchmark(benchmark), "mir").base.parameters["subsample"]
    assert candidates == (25 if benchmark == "split-mini-imagenet" else 50)


@pytest.mark.parametrize(
    ("typed", "short", "base"),
    [
        ("er+gmed", "er+gmed", "er"),
        (" er + gmed ( alpha = 5 ) ", "er+gmed", "er"),
        ("er+gmed(alpha=1)", "er+gmed(alpha=1.0)", "er"),
        ("er+gmed(beta=0.1,alpha=1e+1)", "er+gmed(alpha=10.0,beta=0.1)", "er"),
        ("er(memory=200)+gmed(steps=3)", "er(memory=200)+gmed(steps=3)", "er(memory=200)"),
        ("er+gmed(clamp=[0,1])", "er+gmed(clamp=[0.0,1.0])", "er"),
        ("er+gmed(clamp=none)", "er+gmed", "er"),
        ("er(lr=0.05)", "er", None),
        ("iid-offline(passes=5)", "iid-offline", None),
    ],
)
def test_names_are_canonical(typed, short, base):
    method = resolve(SPLIT, typed)
    assert method.name == short
    assert method.baseline_name == base
    assert resolve(SPLIT, short) == method


def test_memory_option_reaches_methods_that_have_one():
    assert resolve(SPLIT, "er", memory=50).name == "er(memory=50)"
    assert resolve(SPLIT, "er(memory=70)", memory=50).name == "er(memory=70)"
    assert resolve(SPLIT, "er", memory=500).name == "er"
    assert resolve(SPLIT, "finetune", memory=50).name == "finetune"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("err", "did you mean 'er'"),
        ("er+gmde", "did you mean 'gmed'"),
        ("gmed", r"er\+gmed"),
        ("er,er+gmed", "separate methods by spaces"),
        ("er+gmed(alhpa=1)", "did you mean 'alpha'"),
        ("er+gmed+gmed", "one edit"),
        ("finetune+gmed", "takes no edit; these do: er,"),
        ("", "cannot read"),
        ("er+", "cannot read"),
        ("er+gmed(alpha=1", "cannot read"),
        ("er+gmed(1.0)", "cannot read"),
        ("er+gmed(alpha=__import__('os'))", "cannot read"),
        ("er+gmed(alpha=big)", "takes a number, not big"),
        ("er+gmed(alpha=true)", "takes a number"),
        ("er+gmed(steps=1.5)", "takes an integer"),
        ("er+gmed(alpha=-1)", "alpha must not be negative"),
        ("er+gmed(alpha=1e999)", "finite"),
        ("er+gmed(alpha=1" + "0" * 400 + ")", "finite"),
        ("er+gmed(alpha=" + "-" * 5000 + "1)", "cannot read"),
        ("er(memory=1,memory=2)", "memory is given twice"),
        ("er+gmed(clamp=5)", "clamp"),
        ("er+gmed(clamp='ab')", "clamp"),
        ("er+gmed(clamp=[none,1])", "clamp"),
        ("er+gmed(clamp=[[0,1],[2,3]])", "clamp"),
        ("iid-online(passes=0)", "passes"),
        ("er(memory=0)", "capacity"),
        ("er(replay_size=0)", "replay_size"),
        ("er(lr=0)", "lr must be"),
    ],
)
def test_impossible_parameters_are_refused_before_any_run(text, message):
    with pytest.raises(UsageError, match=message):
        resolve(SPLIT, text)


def test_unknown_benchmark_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'split-mnist'"):
        get_benchmark("spilt-mnist")


values = st.one_of(st.integers(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none())
parts = st.builds(
    Component,
    st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True),
    st.dictionaries(st.sampled_from(["alpha", "beta", "steps", "memory"]), values, max_size=3),
)


@given(st.lists(parts, min_size=1, max_size=3))
def test_method_names_round_trip(written):
    assert list(parse("+".join(map(str, written)))) == written


def test_key_covers_everything_that_affects_the_result(monkeypatch):
    def key(*args):
        return RunSpec.make(*args).key

    base = key("split-mnist", "er+gmed", 0)
    assert base == key("split-mnist", "er+gmed(alpha=5.0)", 0)
    others = {
        key("split-mnist", "er+gmed", 1),
        key("split-mnist", "er", 0),
        key("split-mnist", "er+gmed(alpha=1.0)", 0),
        key("split-mnist-full", "er+gmed", 0),
        key("split-mnist", "er+gmed", 0, 200),
    }
    assert len(others) == 5
    assert base not in others
    for part in ("editing.GMED", "learners.ER", "learners.Learner", "memory.Memory"):
        with monkeypatch.context() as changed:
            changed.setattr(f"gmed.{part}.version", 2, raising=False)
            assert key("split-mnist", "er+gmed", 0) != base, part


def test_published_numbers_use_canonical_names():
    """Else a result of ours would not find its published counterpart."""
    for cell in cells():
        if cell.method != PREVIOUS_BEST:
            assert resolve(get_benchmark(cell.benchmark), cell.method).name == cell.method


def test_resolving_a_method_does_not_advance_torch_rng():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    resolve(get_benchmark("split-mnist"), "er(replay_size=7)+gmed(alpha=0.123)")
    assert torch.equal(torch.rand(3), expected)
