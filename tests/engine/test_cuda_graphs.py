"""CUDA graphs of repeated steps equal the plain loop, including random noise."""

import pytest
import torch

import gmed
from gmed.kernels import cuda_graphs
from gmed.models import PassCounter


def test_rows_are_processed_in_order():
    seen = []
    cuda_graphs.replay_steps(lambda row: seen.append(row.tolist()), torch.arange(10).reshape(5, 2))
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 4, 50])
def test_graph_replay_draws_the_noise_of_the_loop(rows, monkeypatch):
    def walked(warm_up):
        monkeypatch.setattr(cuda_graphs, "WARM_UP", warm_up)
        place = torch.zeros(7, device="cuda")
        torch.manual_seed(3)

        def step(row):
            place.mul_(0.9).add_(torch.randn(7, device="cuda")).add_(row.sum())

        cuda_graphs.replay_steps(step, torch.arange(2.0 * rows, device="cuda").reshape(rows, 2))
        return place

    assert torch.equal(walked(cuda_graphs.WARM_UP), walked(rows))


@pytest.mark.gpu
@pytest.mark.parametrize("model", [gmed.models.MLP, gmed.models.ResNet18])
def test_expert_trained_by_a_graph_equals_the_loop(model, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    x = torch.rand(40, *((1, 28, 28) if model is gmed.models.MLP else (3, 32, 32)), device="cuda")
    y = torch.arange(40, device="cuda") % 4

    def made(warm_up):
        monkeypatch.setattr(cuda_graphs, "WARM_UP", warm_up)
        learner = gmed.learners.CNDPM(model().cuda(), stm_capacity=20, generator_steps=12, classifier_steps=12)
        learner.passes = PassCounter()
        for at in range(0, 40, 10):
            learner.observe(x[at : at + 10], y[at : at + 10])
        return learner.state_dict(), learner.passes

    (graph, passes), (loop, passes_of_loop) = made(cuda_graphs.WARM_UP), made(12)
    assert graph.keys() == loop.keys()
    assert all(torch.equal(graph[name], loop[name]) for name in graph)
    assert passes == passes_of_loop
