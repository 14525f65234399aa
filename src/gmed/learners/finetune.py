"""Plain SGD on the stream, and on the shuffled stream as an upper bound."""

from __future__ import annotations

from torch import Tensor

from gmed.learners.base import Learner
from gmed.registry import register
from gmed.streams import iid


@register("finetune", summary="SGD on the stream alone")
class FineTune(Learner):
    """Plain SGD on the incoming batches, without memory: the lower bound, and on a shuffled stream the iid baseline.

    Parameters
    ----------
    model, lr, seed
        As in :class:`~gmed.learners.Learner`.

    Examples
    --------
    >>> import torch, gmed
    >>> learner = gmed.learners.FineTune(gmed.models.MLP(), lr=0.05)
    >>> learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10))
    >>> learner.predict(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3])
    """

    id = "FineTune"
    capturable = True
    updates_per_batch: int = 1

    def step(self, x: Tensor, y: Tensor) -> None:
        for _ in range(self.updates_per_batch):
            self.sgd_step(self.look_ahead(x, y))


ONE_PASS = "SGD on the shuffled stream, one pass"
PASSES = "SGD on the shuffled stream, several passes"

register("iid-online", summary=ONE_PASS, order=iid)(FineTune)
register("iid-offline", summary=PASSES, order=iid, defaults={"passes": 5})(FineTune)
