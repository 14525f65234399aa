"""Streams: split, permuted, rotated, i.i.d. and fuzzy."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from gmed.streams import Stream, fuzzy, iid, permuted, rotated, split, to_float
from gmed.streams.rotated import rotate
from gmed.streams.variants import systematic_sample


def same(a: Stream, b: Stream) -> bool:
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y)


STREAMS = pytest.mark.parametrize(
    ("make", "tasks"),
    [
        (lambda d, s: split(d, s, per_task=20), 5),
        (lambda d, s: permuted(d, s, per_task=30), 10),
        (lambda d, s: rotated(d, s, tasks=6, per_task=15, test_per_task=10), 6),
    ],
    ids=["split", "permuted", "rotated"],
)


@STREAMS
def test_stream_depends_only_on_its_seed(make, tasks, tiny):
    assert same(make(tiny, 3), make(tiny, 3))
    assert not same(make(tiny, 3), make(tiny, 4))
    stream = make(tiny, 3)
    assert len(stream.tests) == len(stream.eval_points) == tasks
    assert stream.eval_points[-1] == len(stream)
    assert to_float(stream.x).min() >= 0
    assert to_float(stream.x).max() <= 1


def test_split_tasks_are_pairs_in_order(tiny):
    stream = split(tiny, 0, per_task=20)
    for t, labels in enumerate(stream.y.reshape(5, 20)):
        assert set(labels.tolist()) == {2 * t, 2 * t + 1}
        assert set(stream.tests[t].y.tolist()) == {2 * t, 2 * t + 1}
        assert len(stream.tests[t].y) == 24
    assert sorted(stream.y.tolist()) != stream.y.tolist()  # shuffled within a task


def test_split_full_takes_every_example_once(tiny):
    stream = split(tiny, 0, per_task=None)
    assert len(stream) == 300
    assert len({bytes(x.numpy()) for x in stream.x}) == 300
    assert len(split(tiny, 0, per_task=10**6)) == 300


def test_permuted_tasks_show_the_same_images_rearranged(tiny):
    stream = permuted(tiny, 0, per_task=30)
    first = stream.x[:30].flatten(1)
    train = {bytes(x) for x in tiny.x_train}
    assert all(bytes(x.numpy()) in train for x in stream.x[:30])  # the first task is the identity
    assert torch.equal(stream.tests[0].x, torch.tensor(tiny.x_test))
    for t in range(1, 10):
        task = stream.x[30 * t : 30 * (t + 1)].flatten(1)
        assert sorted(map(tuple, task.sort(1).values.tolist())) == sorted(map(tuple, first.sort(1).values.tolist()))
        moved = stream.tests[t].x.flatten(1)
        places = [(moved[:, i : i + 1] == stream.tests[0].x.flatten(1)).all(0).nonzero().item() for i in range(16)]
        assert sorted(places) == list(range(16))  # one permutation for the whole task
        assert places != list(range(16))


def test_rotation_angles_and_values(tiny):
    image = np.zeros((1, 1, 9, 9), np.uint8)
    image[0, 0, 4, 7] = 255  # a point to the right of the centre
    quarter = rotate(image, 90.0)[0, 0]
    assert quarter[1, 4] == pytest.approx(1.0, abs=1e-4)  # counter-clockwise: it is now above
    expected = ndimage.rotate(image[0, 0] / 255, 33.0, reshape=False, order=3, mode="constant")
    np.testing.assert_allclose(rotate(image, 33.0)[0, 0], expected.clip(0, 1), atol=1e-5)


@pytest.mark.parametrize("angle", [0.0, 12.3, 45.0, 90.0, 101.7, 179.9])
def test_rotation_is_that_of_scipy(angle):
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 28, 31)).astype(np.uint8)
    expected = ndimage.rotate(images / np.float32(255), angle, axes=(3, 2), reshape=False, order=3, mode="constant")
    np.testing.assert_allclose(rotate(images, angle), expected.clip(0, 1), atol=1e-6)


def test_a_half_turn_keeps_the_edges():
    images = np.random.default_rng(0).integers(0, 256, (2, 1, 28, 28)).astype(np.uint8)
    np.testing.assert_allclose(rotate(images, 180.0), images[:, :, ::-1, ::-1] / 255, atol=1e-6)


def test_rotation_angles_lie_in_their_share_of_180_degrees(tiny, monkeypatch):
    angles = []
    module = sys.modules[rotated.__module__]
    monkeypatch.setattr(module, "rotate", lambda x, a: angles.append(a) or torch.zeros(len(x), 1, 4, 4))
    rotated(tiny, 5, tasks=20, per_task=5, test_per_task=5)
    for t in range(20):
        assert angles[2 * t] == angles[2 * t + 1]  # train and test alike
        assert 9 * t <= angles[2 * t] < 9 * (t + 1)


@given(st.integers(1, 4), st.integers(0, 100))
def test_iid_shows_every_example_once_a_pass(passes, seed):
    stream = Stream(torch.arange(12.0)[:, None], torch.arange(12), (), (5, 12), 12)
    shuffled = iid(stream, seed, passes=passes)
    assert len(shuffled) == 12 * passes
    for one_pass in shuffled.y.reshape(passes, 12):
        assert sorted(one_pass.tolist()) == list(range(12))
    assert torch.equal(shuffled.x[:, 0].long(), shuffled.y)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 12))
def test_batches_cover_the_stream_and_never_cross_a_point_of_evaluation(lengths, size):
    points = tuple(np.cumsum(lengths).tolist())
    total = points[-1]
    stream = Stream(torch.arange(float(total))[:, None], torch.arange(total), (), points, total)
    task_batches = [list(stretch) for stretch in stream.task_batches(size)]
    assert [sum(len(y) for _, y in s) for s in task_batches] == lengths
    assert torch.cat([y for s in task_batches for _, y in s]).tolist() == list(range(total))
    assert all(len(y) <= size for s in task_batches for _, y in s)


def tasks_of(lengths):
    """A stream whose examples know their place and whose labels are their task."""
    points = tuple(np.cumsum(lengths).tolist())
    task = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return Stream(torch.arange(float(points[-1]))[:, None], task, (), points, len(lengths))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 1000))
def test_a_fuzzy_stream_shows_every_example_once_and_no_task_early(lengths, seed):
    sharp = tasks_of(lengths)
    mixed = fuzzy(sharp, seed)
    assert sorted(mixed.x[:, 0].tolist()) == sharp.x[:, 0].tolist()
    assert torch.equal(sharp.y[mixed.x[:, 0].long()], mixed.y)  # labels stay with their examples
    assert mixed.eval_points == sharp.eval_points
    starts = [0, *sharp.eval_points]
    for task, (start, length) in enumerate(zip(starts, lengths, strict=False)):
        middle = start + length // 2
        assert (mixed.y[:middle] <= task).all()
        assert (mixed.y[middle:] >= task).all()
    assert set(mixed.y[: lengths[0] // 2].tolist()) <= {0}
    assert set(mixed.y[starts[-2] + lengths[-1] // 2 :].tolist()) == {len(lengths) - 1}


def test_the_share_of_the_next_task_is_a_straight_line():
    """From 0 in the middle of a task over 1/2 at the boundary to 1 in the middle of the next, at every place."""
    seeds, length = 3000, 80
    sharp = tasks_of([length] * 3)
    share = sum(fuzzy(sharp, seed).y.numpy() for seed in range(seeds)) / seeds
    half = length // 2
    expected = np.zeros(3 * length)
    for task in (0, 1):
        ramp = (np.arange(length) + 0.5) / length
        expected[task * length + half : (task + 1) * length + half] = task + ramp
    expected[2 * length + half :] = 2
    error = np.sqrt(0.25 / seeds)
    assert np.abs(share - expected).max() < 5 * error


@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=30), st.integers(0, 10), st.integers(0, 100))
def test_fixed_size_samples_are_without_replacement(weights, size, seed):
    weights = np.array(weights)
    size = min(size, int(weights.sum() / weights.max()))  # no place more likely than certain
    chosen = systematic_sample(weights, size, np.random.default_rng(seed))
    assert len(set(chosen.tolist())) == len(chosen) == size
