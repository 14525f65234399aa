"""The contract every method keeps, for every combination of method and edit."""

import pytest
import torch

from gmed.engine import EDITS, METHODS
from gmed.errors import DivergedError
from gmed.testing import CAPACITY, CHECKS, learn, make, stream

SMALL = {  # parameters that make the slow ones quick
    "hal": "anchor_steps=3,memory_epochs=1",
    "bgd": "samples=2,initial_std=0.1",
    "gss": "n_compare=3",
    "agem": "ref_batch_size=20",
    "mir": "subsample=15,extra_batches=1",
    "er-aug": "rotation=15.0,scaling=0.1,crop=1,flip=true",
    "er-t": "rotation=15.0,crop=1",
    "er": "updates_per_batch=2",
    "cn-dpm": "stm_capacity=25,generator_steps=3,classifier_steps=3,sleep_batch=5",
    "comp-cl": "structure_steps=2",
}
STRIDE = {
    "gmed": ("gmed(alpha={},beta=0.1,extra=3,gamma=0.9)", 2.0),
    "random-edit": ("random-edit(stride={})", 0.3),
    "adv-edit": ("adv-edit(stride={})", 0.05),
    "optimal-edit": ("optimal-edit(alpha={},examples=20)", 0.01),
}


def written(base, edit=None, stride=None):
    options = [SMALL[base]] if base in SMALL else []
    options += [f"memory={CAPACITY}"] if METHODS[base].memory else []
    text = f"{base}({','.join(options)})"
    if edit is None:
        return text
    if edit not in STRIDE:  # a new edit: its own defaults
        return f"{text}+{edit}"
    form, usual = STRIDE[edit]
    return f"{text}+{form.format(usual if stride is None else stride)}"


BASES = [base for base, recipe in METHODS.items() if recipe.order is None]
EDITED = [(base, edit) for base in BASES if METHODS[base].editable for edit in EDITS]
EVERY = [written(base) for base in BASES] + [written(base, edit) for base, edit in EDITED]

QUICK = ("finetune", "er", "er+gmed", "mir", "agem")


def as_params(texts):
    """Those of a few methods, and of all others marked as slow."""
    quick = {written(*name.split("+")) for name in QUICK}
    return [text if text in quick else pytest.param(text, marks=pytest.mark.slow) for text in texts]


@pytest.mark.parametrize("text", as_params(EVERY))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_method_passes_contract_check(text, check):
    check(text)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "edit"), [(base, edit) for base, edit in EDITED if edit in STRIDE])
def test_zero_stride_equals_the_base_method_to_rounding(base, edit):
    plain = learn(make(written(base)), stream(40))
    edited = learn(make(written(base, edit, stride=0.0)), stream(40))
    edited.memory.edit_count.zero_()
    left, right = plain.state_dict(), edited.state_dict()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize(("base", "edit"), EDITED)
def test_edits_change_stored_values_but_not_which_examples_are_stored(base, edit):
    plain, edited = (learn(make(t), stream(20)) for t in (written(base), written(base, edit)))
    assert not torch.equal(plain.memory.x, edited.memory.x)
    if base not in ("er-t", "gss"):  # there, losses and gradients decide who enters
        assert torch.equal(plain.memory.stream_index, edited.memory.stream_index)


@pytest.mark.parametrize("text", EVERY)
def test_task_aware_methods(text):
    assert make(text).task_aware == text.startswith(("gem", "hal", "prog-nn", "comp-cl"))


def test_failed_second_update_undoes_the_first(monkeypatch):
    learner = learn(make("er(memory=40,updates_per_batch=2)+gmed(alpha=2.0)"), stream(8))
    before = learner.state_dict()
    original, calls = learner.sgd_step, []

    def sgd_step(*args):
        if calls:
            raise DivergedError
        calls.append(1)
        original(*args)

    monkeypatch.setattr(learner, "sgd_step", sgd_step)
    with pytest.raises(DivergedError):
        learn(learner, stream(1))
    for name, then in before.items():
        assert torch.equal(learner.state_dict()[name], then), name


def test_write_back_and_extra():
    kept = learn(make("er(memory=40)+gmed(alpha=2.0,write_back=false)"), stream(20))
    plain = learn(make("er(memory=40)"), stream(20))
    assert torch.equal(kept.memory.x, plain.memory.x)  # nothing was stored
    assert not torch.equal(kept.model[1].weight, plain.model[1].weight)  # but edited examples were replayed

    one, more = (make(f"er(memory=100)+gmed(alpha=2.0,extra={extra})") for extra in (0, 15))
    batches = list(stream(6))
    learn(one, batches[:4])
    learn(more, batches[:4])
    more.load_state_dict(one.state_dict())
    learn(one, batches[4:5])
    learn(more, batches[4:5])
    assert torch.equal(one.model[1].weight, more.model[1].weight)  # extra examples are not replayed
    assert int(more.memory.edit_count.sum()) == int(one.memory.edit_count.sum()) + 15  # but edited and stored


def test_task_aware_learners_refuse_invalid_tasks():
    learner = make("gem(memory=40)")
    x, y, _ = next(stream(1))
    for task in (-1, 0.5, None):
        with pytest.raises(ValueError, match="task"):
            learner.observe(x, y, task)
    with pytest.raises(ValueError, match="5 tasks"):
        learner.observe(x, y, 5)
    assert learner.steps == 0
