"""Batches passed by the caller are neither modified nor kept by reference."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

import gmed
from gmed.editing import GMED, OptimalEdit
from gmed.errors import InputError
from gmed.learners import ER, MIR, FineTune
from gmed.memory import Reservoir


class Shifts(nn.Module):
    """Writes into its input, in one way or another."""

    def __init__(self, how):
        super().__init__()
        self.how, self.fc = how, nn.Linear(4, 3)

    def forward(self, x):
        if self.how == "in place":
            x.sub_(0.5)
        elif self.how == "past autograd":
            x.data.mul_(2)
        elif self.how == "a column":
            x[:, 0] = 1
        elif self.how == "in training" and self.training:
            x.add_(0.1)
        return self.fc(x)


def batch():
    return torch.rand(6, 4) - 0.2, torch.tensor([0, 1, 2, 0, 1, 2])


MODELS = {
    **{how: lambda how=how: Shifts(how) for how in ("in place", "past autograd", "a column", "in training")},
    "inplace=True": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("editing", [None, GMED(alpha=1.0, beta=0.01)], ids=["er", "er+gmed"])
def test_model_modifying_its_input_is_refused(name, editing):
    learner = ER(MODELS[name](), lr=0.1, memory=Reservoir(10), editing=editing)
    (x, y), state = batch(), learner.state_dict()
    given = x.clone()
    with pytest.raises(InputError, match="changes its input in place"):
        learner.observe(x, y)
    assert torch.equal(x, given)
    assert all(torch.equal(value, state[key]) for key, value in learner.state_dict().items())


class Drifts(Shifts):
    """Writes into its input from some batch on."""

    def forward(self, x):
        self.how = "in place" if self.late else "not yet"
        return super().forward(x)


@pytest.mark.parametrize("method", [ER, MIR])
def test_model_modifying_its_input_later_is_refused(method):
    model = Drifts("not yet")
    model.late = False
    learner = method(model, lr=0.1, memory=Reservoir(30))
    learner.observe(*batch())
    model.late = True
    learner.remove_examples(
        where=lambda x, y: y >= 0
    )  # nothing is replayed: the model is given the incoming batch itself
    (x, y), state = batch(), learner.state_dict()
    given = x.clone()
    with pytest.raises(InputError, match="changes its input in place"):
        learner.update(x, y)
    with pytest.raises(InputError, match="changes its input in place"):
        learner.observe(given, y)
    assert all(torch.equal(value, state[key]) for key, value in learner.state_dict().items())


@pytest.mark.parametrize("name", ["in place", "past autograd", "a column", "inplace=True"])
def test_predicting_with_a_model_modifying_its_input_is_refused(name):
    x, _ = batch()
    given = x.clone()
    with pytest.raises(InputError, match="changes its input in place"):
        FineTune(MODELS[name](), lr=0.1).predict(x)
    assert torch.equal(x, given)


def test_inplace_layers_inside_the_model_are_accepted():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    ER(model, lr=0.1, memory=Reservoir(10), editing=GMED(alpha=1.0, beta=0.01)).observe(*batch())


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_changing_a_batch_after_observe_has_no_effect(kind):
    learner = ER(nn.Linear(4, 3), lr=0.1, memory=Reservoir(10), editing=OptimalEdit(alpha=0.1))
    x, y = (kind(part) for part in batch())
    learner.observe(x, y)
    state = learner.state_dict()
    x[:], y[:] = 7, 0
    assert "own.history.x" in state
    assert all(torch.equal(value, state[key]) for key, value in learner.state_dict().items())


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_dataframes_are_read_or_refused_with_a_reason(frame):
    x, y = batch()
    columns = {f"f{number}": x[:, number].numpy() for number in range(4)}
    series = pd.Series if frame is pd.DataFrame else pl.Series
    learner = FineTune(nn.Linear(4, 3), lr=0.1)
    learner.observe(frame(columns), series(y.tolist()))
    assert learner.steps == 1
    with pytest.raises(InputError, match="x cannot be read as a tensor"):
        learner.observe(frame({**columns, "f3": list("abcdef")}), series(y.tolist()))
    with pytest.raises(InputError, match="y cannot be read as a tensor"):
        learner.observe(frame(columns), series(list("abcdef")))


@pytest.mark.parametrize(
    "change",
    [
        {"x_mem": torch.rand(6, 5)},
        {"x_stream": torch.rand(6, 3)},
        {"y_mem": torch.tensor([0, 1, 2, 0, 1, 9])},
        {"y_stream": torch.tensor([0, 1, 2, 0, 1, -5])},
        {"y_mem": torch.rand(6)},
        {"x_mem": torch.rand(6, 4).double()},
        {"edit_count": [0, 1]},
        {"loss": lambda output, y: output},
        {"loss": lambda output, y: 1.0},
    ],
)
def test_edit_examples_names_unusable_input(change):
    (x, y), (x_new, y_new) = batch(), batch()
    given = {"x_mem": x, "y_mem": y, "x_stream": x_new, "y_stream": y_new, **change}
    with pytest.raises(InputError, match=r"x_mem|edit_count"):
        gmed.edit_examples(nn.Linear(4, 3), lr=0.1, alpha=1.0, beta=0.01, **given)


@pytest.mark.parametrize("name", MODELS)
def test_edit_does_not_modify_the_callers_examples(name):
    (x, y), (x_new, y_new) = batch(), batch()
    given = x.clone(), x_new.clone()
    model = MODELS[name]()
    with pytest.raises(InputError, match=r"in.place"):
        gmed.edit_examples(model, x, y, x_new, y_new, lr=0.1, alpha=1.0, beta=0.01)
    assert torch.equal(x, given[0])
    assert torch.equal(x_new, given[1])
