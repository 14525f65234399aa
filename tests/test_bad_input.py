"""Bad input is refused with an error one can act on, or does what is documented; it never leaves anything damaged.

The tests called ``test_whatever...`` try inputs at random: few here, as many as there is time for in
``benchmarks/fuzz.py``.
"""

import copy
import gzip
import io
import json
import pickle
import shutil
import sqlite3
import tarfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load, save
from torch import nn

import gmed
from gmed.cli.app import main
from gmed.data.cifar import RecordFile, read_records
from gmed.data.download import unpack
from gmed.data.mini_imagenet import read_classes
from gmed.data.mnist import read_idx
from gmed.editing import GMED, AdversarialEdit, OptimalEdit, RandomEdit
from gmed.engine import RunSpec, get_benchmark, resolve
from gmed.engine.checkpoint import Checkpoint, Checkpoints, read_run_name
from gmed.errors import DataError, DivergedError, GmedError, InputError, StoreError, UsageError
from gmed.experiment import Experiment, parse_seeds
from gmed.io.records import decode, encode
from gmed.io.state import read_state, write_state
from gmed.learners import BGD, ER, FineTune
from gmed.memory import GSSGreedy, LossAwareReservoir, Reservoir, TaskRing
from gmed.results import Store
from gmed.streams import Stream, fuzzy, iid, validation_stream
from helpers import fuzzed, random_batch

FILES = Path(__file__).parent / "files"


# ---------------------------------------------------------------------- learners

LEARNERS = [
    "er(memory=20)",
    "mir(memory=20,subsample=15)",
    "er(memory=20)+gmed",
    "mir(memory=20,candidates=15)+gmed(gamma=0.9,extra=3)",
    "finetune",
    "agem(memory=20,ref_batch_size=10)",
    "gem(memory=20)+gmed",
    "gss(memory=20,n_compare=2)",
    "hal(memory=20,memory_epochs=1,anchor_steps=2)",
    "bgd(samples=2)",
    "er-aug(memory=20,rotation=10.0,crop=1)",
    "er-t(memory=20,rotation=10.0)+gmed",
    "er(memory=20,updates_per_batch=2)+random-edit(stride=0.3)",
    "er(memory=20)+adv-edit(stride=0.05)",
    "er(memory=20)+optimal-edit(alpha=0.01,examples=10)",
]
FIRST = LEARNERS[:3]
EVERY = pytest.mark.parametrize("text", LEARNERS)


def net(*norm):
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), *norm, nn.ReLU(), nn.Linear(8, 4))


def make(text, model=None, seed=0):
    return resolve(get_benchmark("split-mnist"), text).make_learner(net() if model is None else model, seed)


def batch(size=10, seed=0):
    return random_batch(size, (1, 3, 3), 4, seed)


def observe(learner, x, y, task=0):
    learner.observe(x, y, *((task,) if learner.task_aware else ()))


def begun(text, steps=3, model=None):
    learner = make(text, model)
    for step in range(steps):
        observe(learner, *batch(seed=step))
    return learner


def unchanged(learner, before):
    after = learner.state_dict()
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def is_finite(learner):
    return all(bool(torch.isfinite(t).all()) for t in learner.state_dict().values())


def refused(learner, x, y, message):
    before = learner.state_dict()
    with pytest.raises(InputError, match=message):
        observe(learner, x, y)
    assert unchanged(learner, before)


X, Y = batch()
MASKED = np.ma.array(X.numpy(), mask=X.numpy() > 0.9)
REFUSED = {
    "words for labels": (X, ["cat", "dog"] * 5, "y cannot be read as a tensor"),
    "an array of words": (X, np.array(["cat"] * 10), "y cannot be read as a tensor"),
    "labels as floats": (X, Y.float(), "integer class labels"),
    "labels as objects": (X, Y.numpy().astype(object), "y cannot be read as a tensor"),
    "inputs as objects": (X.numpy().astype(object), Y, "x cannot be read as a tensor"),
    "labels beyond 64 bits": (X, [2**70] * 10, "y cannot be read as a tensor"),
    "labels of 64 bits without sign": (X, torch.full((10,), 2**63, dtype=torch.uint64), r"must be in 0 \.\. 3"),
    "a ragged list": ([[1.0, 2.0], [1.0]], [0, 1], "x cannot be read as a tensor"),
    "a list in itself": ((lambda own: own.append(own) or own)([]), Y, "x cannot be read as a tensor"),
    "a sparse tensor": (X.to_sparse(), Y, r"x is a torch\.sparse_coo tensor; .*to_dense"),
    "sparse labels": (X, Y.to_sparse(), r"y is a torch\.sparse_coo tensor"),
    "a nested tensor": (torch.nested.nested_tensor([X[0], X[1]]), Y[:2], "x is a nested tensor"),
    "inputs without values": (X.to("meta"), Y, "x is on the meta device"),
    "labels without values": (X, Y.to("meta"), "y is on the meta device"),
    "masked inputs": (MASKED, Y, "x has masked values"),
    "complex inputs": (X.to(torch.complex64), Y, "floating-point values are needed"),
    "bytes": (X.mul(255).to(torch.uint8), Y, r"x\.float\(\) / 255"),
    "too large for the model": (X.double() + 1e300, Y, r"NaN or infinity \(in torch.float32\)"),
    "no examples": (X[:0], Y[:0], "at least one example"),
    "no features": (torch.zeros(10, 1, 0, 3), Y, "shape"),
}


@pytest.mark.parametrize("text", FIRST)
@pytest.mark.parametrize(("x", "y", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_batches_are_refused(text, x, y, message):
    refused(make(text), x, y, message)
    refused(begun(text), x, y, message)


@EVERY
def test_unusual_batches_are_accepted(text):
    """Other types, one class alone, a feature that never changes, one example, inputs with gradients."""
    learner = make(text)
    for x, y in [
        (X.double(), Y),
        (X.half(), Y.to(torch.uint8)),
        (X.numpy().astype(np.float16), Y.numpy().astype(np.uint16)),
        (X.tolist(), Y.tolist()),
        (X, torch.full_like(Y, 2)),
        (torch.cat([torch.full((10, 1, 1, 3), 0.5), X[:, :, 1:]], 2), Y),
        (torch.zeros_like(X), torch.zeros_like(Y)),
        (X[:1], Y[:1]),
        (X.clone().requires_grad_(), Y),
    ]:
        observe(learner, x, y)
        assert is_finite(learner)
    assert learner.steps == 9


@EVERY
@pytest.mark.parametrize("norm", [False, True], ids=["", "batch-norm"])
@pytest.mark.parametrize("size", [1e10, 1e30, 3e38])
def test_huge_inputs_diverge_or_are_learned_from(text, norm, size):
    """Everything stored stays finite, and a step that is not taken leaves no trace."""
    learner = make(text, net(*([nn.BatchNorm1d(8)] if norm else [])))
    for step in range(6):
        x, y = batch(seed=step)
        before = learner.state_dict()
        try:
            observe(learner, x * size if step % 2 else x, y, step // 3)
        except DivergedError:
            assert unchanged(learner, before)
        assert is_finite(learner), step


@pytest.mark.parametrize("text", [text for text in LEARNERS if "memory" in text and not text.startswith("gem")])
def test_a_memory_of_one_example_works(text):
    learner = make(text.replace("memory=20", "memory=1"))
    for step in range(5):
        observe(learner, *batch(seed=step))
    assert len(learner.memory) == 1 and is_finite(learner)


@pytest.mark.parametrize("text", FIRST)
def test_one_example_and_batch_norm(text):
    """Refused where the example would be alone in a pass, and that alone; nothing changes then."""
    learner = make(text, net(nn.BatchNorm1d(8)))
    refused(learner, X[:1], Y[:1], "more than 1 value per channel")
    learner.observe(X, Y)
    before = learner.state_dict()
    try:
        learner.observe(X[:1], Y[:1])
        assert learner.steps == 2
    except InputError as error:
        assert "more than 1 value per channel" in str(error) and unchanged(learner, before)


class Wrong(nn.Module):
    """A model whose logits are changed before it returns them."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change = net(), change

    def forward(self, x):
        return self.change(self.inner(x))


OUTPUTS = {
    "a tuple": (lambda o: (o, o), "logits .*, not tuple"),
    "nothing": (lambda o: None, "logits .*, not NoneType"),
    "a dictionary": (lambda o: {"logits": o}, "logits .*, not dict"),
    "an array": (lambda o: o.detach().numpy(), "logits .*, not ndarray"),
    "three dimensions": (lambda o: o[None], r"logits .*, not one of shape \(1, 1, 4\)"),
    "one dimension": (lambda o: o[:, 0], r"logits .*, not one of shape \(1,\)"),
    "no classes": (lambda o: o[:, :0], r"logits .*, not one of shape \(1, 0\)"),
    "rows twice": (lambda o: torch.cat([o, o]), r"logits .*, not one of shape \(2, 4\)"),
    "one row for all": (lambda o: o.mean(0, keepdim=True), "batch_size"),
    "whole numbers": (lambda o: o.long(), r"logits .*, not torch\.int64"),
    "complex numbers": (lambda o: o.to(torch.complex64), r"logits .*, not torch\.complex64"),
    "a sparse tensor": (lambda o: o.to_sparse(), "logits .*sparse"),
    "another device": (lambda o: o.to("meta"), "logits .*meta"),
    "detached": (lambda o: o.detach(), "does not depend on any trainable parameter"),
}


@pytest.mark.parametrize("text", FIRST)
@pytest.mark.parametrize(("change", "message"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_models_that_return_something_else_are_refused(text, change, message):
    refused(make(text, Wrong(change)), X, Y, message)


def test_predicting_with_invalid_models_or_inputs_is_refused():
    for model, x, message in [
        (Wrong(lambda o: (o, o)), X, "not tuple"),
        (Wrong(lambda o: o.mean(0, keepdim=True)), X, r"shape \(1, 4\)"),
        (net().to("meta"), X, "meta device"),
        (net(), torch.rand(10, 5), "does not accept inputs of shape"),
    ]:
        with pytest.raises(InputError, match=message):
            FineTune(model, lr=0.1).predict(x)


def test_models_without_values_or_anything_to_learn_are_refused():

    with pytest.raises(InputError, match="meta device"):
        make("er", net().to("meta")).observe(X, Y)
    refused(make("er", net().requires_grad_(False)), X, Y, "all parameters of the model are frozen")
    with pytest.raises(UsageError, match="floating-point"):
        FineTune(nn.ParameterList([nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)]), lr=0.1)


class Failing(Reservoir):
    """A memory that takes examples in for a while."""

    def select_slots(self, y, rng, **columns):
        if self.seen >= 30:
            raise RuntimeError("the memory is broken")
        return super().select_slots(y, rng, **columns)


def test_failure_inside_a_step_leaves_memory_and_counters_unchanged():
    learner = ER(net(), lr=0.1, memory=Failing(20), editing=GMED(1.0, 0.1), updates_per_batch=2)
    for step in range(3):
        learner.observe(*batch(seed=step))
    before = learner.state_dict()
    with pytest.raises(RuntimeError, match="broken"):
        learner.observe(X, Y)
    assert unchanged(learner, before)


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None, "1", True, 10**400])
def test_strides_must_be_finite_numbers(value):
    for make_edit in (
        lambda v: GMED(alpha=v, beta=0.1),
        lambda v: GMED(alpha=1.0, beta=v),
        lambda v: GMED(alpha=1.0, beta=0.1, gamma=v),
        RandomEdit,
        AdversarialEdit,
        OptimalEdit,
    ):
        with pytest.raises(UsageError, match="must be a finite number"):
            make_edit(value)


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.0000001, 2])
def test_gamma_out_of_range(gamma):
    with pytest.raises(UsageError, match="gamma"):
        GMED(alpha=1.0, beta=0.1, gamma=gamma)


@pytest.mark.parametrize(
    "editing", [GMED(1e300, 0.1), GMED(1.0, 1e300), RandomEdit(1e300), AdversarialEdit(1e300), OptimalEdit(1e300)]
)
def test_overflowing_strides_leave_examples_unchanged(editing):
    learner, plain = (ER(net(), lr=0.1, memory=Reservoir(20), editing=e) for e in (editing, None))
    for step in range(4):
        learner.observe(*batch(seed=step))
        plain.observe(*batch(seed=step))
    assert torch.equal(learner.memory.x, plain.memory.x)
    assert is_finite(learner)


@pytest.mark.parametrize("capacity", [0, -1, 2.5, None, float("inf")])
def test_every_memory_must_have_a_whole_number_of_slots(capacity):
    for memory in (GSSGreedy, LossAwareReservoir, lambda n: TaskRing(n, tasks=5)):
        with pytest.raises(UsageError, match="memory capacity must be an integer of at least 1"):
            memory(capacity)
    with pytest.raises(UsageError, match="a memory of 4 examples is too small for 5 tasks"):
        TaskRing(4, tasks=5)


@pytest.mark.parametrize("capacity", [10**14, 2**62, 2**63, 10**30])
def test_a_memory_larger_than_the_machine_says_so(capacity):
    learner = ER(net(), lr=0.1, memory=Reservoir(capacity))
    before = learner.state_dict()
    with pytest.raises(UsageError, match=f"a memory of {capacity} examples .* does not fit on cpu"):
        learner.observe(X, Y)
    assert unchanged(learner, before) and not learner.memory.is_allocated


def test_overflowing_learning_rates_are_refused():
    with pytest.raises(UsageError, match="lr must be at most"):
        FineTune(net(), lr=1e300)
    FineTune(net().double(), lr=1e300)


def test_large_seeds_work_and_larger_ones_are_refused(tmp_path):
    states = []
    for seed in (5, 2**32 + 5, 2**63 - 1):
        learner = make("er+gmed", seed=seed)
        observe(learner, X, Y)
        learner.save(tmp_path / "state")
        again = make("er+gmed")
        again.load(tmp_path / "state")
        assert again.seed == seed
        states.append(learner.random("replay").integers(2**62))
    assert len(set(states)) == 3
    for seed in (2**63, 2**64 + 1, 10**40):
        with pytest.raises(UsageError, match=r"below 2\*\*63"):
            FineTune(net(), lr=0.1, seed=seed)
        with pytest.raises(UsageError, match="seeds must be"):
            gmed.run("split-mnist", "er", seeds=[seed], store=None)
    assert parse_seeds(f"{2**32 + 5},{2**63 - 1}") == [2**32 + 5, 2**63 - 1]


@pytest.mark.slow
def test_large_seeds_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["gmed", "run", "split-mnist", "finetune", "--workers", "0", "--device", "cpu", "--store", "r.db"]
    monkeypatch.setattr("sys.argv", [*words, "--seeds", f"{2**32 + 5},", "--json"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert str(2**32 + 5) in capsys.readouterr().out
    with Store("r.db") as store:
        assert [run.seed for run in store.runs()] == [2**32 + 5]
    monkeypatch.setattr("sys.argv", [*words, "--seeds", f"{2**63},"])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "seeds must be" in said and said.count("\n") == 1


@pytest.mark.parametrize("tasks", [(), (0,), (0, 0, 0)])
def test_a_stream_of_no_examples(tasks):
    empty = Stream(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), (), tasks, 1)
    assert [list(batches) for batches in empty.task_batches(10)] == [[]] * len(tasks)
    assert len(fuzzy(empty, 0)) == len(iid(empty, 0, passes=2)) == len(validation_stream(empty, 0)) == 0
    with pytest.raises(UsageError, match="batch_size"):
        list(empty.task_batches(0))


# ---------------------------------------------------------------------- observe, at random

NUMBERS = st.one_of(
    st.floats(-2, 2, width=16),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 1e-45, 1e30, 1e37, -3e38, 65504.0, float("nan"), float("inf"), 1e300]),
)


@st.composite
def inputs(draw):
    """Mostly batches of images that could be learned from, some of them not quite."""
    if draw(st.integers(0, 3)):
        size, numbers = draw(st.integers(0, 6)), draw(st.sampled_from([np.float16, np.float32, np.float64, np.int64]))
        drawn = draw(arrays.arrays(np.float64, (size, 1, 3, 3), elements=NUMBERS, fill=st.just(0.5)))
        with np.errstate(all="ignore"):
            return drawn.astype(numbers)
    kinds = st.one_of(arrays.scalar_dtypes(), arrays.array_dtypes(), arrays.unicode_string_dtypes())
    return draw(arrays.arrays(kinds, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))


@st.composite
def labels(draw, x):
    size = len(x) if getattr(x, "ndim", 0) else 3
    if draw(st.integers(0, 5)):
        kind = draw(arrays.integer_dtypes(endianness="="))
        return draw(arrays.arrays(kind, size, elements=st.integers(0, 3), fill=st.just(1)))
    kinds = st.one_of(arrays.integer_dtypes(), arrays.floating_dtypes(), arrays.boolean_dtypes())
    return draw(arrays.arrays(kinds, st.one_of(st.just(size), arrays.array_shapes(max_dims=2, max_side=6))))


TRIED = {(text, norm): begun(text, 1, net(*norm)) for text in LEARNERS for norm in ((), (nn.BatchNorm1d(8),))}


@pytest.mark.slow
@fuzzed(100)
@given(st.data(), st.sampled_from(list(TRIED)), st.booleans(), st.integers(0, 2))
def test_whatever_is_observed_is_learned_from_or_refused(data, which, first, task):
    """Afterwards everything stored is finite, or else everything is as it was."""
    text, norm = which
    learner = make(text, net(*norm)) if first else copy.deepcopy(TRIED[which])
    for _ in range(3):
        x = data.draw(inputs())
        y = data.draw(labels(x))
        before = learner.state_dict()
        try:
            observe(learner, x, y, task)
        except GmedError as error:
            assert str(error)
            assert unchanged(learner, before)
        assert is_finite(learner)


# ---------------------------------------------------------------------- files, at random


@st.composite
def damaged(draw, sounds):
    """A file with bits flipped, bytes overwritten or an end cut off, or bytes that were never such a file."""
    raw = bytearray(draw(st.sampled_from(sounds)))
    how = draw(st.sampled_from(["flipped", "flipped early", "overwritten", "cut", "another"]))
    if how.startswith("flipped"):
        bits = 8 * (len(raw) if how == "flipped" else min(len(raw), 600)) - 1
        for bit in draw(st.lists(st.integers(0, bits), min_size=1, max_size=6)):
            raw[bit // 8] ^= 1 << bit % 8
    elif how == "overwritten":
        at, junk = draw(st.integers(0, len(raw) - 1)), draw(st.binary(min_size=1, max_size=40))
        raw[at : at + len(junk)] = junk
    elif how == "cut":
        del raw[draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw = bytearray(draw(st.binary(max_size=200)))
    return bytes(raw)


def answers_or_refuses(path, raw, read, error=GmedError):
    """Reading gives something sound or an error that names the file, which stays as it is."""
    path.write_bytes(raw)
    try:
        read(path)
    except error as refusal:
        assert path.name in str(refusal)
    assert path.read_bytes() == raw


IDX = [
    gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(range(24)), mtime=0),
    gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), mtime=0),
]
EMPTY_BUT_WIDE = gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 0]) + b"\xff" * 8, mtime=0)


@fuzzed(60)
@given(damaged(IDX) | damaged([gzip.decompress(sound) for sound in IDX]).map(lambda raw: gzip.compress(raw, mtime=0)))
@example(EMPTY_BUT_WIDE)
def test_whatever_is_in_an_idx_file(tmp_path_factory, raw):
    def read(path):
        found = read_idx(path, 3)
        assert found.ndim == 3 and found.dtype == np.uint8

    answers_or_refuses(tmp_path_factory.getbasetemp() / "damaged-idx.gz", raw, read, DataError)


RECORDS = np.full((3, 3074), 7, np.uint8).tobytes()


@fuzzed(40)
@given(damaged([RECORDS]))
def test_whatever_is_in_a_file_of_records(tmp_path_factory, raw):
    def read(path):
        x, y = read_records(path.parent, RecordFile(path.name, 3), (20, 100))
        assert x.shape == (3, 3, 32, 32) and np.all((y >= 0) & (y < 100))

    answers_or_refuses(tmp_path_factory.getbasetemp() / "damaged.bin", raw, read, DataError)


IMAGES = {"image_data": np.zeros((6, 2, 2, 3), np.uint8), "class_dict": {"a": [0, 1, 2], "b": np.array([3, 4, 5])}}
PICKLES = [pickle.dumps(IMAGES, protocol) for protocol in (0, 2, 4, 5)]


@fuzzed(60)
@given(damaged(PICKLES))
def test_whatever_is_in_a_pickle(tmp_path_factory, raw):
    def read(path):
        images, classes = read_classes(path)
        assert images.dtype == np.uint8 and all(0 <= i < len(images) for own in classes.values() for i in own)

    answers_or_refuses(tmp_path_factory.getbasetemp() / "damaged.pkl", raw, read, DataError)


def tarred():
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("../outside", "/tmp/gmed-outside", "set/ü" * 40, "set/a.bin", "set/b.bin"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 5, 0
            tar.addfile(info, io.BytesIO(b"12345"))
    return raw.getvalue()


@fuzzed(40)
@given(damaged([tarred()]), st.booleans())
def test_whatever_is_in_an_archive(tmp_path_factory, raw, whole):
    """Nothing is written but the files asked for, where they were asked for."""
    beside = tmp_path_factory.mktemp("unpacking")
    archive, folder = beside / "damaged.tar.gz", beside / "folder"
    folder.mkdir()
    raw = gzip.compress(raw, 1, mtime=0) if whole else raw

    def read(path):
        unpack(path, {"set/a.bin": 5, "set/b.bin": 5}, folder)
        assert {file.name: file.stat().st_size for file in folder.iterdir()} == {"a.bin": 5, "b.bin": 5}

    answers_or_refuses(archive, raw, read, DataError)
    assert {path.name for path in beside.iterdir()} == {"damaged.tar.gz", "folder"}
    assert {path.name for path in folder.iterdir()} <= {"a.bin", "b.bin"}
    assert not Path("/tmp/gmed-outside").exists()


def small_er(memory=4):
    torch.manual_seed(0)
    model = gmed.models.MLP(inputs=4, hidden=3, classes=2)
    return ER(model, lr=0.1, memory=Reservoir(memory), editing=GMED(alpha=1.0, beta=0.1), seed=7)


def without_checksum(raw):
    """As the first version wrote it; what is read is then checked for sense alone."""
    length = int.from_bytes(raw[:8], "little")
    labels = json.loads(raw[8 : 8 + length])["__metadata__"]
    del labels["checksum"]
    return save(load(raw), labels | {"format": "gmed-state/1"})


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    path = tmp_path_factory.mktemp("states") / "sound"
    learner = small_er()
    for seed in range(3):
        learner.observe(torch.rand(3, 4, generator=torch.Generator().manual_seed(seed)), torch.arange(3) % 2)
    learner.save(path)
    written = path.read_bytes()
    assert b'"checksum"' in written
    return [written, without_checksum(written), (FILES / "learner-state-1.safetensors").read_bytes()]


@fuzzed(100)
@given(data=st.data())
def test_whatever_is_in_a_state_file(tmp_path_factory, states, data):
    """A state that is taken can be learned with; one that is not changes nothing."""
    learner = small_er()
    learner.observe(torch.rand(3, 4), torch.arange(3) % 2)
    before = learner.state_dict()

    def read(path):
        try:
            learner.load(path)
        except UsageError:
            assert unchanged(learner, before)
            raise
        assert is_finite(learner) and learner.steps >= 0
        assert learner.logits(torch.rand(2, 4)).shape == (2, 2)
        with suppress(DivergedError):
            learner.observe(torch.rand(3, 4), torch.arange(3) % 2)

    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    answers_or_refuses(path, data.draw(damaged(states)), read)


@fuzzed(60)
@given(data=st.data())
def test_whatever_is_flipped_in_a_written_state_file_is_found_out(tmp_path_factory, states, data):
    """One bit that is wrong, anywhere, is not taken for what was written."""
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    written = states[0]
    bit = data.draw(st.integers(0, 8 * len(written) - 1))
    raw = bytearray(written)
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="flipped"):
        read_state(path, {"learner": "ER"})


SPEC = RunSpec.make("split-mnist", "er+gmed", seed=3)


@fuzzed(60)
@given(data=st.data())
def test_whatever_is_in_a_checkpoint(tmp_path_factory, data):
    """It is taken for a checkpoint only if it is one; checkpoints are never a reason to stop."""
    checkpoints = Checkpoints(tmp_path_factory.getbasetemp() / "damaged.db.unfinished", every=1)
    state = {"steps": torch.tensor(4), "model.weight": torch.rand(2, 3)}
    checkpoints.save(SPEC, Checkpoint(40, [[0.5, 0.1]], {"train": 1.5}, [10], state))
    path = checkpoints._path(SPEC)
    sound = path.read_bytes()
    raw = data.draw(damaged([sound, without_checksum(sound)]))
    path.write_bytes(raw)
    found = checkpoints.load(SPEC)
    if found is not None:
        assert decode(Checkpoint, encode(found), state=found.state) is not None
        assert all(isinstance(t, torch.Tensor) for t in found.state.values())
    assert read_run_name(path) is None or all(isinstance(name, str) for name in read_run_name(path))
    assert path.read_bytes() == raw


def test_invalid_progress_is_not_a_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=1)
    for progress in (
        "[]",
        "{}",
        "[" * 100_000,
        '{"seen": "40", "accuracy": [], "seconds": {}, "resumed_at": []}',
        '{"seen": -1, "accuracy": [], "seconds": {}, "resumed_at": []}',
        '{"seen": 40, "accuracy": [["high"]], "seconds": {}, "resumed_at": []}',
        '{"seen": 40, "accuracy": [0.5], "seconds": {}, "resumed_at": []}',
        '{"seen": 40, "accuracy": [], "seconds": {"train": null}, "resumed_at": []}',
        '{"seen": 40, "accuracy": [], "seconds": {}, "resumed_at": [null]}',
        '{"seen": 40, "accuracy": [], "seconds": {}, "resumed_at": [], "more": 1}',
        '{"seen": 40, "accuracy": [], "seconds": {}, "resumed_at": [], "untrained": ["low"]}',
        '{"seen": 40, "accuracy": [], "seconds": {}, "resumed_at": [], "passes": {"forward": 1}}',
        '{"seen": 40, "accuracy": [], "seconds": {}, "resumed_at": [], "passes": {"forward": 1, "backward": 0.5}}',
        '{"seen": 40, "accuracy": [], "seconds": {}, "resumed_at": [], "right": -1}',
    ):
        write_state(checkpoints._path(SPEC), {"steps": torch.tensor(1)}, {"run": SPEC.key, "progress": progress})
        assert checkpoints.load(SPEC) is None, progress[:80]


@fuzzed(60)
@given(damaged([(FILES / f"store-schema-{schema}.db").read_bytes() for schema in (1, 2)]))
def test_whatever_is_in_a_store(tmp_path_factory, raw):
    """What is refused when it is opened stays as it is; what is not can be read, or says why not."""
    path = tmp_path_factory.mktemp("stores") / "damaged.db"
    path.write_bytes(raw)
    try:
        store = Store(path)
    except StoreError as error:
        assert "damaged.db" in str(error)
        assert path.read_bytes() == raw
        return
    with store, Store(":memory:") as other:
        for look in (
            store.runs,
            store.failures,
            store.count_outdated,
            lambda: store.find(SPEC),
            lambda: store.outcome(SPEC, 0.0),
            lambda: other.merge(store),
        ):
            try:
                look()
            except StoreError as error:
                assert "damaged.db" in str(error) or ":memory:" in str(error)
        for run in _runs(store):
            assert 0 <= run.final_accuracy <= 1 and all(0 <= a <= 1 for row in run.accuracy for a in row)


def _runs(store):
    try:
        return store.runs()
    except StoreError:
        return []


def test_refused_store_is_closed(tmp_path):
    path = tmp_path / "newer.db"
    Store(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="newer gmed"):
        Store(path)
    with sqlite3.connect(path, timeout=0) as database:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA user_version = 98")  # nobody else has it open
    database.close()


TOML = (
    b'benchmark = "split-mnist"\nmethods = ["er", "er+gmed(alpha=1.0)"]\nseeds = [3, 7]\nmemory = 200\nfuzzy = true\n'
)
YAML = b"benchmark: split-mnist\nmethods:\n  - er\n  - er+gmed(alpha=1.0)\nseeds: 3,7\ncheckpoint_every: 5.5\n"


@fuzzed(80)
@given(st.sampled_from([(".toml", TOML), (".yaml", YAML)]).flatmap(lambda f: st.tuples(st.just(f[0]), damaged([f[1]]))))
def test_whatever_is_in_an_experiment_file(tmp_path_factory, drawn):
    suffix, raw = drawn

    def read(path):
        experiment = Experiment.from_file(path, store="results.db")
        try:
            assert all(isinstance(spec, RunSpec) for spec in experiment.specs())
        except UsageError as error:  # it says which word; the file is known
            raise UsageError(f"{path}: {error}") from None

    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    path.write_bytes(raw)
    try:
        read(path)
    except UsageError as error:
        assert str(error)
    assert path.read_bytes() == raw


LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".toml", "a = " + "[" * 100_000),
        (".toml", "seeds = " + "9" * 10_000),
        (".toml", "seeds = 2021-99-99"),
        (".yaml", "[" * 20_000),
        (".yaml", "seeds: " + "9" * 10_000),
        (".yaml", "seeds: 2021-99-99"),
        (".yaml", "seeds: 0b_"),
        (".yaml", "seeds: !!int abc"),
        (".yaml", "seeds: !!bool abc"),
        (".yaml", "seeds: !!timestamp abc"),
        (".yaml", "? [a, b]\n: c"),
        (".yaml", "{{a: b}: c}"),
        (".yaml", "!!python/object/apply:os.system ['touch canary']"),
        (".yaml", "benchmark: !!python/object/apply:builtins.open ['canary', 'w']"),
        (".yaml", LAUGHS + "benchmark: split-mnist\nmethods: *a39\n"),
    ],
    ids=range(15),
)
def test_invalid_experiment_files_are_refused(tmp_path, monkeypatch, suffix, text):
    """Deep, long, impossible or malicious ones: an error in a moment, and nothing in them is run."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"experiment{suffix}"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        Experiment.from_file(path)
    assert len(str(caught.value)) < 20_000
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("value", ["memory", "workers", "checkpoint_every", "fuzzy", "methods", "device", "seeds"])
def test_huge_values_are_truncated_in_messages(value):
    bomb = ["lol"]
    for _ in range(40):
        bomb = [bomb, bomb]
    content = {"benchmark": "split-mnist", "methods": ["er"], value: bomb}
    with pytest.raises(UsageError) as caught:
        Experiment(**content).specs()
    assert len(str(caught.value)) < 1000


# ---------------------------------------------------------------------- formats of other versions


def test_state_of_the_first_version_is_read(tmp_path):
    path = tmp_path / "old.safetensors"
    shutil.copy(FILES / "learner-state-1.safetensors", path)
    learner = small_er()
    learner.load(path)
    assert learner.steps == 3
    logits = learner.logits(torch.full((1, 4), 0.5))
    torch.testing.assert_close(logits, torch.tensor([[-0.3991, -0.5286]]), rtol=0, atol=1e-4)
    assert path.read_bytes() == (FILES / "learner-state-1.safetensors").read_bytes()


def test_a_state_of_a_newer_version_says_what_to_do(tmp_path):
    path = tmp_path / "newer.safetensors"
    raw = (FILES / "learner-state-1.safetensors").read_bytes()
    path.write_bytes(raw.replace(b"gmed-state/1", b"gmed-state/3"))
    learner = small_er()
    before = learner.state_dict()
    with pytest.raises(UsageError, match=r"newer\.safetensors: written by a newer gmed .*Upgrade gmed"):
        learner.load(path)
    assert unchanged(learner, before)


def test_pickled_state_is_refused_and_not_executed(tmp_path):
    path, canary = tmp_path / "state.safetensors", tmp_path / "canary"

    class Touch:
        def __reduce__(self):
            return canary.touch, ()

    torch.save({"model": Touch()}, path)
    with pytest.raises(UsageError, match="not a valid state file"):
        small_er().load(path)
    with pytest.raises(UsageError, match="cannot be read"):
        small_er().load(tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("steps", lambda t: torch.tensor(-1)),
        ("steps", lambda t: torch.tensor(1.5)),
        ("seed", lambda t: torch.tensor(-7)),
        ("classes", lambda t: torch.tensor(5)),
        ("shape", None),
        ("shape", lambda t: torch.tensor([5])),
        ("shape", lambda t: torch.tensor([2**40])),
        ("shape", lambda t: torch.tensor([-4])),
        ("memory.seen", lambda t: torch.tensor(-1)),
        ("memory.seen", lambda t: torch.tensor(1)),
        ("memory.x", None),
        ("memory.x", lambda t: t[:, :2]),
        ("memory.x", lambda t: t.long()),
        ("memory.x", lambda t: t * float("nan")),
        ("memory.y", lambda t: t + 2),
        ("memory.y", lambda t: t - 1),
        ("memory.y", lambda t: t.float()),
        ("memory.y", lambda t: t[:, None]),
        ("memory.y", lambda t: torch.tensor(1)),
        ("memory.age", lambda t: t - 100),
        ("memory.origin", lambda t: torch.full_like(t, -1)),
        ("memory.origin", lambda t: t + 1000),
        ("model.layers.1.weight", lambda t: t.view(torch.int32)),
        ("model.layers.1.weight", lambda t: t / 0),
    ],
)
def test_a_damaged_state_changes_nothing(name, change):
    source, target = small_er(), small_er()
    for seed in range(3):
        source.observe(torch.rand(3, 4, generator=torch.Generator().manual_seed(seed)), torch.arange(3) % 2)
    target.observe(torch.rand(2, 4), torch.arange(2))
    state, before = source.state_dict(), target.state_dict()
    known = [k for k in state if k.endswith(name.rsplit(".", 1)[-1]) and k.startswith(name.split(".")[0])]
    name = name if name in state else known[0]
    if change is None:
        del state[name]
    else:
        state[name] = change(state[name])
    with pytest.raises(UsageError, match="state"):
        target.load_state_dict(state)
    assert unchanged(target, before)
    target.load_state_dict(source.state_dict())
    assert unchanged(target, source.state_dict())


def test_incomplete_state_changes_nothing():
    source, target = (BGD(net(), samples=2, seed=seed) for seed in (0, 1))
    source.observe(X, Y)
    state, before = source.state_dict(), target.state_dict()
    del state["own.std.1.weight"]
    with pytest.raises(UsageError, match=r"does not fit the learner: .*std\.1\.weight"):
        target.load_state_dict(state)
    assert unchanged(target, before)
