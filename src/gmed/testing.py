"""Checks of the properties that every method must have, for authors of methods.

Each takes the name of a method (``"er+my-edit(strength=2)"``) and raises ``AssertionError`` if the check fails. They
use small random images and double precision, and take a second or two. They do not measure how well a method learns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gmed.engine import get_benchmark, resolve
from gmed.engine.batched import BatchedTrainer
from gmed.errors import DivergedError
from gmed.learners import Learner
from gmed.memory.base import STATE_NAMES
from gmed.streams import Stream

CAPACITY = 40
"""Memory capacity, unless the method sets its own."""

Batch = tuple[Tensor, Tensor, int]
"""Examples, labels, and the number of the task."""


def check_method(text: str) -> None:
    """Run all checks on a method.

    >>> check_method("er+gmed")
    """
    for check in CHECKS:
        check(text)


def make(text: str, seed: int = 0) -> Learner:
    """Create a small learner of this method."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 4)).double()
    return resolve(get_benchmark("split-mnist"), text, memory=CAPACITY).make_learner(model, seed)


def stream(steps: int, sizes: Sequence[int] = (10,), seed: int = 0) -> Iterator[Batch]:
    """Yield batches of random images of two classes, then of two others."""
    g = torch.Generator().manual_seed(seed)
    for step in range(steps):
        task = 0 if step < steps // 2 else 1
        n = sizes[step % len(sizes)]
        y = torch.randint(2, (n,), generator=g) + 2 * task
        x = torch.rand(n, 1, 6, 6, generator=g, dtype=torch.float64)
        x[torch.arange(n), 0, y, y] += 1
        yield x, y, task


def learn(learner: Learner, batches: Iterable[Batch]) -> Learner:
    """Learn from all batches; the task is passed to learners that declare ``task_aware``."""
    for x, y, task in batches:
        learner.observe(x, y, *((task,) if learner.task_aware else ()))
    return learner


def check_deterministic(text: str) -> None:
    """Check that only the seed determines the result, and with a memory that another seed changes it."""
    first, second = make(text), make(text)
    for global_seed, learner in enumerate((first, second)):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)
        random.seed(global_seed)
        learn(learner, stream(12))
    _require_equal(text, "two learners with the same seed", first.state_dict(), second.state_dict())
    if first.memory is not None:
        other = learn(make(text, seed=1), stream(12)).state_dict()
        differs = any(not torch.equal(other[name], t) for name, t in first.state_dict().items())
        _require(
            differs, f"{text}: seeds 0 and 1 give the same result; draw from self.random(purpose) or context.random()"
        )


def check_save_load(text: str) -> None:
    """Check that a learner continues exactly after it was saved and loaded into a new learner of the same kind."""
    batches = list(stream(16))
    saved, resumed = learn(make(text), batches[:9]), make(text, seed=5)
    with TemporaryDirectory() as folder:
        saved.save(Path(folder) / "state")
        resumed.load(Path(folder) / "state")
    after = (learn(learner, batches[9:]).state_dict() for learner in (saved, resumed))
    _require_equal(text, "a learner, and one that was saved and loaded (is everything in get_extra_state?)", *after)


def check_memory_bounded(text: str) -> None:
    """Check that the state stays finite and the memory bounded over batches of odd sizes, and that predictions work."""
    learner = learn(make(text), stream(60, sizes=(10, 1, 7, 23)))
    for name, t in learner.state_dict().items():
        _require(bool(torch.isfinite(t).all()), f"{text}: {name} contains NaN or infinity after 60 steps")
    check_memory_consistent(text, learner)
    predictions = learner.predict(next(stream(1))[0])
    shape = tuple(predictions.shape)
    _require(shape == (10,), f"{text}: predictions for 10 examples have shape {shape}, not (10,)")


def check_memory_consistent(text: str, learner: Learner) -> None:
    """Check that a memory stores the number of examples it reports, in the slots it reports, and none twice."""
    if (memory := learner.memory) is not None:
        within = len(memory) <= memory.capacity == len(memory.x)
        _require(
            within, f"{text}: {len(memory)} examples are stored in {len(memory.x)} slots, capacity is {memory.capacity}"
        )
        stored = memory.stream_index.cpu()[torch.from_numpy(memory.occupied())]
        valid = len(set(stored.tolist())) == len(stored) and bool((stored >= 0).all())
        _require(valid, f"{text}: memory.occupied() includes empty slots, or an example is stored twice")


def check_task_ids(text: str) -> None:
    """Check that ``observe`` takes a task id if the method declares ``task_aware``, and only then."""
    learner = make(text)
    x, y, task = next(stream(1))
    wrong = (x, y) if learner.task_aware else (x, y, task)
    _require_raises(
        lambda: learner.observe(*wrong), TypeError, f"{text}: observe accepts a call that contradicts task_aware"
    )


def check_invalid_batch_is_noop(text: str) -> None:
    """Check that a batch with NaN is refused and changes nothing."""
    learner = learn(make(text), stream(8))
    before = learner.state_dict()
    x, y, task = next(stream(1))
    x[2, 0, 0, 0] = float("nan")
    _require_raises(lambda: learn(learner, [(x, y, task)]), ValueError, f"{text}: a batch with NaN was not refused")
    _require_equal(text, "a learner before and after a batch that it refused", before, learner.state_dict())


def check_divergence_is_noop(text: str) -> None:
    """Check that a loss that is not finite raises an error and that the step is undone."""
    batches = list(stream(12))
    learner = learn(make(text), batches[:6])  # the next batch begins another task
    with torch.no_grad():
        for p in learner.model.parameters():
            p.fill_(1e308)
    before = learner.state_dict()
    _require_raises(
        lambda: learn(learner, batches[6:7]), DivergedError, f"{text}: a step was taken although its loss is infinite"
    )
    _require_equal(text, "a learner before and after a step that diverged", before, learner.state_dict())


def check_edit_changes_memory(text: str) -> None:
    """Check that an edit changes stored examples, but not which ones are stored if their values do not decide that."""
    method = resolve(get_benchmark("split-mnist"), text, memory=CAPACITY)
    if method.edit is None or method.baseline_name is None:
        return
    plain, edited = (learn(make(name), stream(20)).memory for name in (method.baseline_name, method.name))
    assert plain is not None and edited is not None
    if make(text).editing.write_back:  # type: ignore[attr-defined]
        _require(not torch.equal(plain.x, edited.x), f"{text}: no stored example was edited in 20 steps")
    if edited.capturable:
        _require(
            torch.equal(plain.stream_index, edited.stream_index), f"{text}: the edit changes which examples are stored"
        )


def check_capturable(text: str) -> None:
    """Check that a method declared capturable computes the same steps with draws made ahead, as on a GPU."""
    if not make(text).is_capturable():
        return
    eager, batched = make(text), make(text)
    batches = list(stream(40))
    x, y = (torch.cat(parts) for parts in zip(*((x, y) for x, y, _ in batches), strict=True))
    trainer = BatchedTrainer([batched], [Stream(x, y, (), (len(y),), 4)], 10, rows=5)
    start = 0
    for task, task_batches in groupby(batches, key=lambda batch: batch[2]):
        stop = start + sum(len(labels) for _, labels, _ in task_batches)
        for _ in trainer.train(start, stop, *([task] if batched.task_aware else [])):
            pass
        start = stop
    learn(eager, batches)
    _require_equal(text, "eager steps and steps with draws made ahead", eager.state_dict(), batched.state_dict())


def check_example_removal(text: str) -> None:
    """Check that removal deletes examples from memory, changes nothing else, and that learning continues after it."""
    learner = learn(make(text), stream(20))
    memory = learner.memory
    if memory is None or getattr(getattr(learner, "editing", None), "needs_history", False):
        return
    before, slots = learner.state_dict(), memory.occupied()
    removed, remaining = slots[::3], np.delete(slots, np.s_[::3])
    count = learner.remove_examples(stream_index=memory.stream_index[torch.from_numpy(removed)].tolist())
    after = learner.state_dict()
    _require(
        count == len(removed) and memory.occupied().tolist() == remaining.tolist(),
        f"{text}: other examples than the requested ones were removed",
    )
    columns = {f"memory.{id_}": column for column, id_ in STATE_NAMES.items()}  # columns saved under another name
    for name in before:
        if memory.has_column(columns.get(name, name.removeprefix("memory."))) and name != "memory.origin":
            expected = before[name].clone()
            expected[torch.from_numpy(removed)] = 0
            _require(torch.equal(expected, after[name]), f"{text}: {name} still contains removed examples")
        elif name != "memory.origin":
            _require(torch.equal(before[name], after[name]), f"{text}: removing examples changes {name}")
    copy, batches = make(text, seed=5), list(stream(20, seed=1))
    copy.load_state_dict(after)
    states = [learn(each, batches[10:]).state_dict() for each in (learner, copy)]
    _require_equal(text, "a learner with removed examples and its copy", *states)
    learner.remove_examples(where=lambda x, y: y >= 0)
    _require(len(memory) == 0, f"{text}: the memory is not empty after all examples were removed")
    check_memory_consistent(text, learn(learner, batches[10:]))


CHECKS: tuple[Callable[[str], None], ...] = (
    check_deterministic,
    check_save_load,
    check_memory_bounded,
    check_task_ids,
    check_invalid_batch_is_noop,
    check_divergence_is_noop,
    check_edit_changes_memory,
    check_capturable,
    check_example_removal,
)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _require_raises(call: Callable[[], Any], expected: type[Exception], message: str) -> None:
    try:
        call()
    except expected:
        return
    raise AssertionError(message)


def _require_equal(text: str, compared: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    different = sorted(a.keys() ^ b.keys()) or [name for name in a if not torch.equal(a[name], b[name])]
    _require(not different, f"{text}: {compared} differ in {', '.join(different[:3])}")
