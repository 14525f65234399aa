"""The packaged MNIST, and reading MNIST from a local folder."""

import gzip
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmed.data import load_mnist
from gmed.data.mnist import PACKAGED, SHA256, read_idx
from gmed.errors import DataError

LABELS = "t10k-labels-idx1-ubyte.gz"


@pytest.fixture
def folder(tmp_path):
    for name in SHA256:
        shutil.copy(PACKAGED / name, tmp_path / name)
    return tmp_path


def refused(folder, name=LABELS):
    load_mnist.cache_clear()
    with pytest.raises(DataError) as caught:
        load_mnist(folder)
    assert name in str(caught.value)
    return str(caught.value)


def test_packaged_mnist_has_the_published_counts():
    mnist = load_mnist()
    assert mnist.x_train.shape == (60000, 1, 28, 28)
    assert mnist.x_test.shape == (10000, 1, 28, 28)
    assert np.bincount(mnist.y_train).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert np.bincount(mnist.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.y_train[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]


def test_local_folder_is_read(folder):
    load_mnist.cache_clear()
    assert np.array_equal(load_mnist(folder).x_test, load_mnist().x_test)


def test_missing_file(folder):
    (folder / LABELS).unlink()
    assert "no such file" in refused(folder)


def test_truncated_download(folder):
    raw = (folder / LABELS).read_bytes()
    (folder / LABELS).write_bytes(raw[: len(raw) // 2])
    assert "truncated" in refused(folder)


def test_truncated_content(folder):
    content = gzip.decompress((folder / LABELS).read_bytes())
    (folder / LABELS).write_bytes(gzip.compress(content[:-100]))
    assert "truncated: 9908 bytes" in refused(folder)


def test_too_long_content(folder):
    content = gzip.decompress((folder / LABELS).read_bytes())
    (folder / LABELS).write_bytes(gzip.compress(content + b"\0"))
    assert "too long" in refused(folder)


def test_wrong_magic(folder):
    shutil.copy(folder / "t10k-images-idx3-ubyte.gz", folder / LABELS)
    assert "wrong magic number 00000803, expected 00000801" in refused(folder)


def test_altered_label(folder):
    content = bytearray(gzip.decompress((folder / LABELS).read_bytes()))
    content[-1] ^= 1
    (folder / LABELS).write_bytes(gzip.compress(bytes(content)))
    assert "altered" in refused(folder)


def test_flipped_bit_and_other_files(folder):
    raw = bytearray((folder / LABELS).read_bytes())
    raw[2000] ^= 4
    (folder / LABELS).write_bytes(raw)
    assert "not a valid gzip file" in refused(folder)
    (folder / LABELS).write_bytes(b"<html>404</html>")
    assert "not a valid gzip file" in refused(folder)
    (folder / LABELS).write_bytes(b"")
    assert "wrong magic" in refused(folder)


@given(st.binary(max_size=64), st.integers(0, 200), st.integers(0, 255))
def test_reader_returns_data_or_data_error(tmp_path_factory, junk, at, byte):
    """Whatever a file holds, reading gives an array or a DataError that names the file."""
    path = tmp_path_factory.getbasetemp() / "fuzzed.gz"
    sound = bytearray(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4]), mtime=0))
    for raw in (junk, gzip.compress(junk), gzip.compress(bytes([0, 0, 8, 1]) + junk)):
        _answers_or_refuses(path, raw)
    sound[at % len(sound)] = byte
    _answers_or_refuses(path, bytes(sound))


def _answers_or_refuses(path, raw):
    path.write_bytes(raw)
    try:
        assert read_idx(path, 1).ndim == 1
    except DataError as error:
        assert "fuzzed.gz" in str(error)
