"""gmed data: listing, fetching, verifying and removing data sets."""

import hashlib
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from gmed.data.cifar import CIFAR10, RecordFile
from gmed.data.mini_imagenet import MiniImageNet, decoded_dir
from gmed.data.registry import DATASETS


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, private_cache):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def gmed(call_gmed):
    """The command: its exit code and what it says on standard output and on standard error."""

    def command(*words):
        output, errors, code = call_gmed(*words)
        return code, output, errors

    return command


@pytest.fixture
def tiny_cifar(tmp_path, monkeypatch):
    """CIFAR-10 with two records in each file, where an address says."""
    rows, folder = np.zeros((2, 3073), np.uint8).tobytes(), tmp_path / "original" / CIFAR10.folder
    folder.mkdir(parents=True)
    for file in CIFAR10.files:
        (folder / file.name).write_bytes(rows)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as tar:
        tar.add(folder, CIFAR10.folder)
    files = tuple(RecordFile(file.name, 2, hashlib.sha1(rows).hexdigest()) for file in CIFAR10.files)
    md5 = hashlib.md5((tmp_path / "cifar.tar.gz").read_bytes()).hexdigest()
    url = (tmp_path / "cifar.tar.gz").as_uri()
    monkeypatch.setitem(DATASETS, "cifar10", replace(CIFAR10, train=files[:5], test=files[5:], url=url, md5=md5))
    return folder


def test_list_shows_locations_of_data_sets_or_how_to_get_them(gmed, tmp_path):
    code, shown, _ = gmed("data")
    assert code == 0
    for name in ("mnist", "cifar10", "cifar100", "mini-imagenet"):
        assert f"\n{name}" in shown
    assert "mnist is in" in shown and "mnist_files" in shown
    assert "cifar10 is not in" in shown and "gmed data fetch cifar10" in " ".join(shown.split())
    assert "1.3 GB" in shown
    short = [line for line in shown.splitlines() if str(tmp_path) not in line and "mnist_files" not in line]
    assert all(len(line) <= 80 for line in short)


def test_fetch_list_verify_remove(gmed, tmp_path, tiny_cifar):
    folder = tmp_path / "cache" / CIFAR10.folder
    assert gmed("data", "fetch", "cifar10") == (0, f"cifar10 is in {folder}\n", "")
    assert f"cifar10 is in {folder}\n" in gmed("data")[1]
    valid = f"cifar10: valid, 10 + 2 images, 10 classes, in {folder}\n"
    assert gmed("data", "verify", "cifar10") == (0, valid, "")
    assert gmed("data", "remove", "cifar10") == (0, f"removed {folder}\n", "")
    assert not folder.exists()
    assert gmed("data", "remove", "cifar10") == (0, "The cache has no files of cifar10.\n", "")


def test_verify_checks_all_that_are_found(gmed, tmp_path, tiny_cifar):
    code, shown, said = gmed("data", "verify")
    assert code == 0 and said == ""
    assert "mnist: valid, 60,000 + 10,000 images, 10 classes, in" in shown
    assert "cifar10: not found, skipped" in shown
    gmed("data", "fetch", "cifar10")
    (tmp_path / "cache" / CIFAR10.folder / "data_batch_4.bin").write_bytes(b"")
    code, shown, said = gmed("data", "verify")
    assert code == 2
    assert said.startswith("gmed: ") and "data_batch_4.bin: truncated" in said
    assert "mnist: valid" in shown and "mini-imagenet: not found" in shown


def test_user_folder_is_verified_and_never_removed(gmed, tmp_path, tiny_cifar):
    own = tmp_path / "original"
    code, shown, _ = gmed("data", "verify", "cifar10", "--data-dir", str(own))
    assert code == 0 and str(own / CIFAR10.folder) in shown
    assert "mnist: not found" in gmed("data", "verify", "--data-dir", str(own))[1]
    gmed("data", "remove", "cifar10")
    assert len(list(tiny_cifar.iterdir())) == 6


def test_verify_missing_data(gmed, tmp_path):
    code, shown, said = gmed("data", "verify", "cifar100")
    assert code == 2 and shown == ""
    assert "cifar100 is not in" in said and "gmed data fetch cifar100" in said
    assert gmed("data", "verify", "mnist", "--data-dir", str(tmp_path))[0] == 2


def test_mini_imagenet(gmed, tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "mini-imagenet", MiniImageNet(size=8, classes=1))
    code, _, said = gmed("data", "fetch", "mini-imagenet")
    assert code == 2 and "cannot be downloaded" in said and "--data-dir" in said and "<class>" in said
    own = tmp_path / "own" / "n01"
    own.mkdir(parents=True)
    for i in range(6):
        Image.new("RGB", (8, 8)).save(own / f"{i}.png")
    code, shown, _ = gmed("data", "verify", "mini-imagenet", "--data-dir", "own")
    assert code == 0 and f"mini-imagenet: valid, 5 + 1 images, 1 classes, in {tmp_path / 'own'}" in shown
    assert gmed("data", "remove", "mini-imagenet") == (0, f"removed {decoded_dir()}\n", "")
    assert len(list(own.iterdir())) == 6


def test_mnist_needs_no_fetch(gmed):
    assert "mnist is in" in gmed("data", "fetch", "mnist")[1]
    assert "The cache has no files of mnist" in gmed("data", "remove", "mnist")[1]


@pytest.mark.parametrize("word", ["fetch", "verify", "remove"])
def test_unknown_names(gmed, word):
    code, _, said = gmed("data", word, "cifra10")
    assert code == 2 and "unknown data set 'cifra10'; did you mean 'cifar10'" in said


def test_run_with_missing_data_says_how_to_get_them(gmed):
    code, _, said = gmed("run", "split-cifar10", "er", "--data-dir", "nowhere")
    assert code == 2
    assert "cifar10 is not in nowhere. Get it with: gmed data fetch cifar10" in said
    assert "--data-dir or $GMED_DATA" in said
