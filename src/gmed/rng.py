"""Random numbers that are planned, not consumed.

Every random number in this package is a function of ``(seed, purpose, step)``: draws for one purpose never shift the
draws for another, so two methods at one seed share weights, data, stream order, reservoir decisions and replay draws,
and a run can resume at any step, given only the step.

Purposes in use: ``weights``, ``data``, ``order``, ``permutation``, ``rotation``, ``replay``, ``reservoir``,
``editing``, ``model`` (dropout inside a model), and the names under which steps request draws (``augmentation``, ...).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from gmed.deprecated import old_names

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


class _SeedKey(ISeedSequence):
    """The key of one seed and purpose, in the form that a bit generator reads fastest."""

    def __init__(self, seed: int, purpose: str) -> None:
        self.words = np.frombuffer(blake2b(f"{int(seed)}/{purpose}".encode(), digest_size=16).digest(), dtype="<u8")

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        return self.words.astype(dtype)


_torch_generators = threading.RLock()  # they are shared by the whole process

_key = lru_cache(maxsize=4096)(_SeedKey)


def make_rng(seed: int, purpose: str, step: int = 0) -> np.random.Generator:
    """Return the generator for one purpose at one step; it is based on a counter (Philox), so any step costs the same.

    >>> int(make_rng(0, "replay", 7).integers(1000)) == int(make_rng(0, "replay", 7).integers(1000))
    True
    >>> int(make_rng(0, "replay", 7).integers(1000)) == int(make_rng(0, "reservoir", 7).integers(1000))
    False
    """
    counter = np.array([0, 0, 0, step], dtype=np.uint64)  # each step has 2^192 blocks of random numbers
    return np.random.Generator(np.random.Philox(_key(seed, purpose), counter=counter))  # type: ignore[arg-type]


@contextmanager
def seeded_torch(seed: int, purpose: str, step: int = 0) -> Iterator[None]:
    """Seed torch's global generators from (seed, purpose, step) inside the block, and restore them afterwards.

    For code that draws from torch's global state: layer initialization and dropout. Threads take turns.
    """
    with _torch_generators, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(make_rng(seed, purpose, step).integers(2**63 - 1)))
        yield
