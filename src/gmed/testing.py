"""What every method owes its users, as checks that its author can run.

Each takes a method as it is written (``"er+my-edit(strength=2)"``) and raises ``AssertionError`` where it falls short.
They are made on small random images, in double precision and in a second or two; what is good about a method is not
among them.
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

ROOM = 40
"""Slots of memory, unless the method says otherwise."""

Batch = tuple[Tensor, Tensor, int]
"""Examples, labels, and the number of the task."""


def check_method(text: str) -> None:
    """Check everything that every method promises.

    >>> check_method("er+gmed")
    """
    for check in CHECKS:
        check(text)


def make(text: str, seed: int = 0) -> Learner:
    """A small learner of this method."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 4)).double()
    return resolve(get_benchmark("split-mnist"), text, memory=ROOM).make_learner(model, seed)


def stream(steps: int, sizes: Sequence[int] = (10,), seed: int = 0) -> Iterator[Batch]:
    """Two classes at a time."""
    g = torch.Generator().manual_seed(seed)
    for t in range(steps):
        task = 0 if t < steps // 2 else 1
        n = sizes[t % len(sizes)]
        y = torch.randint(2, (n,), generator=g) + 2 * task
        x = torch.rand(n, 1, 6, 6, generator=g, dtype=torch.float64)
        x[torch.arange(n), 0, y, y] += 1
        yield x, y, task


def learn(learner: Learner, batches: Iterable[Batch]) -> Learner:
    """Learn from all of them; the task is told to those who declare it."""
    for x, y, task in batches:
        learner.observe(x, y, *((task,) if learner.task_aware else ()))
    return learner


def check_deterministic(text: str) -> None:
    """Whatever else draws random numbers in the process; and where there is a memory, another seed is another."""
    first, again = make(text), make(text)
    for number, learner in enumerate((first, again)):
        torch.manual_seed(number)
        np.random.seed(number)
        random.seed(number)
        learn(learner, stream(12))
    _same(text, "two learners with one seed", first.state_dict(), again.state_dict())
    if first.memory is not None:
        other = learn(make(text, seed=1), stream(12)).state_dict()
        apart = any(not torch.equal(other[name], t) for name, t in first.state_dict().items())
        _require(apart, f"{text}: seeds 0 and 1 come out alike; draw from self.random(purpose) or context.random()")


def check_save_load(text: str) -> None:
    """Saved and loaded into a learner built alike."""
    batches = list(stream(16))
    whole, resumed = learn(make(text), batches[:9]), make(text, seed=5)
    with TemporaryDirectory() as folder:
        whole.save(Path(folder) / "state")
        resumed.load(Path(folder) / "state")
    after = (learn(learner, batches[9:]).state_dict() for learner in (whole, resumed))
    _same(text, "a learner, and one that was saved and loaded (is everything in get_extra_state?)", *after)


def check_memory_bounded(text: str) -> None:
    """Over a stream of odd batches, after which the learner predicts."""
    learner = learn(make(text), stream(60, sizes=(10, 1, 7, 23)))
    for name, t in learner.state_dict().items():
        _require(bool(torch.isfinite(t).all()), f"{text}: {name} holds NaN or infinity after 60 steps")
    check_memory_consistent(text, learner)
    predicted = learner.predict(next(stream(1))[0])
    _require(predicted.shape == (10,), f"{text}: predictions for 10 examples have the shape {tuple(predicted.shape)}")


def check_memory_consistent(text: str, learner: Learner) -> None:
    """It holds as many examples as it says, where it says, none twice."""
    if (memory := learner.memory) is not None:
        within = len(memory) <= memory.capacity == len(memory.x)
        _require(
            within, f"{text}: {len(memory)} examples are stored in {len(memory.x)} slots, {memory.capacity} asked for"
        )
        stored = memory.stream_index.cpu()[torch.from_numpy(memory.occupied())]
        sound = len(set(stored.tolist())) == len(stored) and bool((stored >= 0).all())
        _require(sound, f"{text}: memory.occupied() names slots without an example, or an example is stored twice")


def check_task_ids(text: str) -> None:
    """And nowhere else."""
    learner = make(text)
    x, y, task = next(stream(1))
    wrong = (x, y) if learner.task_aware else (x, y, task)
    _raises(lambda: learner.observe(*wrong), TypeError, f"{text}: observe takes what task_aware does not declare")


def check_invalid_batch_is_noop(text: str) -> None:
    """One that holds NaN."""
    learner = learn(make(text), stream(8))
    before = learner.state_dict()
    x, y, task = next(stream(1))
    x[2, 0, 0, 0] = float("nan")
    _raises(lambda: learn(learner, [(x, y, task)]), ValueError, f"{text}: a batch with NaN is learned from")
    _same(text, "a learner before and after a batch that it refused", before, learner.state_dict())


def check_divergence_is_noop(text: str) -> None:
    """A loss that is not finite is said, and no trace of the step is left."""
    batches = list(stream(12))
    learner = learn(make(text), batches[:6])  # the next batch begins another task
    with torch.no_grad():
        for p in learner.model.parameters():
            p.fill_(1e308)
    before = learner.state_dict()
    _raises(lambda: learn(learner, batches[6:7]), DivergedError, f"{text}: a step is taken though its loss is infinite")
    _same(text, "a learner before and after a step that could not be taken", before, learner.state_dict())


def check_edit_changes_memory(text: str) -> None:
    """And where who is stored depends on counters and chance alone, nothing about that."""
    method = resolve(get_benchmark("split-mnist"), text, memory=ROOM)
    if method.edit is None or method.baseline_name is None:
        return
    plain, edited = (learn(make(name), stream(20)).memory for name in (method.baseline_name, method.name))
    assert plain is not None and edited is not None
    if make(text).editing.write_back:  # type: ignore[attr-defined]
        _require(not torch.equal(plain.x, edited.x), f"{text}: after 20 steps no stored example has been edited")
    if edited.capturable:
        _require(
            torch.equal(plain.stream_index, edited.stream_index), f"{text}: with the edit, other examples are stored"
        )


def check_capturable(text: str) -> None:
    """Of a method that declares itself capturable, as is needed on a GPU."""
    if not make(text).is_capturable():
        return
    alone, ahead = make(text), make(text)
    batches = list(stream(40))
    x, y = (torch.cat(parts) for parts in zip(*((x, y) for x, y, _ in batches), strict=True))
    group = BatchedTrainer([ahead], [Stream(x, y, (), (len(y),), 4)], 10, rows=5)
    at = 0
    for task, part in groupby(batches, key=lambda batch: batch[2]):
        stop = at + sum(len(labels) for _, labels, _ in part)
        for _ in group.train(at, stop, *([task] if ahead.task_aware else [])):
            pass
        at = stop
    _same(text, "steps one by one and steps decided ahead", learn(alone, batches).state_dict(), ahead.state_dict())


def check_example_removal(text: str) -> None:
    """All trace of them in memory is gone, nothing else is changed, and the learner goes on: also with none left."""
    learner = learn(make(text), stream(20))
    memory = learner.memory
    if memory is None or getattr(getattr(learner, "editing", None), "needs_history", False):
        return
    before, slots = learner.state_dict(), memory.occupied()
    gone, stays = slots[::3], np.delete(slots, np.s_[::3])
    count = learner.remove_examples(stream_index=memory.stream_index[torch.from_numpy(gone)].tolist())
    after = learner.state_dict()
    _require(
        count == len(gone) and memory.occupied().tolist() == stays.tolist(), f"{text}: others than asked for are gone"
    )
    columns = {f"memory.{saved}": column for column, saved in STATE_NAMES.items()}
    for name in before:
        if memory.has_column(columns.get(name, name.removeprefix("memory."))) and name != "memory.origin":
            left = before[name].clone()
            left[torch.from_numpy(gone)] = 0
            _require(torch.equal(left, after[name]), f"{text}: {name} does not show that examples were removed")
        elif name != "memory.origin":
            _require(torch.equal(before[name], after[name]), f"{text}: forgetting changes {name}")
    copy, batches = make(text, seed=5), list(stream(20, seed=1))
    copy.load_state_dict(after)
    states = [learn(one, batches[10:]).state_dict() for one in (learner, copy)]
    _same(text, "a learner that has forgotten, and its copy", *states)
    learner.remove_examples(where=lambda x, y: y >= 0)
    _require(len(memory) == 0, f"{text}: something is left after all was forgotten")
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


def _require(kept: bool, complaint: str) -> None:
    if not kept:
        raise AssertionError(complaint)


def _raises(call: Callable[[], Any], wanted: type[Exception], complaint: str) -> None:
    try:
        call()
    except wanted:
        return
    raise AssertionError(complaint)


def _same(text: str, who: str, left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    apart = sorted(left.keys() ^ right.keys()) or [k for k in left if not torch.equal(left[k], right[k])]
    _require(not apart, f"{text}: {who} differ in {', '.join(apart[:3])}")
