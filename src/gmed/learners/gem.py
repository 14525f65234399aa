"""Gradient episodic memory (Lopez-Paz and Ranzato, 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gmed.errors import DivergedError, UsageError, check_float
from gmed.learners.base import TaskAware
from gmed.learners.replay import EditedReplayOptions, Replay
from gmed.memory import TaskRing
from gmed.models import gradient
from gmed.registry import register


@register("gem", memory=TaskRing, summary="task-aware: projects gradients to protect earlier tasks")
class GEM(Replay, TaskAware):
    """Gradient episodic memory (task-aware), and with ``editing`` Algorithm 4 of the paper (GEM+GMED).

    A step that would increase the loss of the stored examples of an earlier task is replaced by the nearest step
    that does not.

    Parameters
    ----------
    model
        As in :class:`~gmed.learners.replay.Replay`; ``replay_size`` examples are edited per step, independently of
        the constraints, which are computed on the whole memory afterwards.
    memory_strength
        How far each constraint is pushed beyond zero once one is violated.
    **replay
        All other options of :class:`~gmed.learners.replay.Replay` except ``retrieval``; the memory must be a
        :class:`~gmed.memory.TaskRing`.

    References
    ----------
    Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
    """

    id = "GEM"
    memory: TaskRing

    def __init__(
        self, model: nn.Module, *, memory_strength: float = 0.5, **replay: Unpack[EditedReplayOptions]
    ) -> None:
        if not isinstance(replay.get("memory"), TaskRing):
            raise UsageError(f"GEM needs a TaskRing memory, not {replay.get('memory')!r}")
        super().__init__(model, **replay)
        if check_float("memory_strength", memory_strength) < 0:
            raise UsageError(f"memory_strength must not be negative, not {memory_strength!r}")
        self.memory_strength = memory_strength

    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        self.memory.set_task(task)
        ahead = self.look_ahead(x, y)
        self.write_back(self.edit(self.sample("edited"), ahead))

        parameters = self.model_info.parameters
        loss = self.loss(self._stream_batch(x, y, self.model(x)), None)
        g = _flat(gradient(loss, parameters))
        slots = [torch.from_numpy(self.memory.task_slots(earlier)).to(y.device) for earlier in range(task)]
        constraints = [self.look_ahead(self.memory.x[k], self.memory.y[k]).stream_gradient for k in slots if len(k)]
        if constraints:
            G = torch.stack([_flat(g_k) for g_k in constraints])
            if bool((G @ g < 0).any()):
                g = g + G.T @ torch.as_tensor(dual(G, g, self.memory_strength)).to(g)
        self.apply_gradients(_unflat(g, parameters), loss)
        self.update_memory(x, y)


def dual(G: Tensor, g: Tensor, margin: float) -> NDArray[np.float64]:
    """Return v of the projected gradient g + Gᵀv: it minimizes ½ vᵀGGᵀv + gᵀGᵀv subject to v >= margin.

    With v = u + margin this is non-negative least squares in u, ½ |Lᵀu + L⁻¹(Gg + GGᵀ margin)|² with GGᵀ = LLᵀ.

    >>> G, g = torch.tensor([[1.0, 0.0]]), torch.tensor([-2.0, 1.0])
    >>> [round(value, 2) + 0.0 for value in (g + G.T @ torch.as_tensor(dual(G, g, 0.0)).float()).tolist()]
    [0.0, 1.0]
    """
    G = G.double()
    P = (G @ G.T).cpu().numpy()
    P += 1e-3 * np.eye(len(P))  # keeps parallel constraints solvable, as in the authors' code
    q = (G @ g.double()).cpu().numpy() + P @ np.full(len(P), margin)
    try:
        L = np.linalg.cholesky(P)
    except np.linalg.LinAlgError:
        raise DivergedError("the gradients of the stored examples are too large to project on; lower lr") from None
    u, _ = scipy.optimize.nnls(L.T, -np.linalg.solve(L, q))
    return np.asarray(u) + margin


def _flat(grads: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in grads.values()])


def _unflat(g: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    pieces = g.split([p.numel() for p in parameters.values()])  # type: ignore[no-untyped-call]
    return {name: piece.view_as(p) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}
