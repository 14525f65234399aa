"""Data of your own: a table, arrays or a folder of images, divided into tasks."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gmed.data.dataset import Dataset
from gmed.data.image import decode_image, image_width, is_16_bit_gray
from gmed.data.image_folders import class_folders
from gmed.data.tabular import read_table
from gmed.deprecated import old_names
from gmed.errors import DataError, GmedError, UsageError
from gmed.io.files import open_regular
from gmed.io.memory_limit import check_room
from gmed.rng import make_rng

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


NAMES = ("x", "y", "x_test", "y_test")
"""The arrays of an .npz file that are read."""

GRAY_16_BIT = b"gray of 16 bits\n"
"""Part of the digest of such images: earlier results, from when they were read as black and white, are not theirs."""


@dataclass(frozen=True)
class RawData:
    """Examples as they were read.

    Attributes
    ----------
    x, y, x_test, y_test
        Inputs (uint8 images, or floats) and the numbers of their classes; the test set may be empty.
    classes
        What the classes are called.
    digest
        Of the bytes that were read.
    columns, groups
        The names of a table's features, and what it says in the column that tasks are made by.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    classes: Sequence[str]
    digest: str
    columns: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None


def read_rows(path: Path, label: str | None, column: str | None, drop: Sequence[str] = ()) -> RawData:
    """The rows of a table, with the column that tasks are made by, if there is one, and without those to be dropped."""
    table = read_table(path, label, column, drop)
    classes, y = _encode_labels(table.labels)
    x = table.features
    return RawData(path.name, x, y, x[:0], y[:0], classes, _digest([path]), table.names, table.apart)


def read_arrays(path: Path) -> RawData:
    """The arrays x and y of an .npz file, and x_test and y_test if there are; whatever else is in it is not read."""
    try:
        with open_regular(path) as file:
            arrays = _arrays(path, file)
            file.seek(0)
            digest = _Digest(many=False)
            digest.update(path, file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
    x, y = _checked(path, "x", arrays["x"]), arrays["y"]
    x_test, y_test = (
        (_checked(path, "x_test", arrays["x_test"]), arrays["y_test"]) if "x_test" in arrays else (x[:0], y[:0])
    )
    for name, inputs, labels in (("y", x, y), ("y_test", x_test, y_test)):
        if labels.ndim != 1 or len(labels) != len(inputs) or labels.dtype.kind not in "iuU":
            raise DataError(f"{path}: {name} must hold a whole number or a word for each example.")
    if x_test.shape[1:] != x.shape[1:] or x_test.dtype != x.dtype:
        raise DataError(f"{path}: x_test holds {x_test.dtype} {x_test.shape[1:]}, x {x.dtype} {x.shape[1:]}.")
    if strange := set(y_test.tolist()) - set(y.tolist()):
        raise DataError(f"{path}: y_test holds {min(strange, key=str)!r}, which is not in y.")
    classes, numbers = _encode_labels([*y.tolist(), *y_test.tolist()])
    return RawData(path.name, x, numbers[: len(y)], x_test, numbers[len(y) :], classes, digest.text)


def _arrays(path: Path, file: BinaryIO) -> dict[str, NDArray[Any]]:
    """The arrays that are needed, once what each says of its size is known to be true and to fit into memory."""
    try:
        with ZipFile(file) as archive:
            members = {name: f"{name}.npy" for name in NAMES if f"{name}.npy" in archive.namelist()}
            if not {"x", "y"} <= members.keys():
                held = ", ".join(sorted(name.removesuffix(".npy") for name in archive.namelist())[:10])
                raise DataError(f"{path}: it must hold the arrays x and y; it holds {held or 'none'}.")
            if ("x_test" in members) != ("y_test" in members):
                raise DataError(f"{path}: of x_test and y_test it holds only one.")
            for name, member in members.items():
                _check_declared(path, name, archive, member)
            check_room(path, "what it holds", sum(archive.getinfo(member).file_size for member in members.values()))
            found = {}
            for name, member in members.items():
                with archive.open(member) as opened:
                    found[name] = npy.read_array(opened, allow_pickle=False)
            return found
    except DataError:
        raise
    except Exception as error:  # what NumPy raises depends on the damage
        raise DataError(f"{path}: not a sound .npz file of plain arrays ({error}).") from None


def _check_declared(path: Path, name: str, archive: ZipFile, member: str) -> None:
    """Refuse an array whose header promises other than the archive holds: memory is taken by the header's word."""
    with archive.open(member) as opened:
        major, _ = npy.read_magic(opened)
        read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, _, dtype = read_header(opened)
        begin = opened.tell()
    if dtype.hasobject or dtype.itemsize == 0 or major > 2 or any(length < 0 for length in shape):
        raise DataError(f"{path}: {name} holds {dtype}; plain arrays of numbers or words are needed.")
    size = begin + math.prod(shape) * dtype.itemsize
    if size != archive.getinfo(member).file_size:
        raise DataError(f"{path}: {name} is not as large as it says, {dtype} of shape {shape}. Write the file anew.")


def _checked(path: Path, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Images as uint8 or finite float32; features as finite numbers."""
    if x.ndim not in (2, 4) or 0 in x.shape[1:] or (name == "x" and len(x) == 0):
        raise DataError(
            f"{path}: {name} must be features (examples, features) or images (examples, channels, height, width), "
            f"not of shape {x.shape}."
        )
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    if x.dtype.kind not in "iuf":
        raise DataError(f"{path}: {name} holds {x.dtype}, numbers are needed.")
    x = x.astype(np.float64 if x.ndim == 2 else np.float32)
    if not np.isfinite(x).all():
        where = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))[0])
        raise DataError(f"{path}: {name}[{where}] holds NaN or infinity. Fill it in or leave it out.")
    return x


def read_folder(path: Path) -> RawData:
    """The images of a folder with a folder for every class, all of one size."""
    if not path.is_dir():
        raise DataError(f"{path}: not a .csv, .parquet or .npz file, nor a folder of class folders.")
    files = _files(path)
    with _opened(files[0][0]) as first:
        size = image_width(first)
    check_room(path, f"{len(files)} images of {size} x {size} pixels", len(files) * 3 * size * size)
    x, digest = np.empty((len(files), 3, size, size), np.uint8), _Digest(many=len(files) > 1)
    for number, (file, _) in enumerate(files):
        with _opened(file) as opened:
            digest.update(file, opened)
            opened.seek(0)
            x[number] = decode_image(opened, file, size)
    classes, y = _encode_labels([name for _, name in files])
    return RawData(path.name, x, y, x[:0], y[:0], classes, digest.text)


def folder_classes(path: Path) -> tuple[tuple[str, ...], str]:
    """What the classes of such a folder are called, and the digest of its images, which are not decoded for it."""
    files = _files(path)
    return tuple(_encode_labels([name for _, name in files])[0]), _digest([file for file, _ in files])


def file_digest(path: Path) -> str:
    """The digest of a table or of arrays, which are not understood for it."""
    return _digest([path])


def _files(path: Path) -> list[tuple[Path, str]]:
    """Every image with the name of its class."""
    return [(file, name) for name, images in sorted(class_folders(path).items()) for file in images]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file to be read, or the error that says why it cannot be."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    with file:
        yield file


def _digest(files: Sequence[Path]) -> str:
    digest = _Digest(many=len(files) > 1)
    for path in files:
        with _opened(path) as file:
            digest.update(path, file)
    return digest.text


class _Digest:
    """Of the bytes of files, and of several files' names."""

    def __init__(self, *, many: bool) -> None:
        self._many, self._hash = many, hashlib.sha256()

    def update(self, path: Path, file: BinaryIO) -> None:
        self._hash.update(os.fsencode(f"{path.parent.name}/{path.name}\n") if self._many else b"")
        if is_16_bit_gray(file.read(26)):
            self._hash.update(GRAY_16_BIT)
        file.seek(0)
        while block := file.read(2**20):
            self._hash.update(block)

    @property
    def text(self) -> str:
        return self._hash.hexdigest()[:12]


def _encode_labels(labels: Sequence[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """The classes in order (numbers by size, words by the alphabet), and each label's place among them."""
    distinct = set(labels)
    sizes = {label: _as_float(label) for label in distinct}
    words = any(math.isnan(size) for size in sizes.values())
    order = sorted(distinct, key=lambda label: (0.0 if words else sizes[label], str(label)))
    places = {label: place for place, label in enumerate(order)}
    return [str(label) for label in order], np.array([places[label] for label in labels], dtype=np.int64)


def _as_float(label: Any) -> float:
    try:
        return float(label)
    except ValueError:
        return math.nan


TABLES = (".csv", ".parquet")
DEFAULT_SPLIT = "by-class"

TEST_SHARE = 0.2
"""Of each task, what is kept for testing where the data have no test set of their own."""

MAX_NAME_LENGTH = 100_000
"""Of a name, which lists the columns that are left out."""

MAX_FILE_NAME = 255
"""Letters in the name of a file."""

_TASKS = re.compile(r"([1-9]\d{0,8}) tasks", re.ASCII)
_SHAPE = re.compile(r"([1-9]\d{0,8}(?:x[1-9]\d{0,8}){0,2})->([1-9]\d{0,8})", re.ASCII)
_DIGEST = re.compile("[0-9a-f]{12}")


@dataclass(frozen=True)
class TaskDataset(Dataset):
    """A data set whose examples belong to tasks.

    Attributes
    ----------
    task_train, task_test
        The task of each example.
    tasks
        How many tasks there are.
    in_order
        Whether the order of training examples means something.
    digest
        Of the files it was read from.
    classes
        What the classes are called.
    """

    task_train: NDArray[np.int64]
    task_test: NDArray[np.int64]
    tasks: int
    in_order: bool
    digest: str
    classes: tuple[str, ...]


@lru_cache(maxsize=1)
def _read_once(path: Path, label: str | None, split: str, drop: tuple[str, ...], changed: int) -> TaskDataset:
    """The data, which the next run in this process need not read again if they have not changed since."""
    return load_custom(path, label, split, drop)


@dataclass(frozen=True)
class CustomDataRef:
    """Which data, and how they are divided, with everything that identifies them: all of it is in the name.

    >>> own = CustomDataRef.named("iris.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]")
    >>> own.label, own.split, own.tasks, own.shape, own.classes
    ('kind', 'by-class', 2, (4,), 3)
    >>> CustomDataRef.named(own.name) == own, CustomDataRef.named("split-mnist") is None
    (True, True)
    """

    file: str
    label: str | None
    split: str
    tasks: int
    shape: tuple[int, ...]
    classes: int
    digest: str
    drop: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        columns = f"label={self.label}," if self.label is not None else ""
        columns += f"drop={';'.join(self.drop)}," if self.drop else ""
        shape = "x".join(map(str, self.shape))
        return f"{self.file}[{columns}{self.split},{self.tasks} tasks,{shape}->{self.classes},{self.digest}]"

    @classmethod
    def parse(cls, name: str) -> CustomDataRef | None:
        """What a name says, or ``None`` if it is no such name."""
        head, *sizes = name[:-1].rsplit(",", 3) if len(name) <= MAX_NAME_LENGTH and name.isprintable() else [""]
        if len(sizes) != 3 or not name.endswith("]") or not _DIGEST.fullmatch(sizes[2]):
            return None
        tasks, made = _TASKS.fullmatch(sizes[0]), _SHAPE.fullmatch(sizes[1])
        found = _file_and_columns(head)
        if tasks is None or made is None or found is None:
            return None
        file, label, drop, split = found
        shape = tuple(map(int, made[1].split("x")))
        dropped = tuple(drop.split(";")) if drop else ()
        return cls(file, label, split, int(tasks[1]), shape, int(made[2]), sizes[2], dropped)

    @classmethod
    def from_path(cls, path: Path, label: str | None, split: str, drop: Sequence[str] = ()) -> CustomDataRef:
        """The data at a path, read once to know them."""
        drop = tuple(dict.fromkeys(drop))
        data = load_custom(path, label, split, drop)
        label = label if path.suffix.lower() in TABLES else None
        own = cls(path.name, label, split, data.tasks, data.x_train.shape[1:], data.num_classes, data.digest, drop)
        if cls.parse(own.name) != own or not own.name.isprintable():
            raise DataError(f"{str(path)!r}: rename the file or the columns: {own.name!r} cannot serve as a name.")
        return own

    def load(self, folder: Path | None) -> TaskDataset:
        """The data themselves, which must be what they were when they were given this name."""
        path = (folder or Path()) / self.file
        data = _read_once(path, self.label, self.split, self.drop, path.stat().st_mtime_ns if path.exists() else 0)
        if data.digest != self.digest:
            raise DataError(f"{path}: not the data of {self.name}: it has changed since. Run again by its path.")
        if (data.tasks, data.x_train.shape[1:], data.num_classes) != (self.tasks, self.shape, self.classes):
            raise DataError(f"{path}: {self.name} says another size of the data than they have. Run again by its path.")
        return data

    def class_names(self, folder: Path | None) -> tuple[str, ...]:
        """What the classes are called; nothing unless the data are there and are what they were.

        A table or arrays are understood only once their bytes are known to be the right ones.
        """
        path = (folder or Path()) / self.file
        try:
            if path.is_dir():
                names, digest = folder_classes(path)
                return names if digest == self.digest else ()
            return self.load(folder).classes if path.is_file() and file_digest(path) == self.digest else ()
        except (GmedError, OSError):
            return ()


def is_data_path(path: str) -> bool:
    """Whether this is a path to data rather than the name of a benchmark."""
    return Path(path).suffix.lower() in (*TABLES, ".npz") or (path != "" and Path(path).is_dir())


def load_custom(
    path: Path, label: str | None = None, split: str = DEFAULT_SPLIT, drop: Sequence[str] = ()
) -> TaskDataset:
    """Read data and divide them into tasks.

    Parameters
    ----------
    path
        A table (.csv, .parquet), arrays (.npz: x and y, and x_test and y_test if there are), or a folder with a
        folder of images for every class.
    label
        Which column of a table is the label.
    split
        ``by-class`` (two classes a task, ``by-class=5`` five), ``by-time`` (rows as they come, in ten tasks;
        ``by-time=4`` in four), ``by-column=NAME`` (a task for every value of a column, as they first appear), ``none``.
    drop
        Columns of a table that are left out.
    """
    kind, _, option = split.partition("=")
    if kind not in ("by-class", "by-time", "by-column", "none") or (kind == "by-column") > bool(option):
        raise UsageError(f"split must be by-class, by-time, by-column=NAME or none, not {split!r}")
    if (kind == "none" and option) or split.endswith("="):
        raise UsageError(f"split {split!r}: there is {'no option of none' if option else 'nothing after ='}")
    suffix, column = path.suffix.lower(), option if kind == "by-column" else None
    if column is not None and suffix not in TABLES:
        raise UsageError(f"{path}: only tables have columns to make tasks by, not {split!r}")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder.")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: neither a file nor a folder: it cannot be read twice.")
    if suffix in TABLES:
        raw = read_rows(path, label, column, drop)
    elif label is not None:
        raise UsageError(f"{path}: --label is for tables; here labels are known")
    elif drop:
        raise UsageError(f"{path}: --drop is for tables; there are no columns here")
    else:
        raw = read_arrays(path) if suffix == ".npz" else read_folder(path)
    if len(raw.classes) < 2:
        raise DataError(f"{path}: all examples are of one class ({raw.classes[0]}): there is nothing to learn.")
    return _assign_tasks(path, raw, kind, option)


def _assign_tasks(path: Path, raw: RawData, kind: str, option: str) -> TaskDataset:
    count = len(raw.y)
    task, task_test = np.zeros(count, dtype=np.int64), np.zeros(len(raw.y_test), dtype=np.int64)
    if kind == "by-class":
        each = _number("classes in a task", option or "2", len(raw.classes))
        task, task_test = raw.y // each, raw.y_test // each
    elif kind == "by-time":
        parts = _number("tasks", option or "10", count)
        if len(raw.y_test):
            raise DataError(f"{path}: a test set of its own has no time. Divide by-class, or leave it out.")
        task = np.arange(count) * parts // count
    elif raw.groups is not None:
        numbers = {group: number for number, group in enumerate(dict.fromkeys(raw.groups))}
        task = np.array([numbers[group] for group in raw.groups], dtype=np.int64)
    tasks = int(task.max()) + 1
    if len(raw.y_test):
        train, held = raw.x, raw.x_test
        y_train, y_test, task_train = raw.y, raw.y_test, task
    else:
        out = _held_out(path, task, tasks)
        train, held, y_train, y_test = raw.x[~out], raw.x[out], raw.y[~out], raw.y[out]
        task_train, task_test = task[~out], task[out]
    if missing := set(range(tasks)) - set(task_test.tolist()):
        raise DataError(f"{path}: the test set has no example of task {min(missing) + 1} of {tasks}.")
    if raw.x.dtype != np.uint8 and raw.x.ndim == 2:
        train, held = _standardised(path, raw.columns, train, held)
    return TaskDataset(
        name=raw.name,
        x_train=train,
        y_train=y_train,
        x_test=held,
        y_test=y_test,
        num_classes=len(raw.classes),
        task_train=task_train,
        task_test=task_test,
        tasks=tasks,
        in_order=kind in ("by-time", "by-column"),
        digest=raw.digest,
        classes=tuple(raw.classes),
    )


def _held_out(path: Path, task: NDArray[np.int64], tasks: int) -> NDArray[np.bool_]:
    """Which examples are kept for testing: the same share of every task, the same ones for every seed."""
    chooser, out = make_rng(0, "test examples"), np.zeros(len(task), dtype=bool)
    for number in range(tasks):
        places = np.flatnonzero(task == number)
        if len(places) < 2:
            raise DataError(
                f"{path}: task {number + 1} of {tasks} has {len(places)} example(s); it needs one to learn from and "
                "one to test with. Make fewer tasks."
            )
        out[chooser.choice(places, ceil(TEST_SHARE * len(places)), replace=False)] = True
    return out


def _standardised(
    path: Path, columns: Sequence[str], train: NDArray[Any], held: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features with mean 0 and deviation 1 over the training examples; one that never changes is 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        varies = train.max(0) > train.min(0)  # a deviation of what does not is next to 0, not 0
        mean = np.where(varies, train.mean(0, dtype=np.float64), train[0])
        deviation = np.where(varies, train.std(0, dtype=np.float64), 1.0)
        parts = [((part - mean) / deviation).astype(np.float32) for part in (train, held)]
    sound = np.isfinite(deviation) & np.isfinite(parts[0]).all(0) & np.isfinite(parts[1]).all(0)
    for number in np.flatnonzero(~sound).tolist():
        name = columns[number] if columns else str(number)
        raise DataError(f"{path}: the values of column {name!r} are too large to be standardised. Scale them down.")
    return parts[0], parts[1]


def _file_and_columns(head: str) -> tuple[str, str | None, str, str] | None:
    """The file, the label, the columns left out and the division that the beginning of a name says.

    Of the ways to read it the one with the longest file is taken, then that with the shortest label and the fewest
    columns. The time it takes grows with the length of the name and not faster.

    >>> _file_and_columns("iris.csv[label=kind,drop=a;b,by-column=site,no")
    ('iris.csv', 'kind', 'a;b', 'by-column=site,no')
    """
    at = head.rfind("[", 1, MAX_FILE_NAME + 1)
    while at > 0:
        file, after = head[:at], at + 1
        label, drop = None, ""
        if head.startswith("label=", after):
            end = _next(head, after + len("label=") + 1, also_columns=True)
            label, after = head[after + len("label=") : end], end + 1
        if after and head.startswith("drop=", after):
            end = _next(head, after + len("drop=") + 1)
            drop, after = head[after + len("drop=") : end], end + 1
        if after and _divides(head, after) and not {"/", "\\"} & set(file) and file not in (".", ".."):
            return file, label, drop, head[after:]
        at = head.rfind("[", 1, at)
    return None


def _next(head: str, start: int, *, also_columns: bool = False) -> int:
    """The first comma before a division, or also before columns that one comes after; -1 if there is none."""
    found = [head.find(",by-column=", start), head.rfind(",", start)]
    if also_columns:
        columns = head.find(",drop=", start)
        if columns >= 0 and _next(head, columns + len(",drop=") + 1) >= 0:
            return min(columns, *(at for at in found if at >= 0 and _divides(head, at + 1)))
    return min((at for at in found if at >= 0 and _divides(head, at + 1)), default=-1)


def _divides(head: str, start: int) -> bool:
    """Whether a division is named from there to the end."""
    if head.startswith("by-column=", start):
        return len(head) > start + len("by-column=")
    return head.startswith(("by-class", "by-time", "none"), start) and "," not in head[start:]


def _number(of_what: str, text: str, most: int) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text) or int(text) > most:
        raise UsageError(f"the number of {of_what} must be a whole number from 1 to {most}, not {text!r}")
    return int(text)
