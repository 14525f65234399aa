import signal
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import settings

from gmed.cli.app import main
from gmed.data import Dataset
from gmed.engine import extensions

torch.set_num_threads(1)
settings.register_profile("gmed", deadline=None, derandomize=True)
settings.load_profile("gmed")


@pytest.fixture(autouse=True, scope="session")
def interrupts_raise():
    """Ctrl-C raises, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def call_gmed(monkeypatch, capsys):
    """The command line in this process: standard output, standard error and the exit code."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        monkeypatch.setattr("sys.argv", ["gmed", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return *capsys.readouterr(), ended.value.code or 0

    return call


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    """Neither the data nor the cache of whoever runs the tests."""
    monkeypatch.delenv("GMED_DATA", raising=False)
    monkeypatch.setenv("GMED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def registry_restored():
    """Names that a test registers are taken back after it."""
    with suppress(KeyError), extensions._all_or_nothing():
        yield
        raise KeyError


@pytest.fixture
def tiny() -> Dataset:
    """Ten classes of 4 x 4 images, enough for every stream."""
    rng = np.random.default_rng(0)
    y_train, y_test = np.repeat(np.arange(10), 30), np.repeat(np.arange(10), 12)
    images = lambda n: rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8)  # noqa: E731
    return Dataset("tiny", images(300), y_train, images(120), y_test, 10)
