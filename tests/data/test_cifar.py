"""Reading CIFAR-10 and CIFAR-100: locations, checksums and damaged files."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmed.data import cifar as module
from gmed.data import load_cifar10, load_cifar100
from gmed.data.cifar import CIFAR10, CIFAR100, RecordFile, read_records, record_bytes
from gmed.data.paths import cache_dir
from gmed.errors import DataError

pytestmark = pytest.mark.usefixtures("private_cache")


def small(cifar, parent, records=30, seed=0):
    """The data set in miniature: its files written in the official format, and the description that fits them."""
    rng = np.random.default_rng(seed)
    folder = parent / cifar.folder
    folder.mkdir(parents=True, exist_ok=True)

    def write(file):
        labels = [np.resize(np.arange(n, dtype=np.uint8), records) for n in cifar.classes]
        rows = np.column_stack([*labels, rng.integers(0, 256, (records, 3072), dtype=np.uint8)])
        (folder / file.name).write_bytes(rows.tobytes())
        return RecordFile(file.name, records, hashlib.sha1(rows.tobytes()).hexdigest())

    return replace(cifar, train=tuple(map(write, cifar.train)), test=tuple(map(write, cifar.test)))


def refused(cifar, directory, *words):
    with pytest.raises(DataError) as caught:
        cifar.load(directory)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def test_cifar10_is_read_record_by_record(tmp_path):
    cifar = small(CIFAR10, tmp_path)
    data = cifar.load(tmp_path)
    assert data.name == "cifar10" and data.num_classes == 10
    assert data.x_train.shape == (150, 3, 32, 32) and data.x_train.dtype == np.uint8
    assert data.x_test.shape == (30, 3, 32, 32) and data.y_test.dtype == np.int64
    record = (tmp_path / CIFAR10.folder / "data_batch_2.bin").read_bytes()[3073 * 7 : 3073 * 8]
    assert data.y_train[37] == record[0] == 7
    red, green, blue = (list(record[1 + 1024 * c : 1025 + 1024 * c]) for c in range(3))
    assert data.x_train[37].reshape(3, -1).tolist() == [red, green, blue]


def test_cifar100_has_the_fine_labels(tmp_path):
    data = small(CIFAR100, tmp_path, records=100).load(tmp_path)
    assert data.num_classes == 100
    assert data.y_train.tolist() == list(range(100))
    raw = (tmp_path / CIFAR100.folder / "test.bin").read_bytes()
    assert data.x_test[1].tobytes() == raw[3074 + 2 : 2 * 3074]


def test_the_folder_itself_its_parent_the_environment_and_the_cache_serve(tmp_path, monkeypatch):
    cifar = small(CIFAR10, tmp_path / "here")
    expected = cifar.load(tmp_path / "here")
    assert cifar.load(tmp_path / "here" / cifar.folder) is expected
    monkeypatch.setenv("GMED_DATA", str(tmp_path / "here"))
    assert cifar.load() is expected
    monkeypatch.setenv("GMED_DATA", str(tmp_path / "has none"))
    small(CIFAR10, cache_dir())
    assert np.array_equal(cifar.load().x_test, expected.x_test)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"GMED_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"GMED_CACHE": "~/mine", "HOME": "/c"}, "/c/mine"),
        ({"GMED_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/gmed"),
        ({"GMED_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/gmed"),
    ],
)
def test_the_cache_folder(monkeypatch, variables, folder):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache_dir()) == folder


def test_changed_files_are_read_again(tmp_path, monkeypatch):
    """Another folder, another environment or another file: never the arrays of the one before."""
    one, two = (small(CIFAR10, tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    first = one.load(tmp_path / "a")
    assert one.load(tmp_path / "a") is first and not first.x_train.flags.writeable
    assert not np.array_equal(two.load(tmp_path / "b").x_test, first.x_test)
    monkeypatch.setenv("GMED_DATA", str(tmp_path / "a"))
    assert np.array_equal(one.load().x_test, first.x_test)
    monkeypatch.setenv("GMED_DATA", str(tmp_path / "b"))
    assert "altered" in refused(one, None)
    (tmp_path / "a" / one.folder / "test_batch.bin").unlink()
    refused(one, tmp_path / "a", "test_batch.bin", "no such file")


def test_missing_data_error_says_how_to_get_them(tmp_path, monkeypatch):
    said = refused(CIFAR10, None, str(tmp_path / "cache"), "gmed data fetch cifar10", "--data-dir", "$GMED_DATA")
    assert said.startswith("cifar10 is not in")
    monkeypatch.setenv("GMED_DATA", str(tmp_path / "nowhere"))
    refused(CIFAR100, None, f"{tmp_path / 'nowhere'} or {tmp_path / 'cache'}", "gmed data fetch cifar100")
    refused(CIFAR10, tmp_path, f"cifar10 is not in {tmp_path}.")


def test_a_file_that_is_missing_truncated_too_long_or_altered(tmp_path):
    cifar = small(CIFAR10, tmp_path)
    path = tmp_path / cifar.folder / "data_batch_3.bin"
    sound = path.read_bytes()
    for damaged, what in (
        (sound[:-1], "truncated: 92,189 bytes instead of 92,190 (30 records)"),
        (b"", "truncated: 0 bytes"),
        (sound + b"\0", "too long"),
        (sound[:5000] + bytes([sound[5000] ^ 1]) + sound[5001:], "altered: its SHA-1"),
    ):
        path.write_bytes(damaged)
        refused(cifar, tmp_path, str(path), what, "gmed data fetch")
    path.unlink()
    refused(cifar, tmp_path, str(path), "no such file", "gmed data fetch")
    path.mkdir()
    refused(cifar, tmp_path, str(path), "cannot be read (Is a directory)")


def test_a_label_out_of_range(tmp_path):
    rows = np.zeros((3, 3074), np.uint8)
    rows[2, :2] = 19, 100
    (tmp_path / "train.bin").write_bytes(rows.tobytes())
    with pytest.raises(DataError, match=r"train\.bin: record 2 has label 100, but the largest label is 99"):
        read_records(tmp_path, RecordFile("train.bin", 3), [20, 100])
    rows[2, :2] = 20, 99
    (tmp_path / "train.bin").write_bytes(rows.tobytes())
    with pytest.raises(DataError, match="record 2 has label 20, but the largest label is 19"):
        read_records(tmp_path, RecordFile("train.bin", 3), [20, 100])


def test_other_files_in_the_folder_are_ignored(tmp_path):
    cifar = small(CIFAR10, tmp_path)
    for name in ("batches.meta.txt", "readme.html", "data_batch_6.bin"):
        (tmp_path / cifar.folder / name).write_text("hello")
    assert len(cifar.load(tmp_path).y_test) == 30


def test_loaders_require_the_official_files(tmp_path):
    """The published checksums guard the public loaders: files in the right format are not enough."""
    for loader, cifar in ((load_cifar10, CIFAR10), (load_cifar100, CIFAR100)):
        small(cifar, tmp_path)
        with pytest.raises(DataError, match="truncated"):
            loader(tmp_path)
        assert sum(f.records for f in cifar.train) == 50_000 and sum(f.records for f in cifar.test) == 10_000
        assert all(f.sha1 and len(f.sha1) == 40 for f in cifar.files)
    assert module.CIFAR10.url.startswith("https://")


@given(st.binary(max_size=40), st.integers(0, 4), st.integers(0, 2 * 3074), st.sampled_from([(10,), (20, 100)]))
def test_reader_returns_data_or_data_error(tmp_path_factory, junk, records, at, classes):
    """Whatever a file holds, reading gives that many records or a DataError that names the file."""
    folder = tmp_path_factory.getbasetemp()
    path, file = folder / "fuzzed.bin", RecordFile("fuzzed.bin", records)
    sound = bytes(2 * record_bytes(classes))
    for raw in (junk, sound[:at] + junk + sound[at + len(junk) :], sound[:at] + junk):
        path.write_bytes(raw)
        try:
            x, y = read_records(folder, file, classes)
            assert x.shape == (records, 3, 32, 32) and y.shape == (records,)
            assert len(raw) == records * record_bytes(classes) and np.all(y < classes[-1])
        except DataError as error:
            assert "fuzzed.bin" in str(error)
