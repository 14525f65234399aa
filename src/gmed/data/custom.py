"""The user's own data: a table, arrays or a folder of images, divided into tasks."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gmed.data.arrays import load_arrays
from gmed.data.dataset import Dataset
from gmed.data.images import class_folders, decode_image, image_width, is_16_bit_gray
from gmed.data.mnist import find_idx_files, is_idx_file, read_idx
from gmed.data.tabular import is_table, read_table, to_number
from gmed.deprecated import old_names
from gmed.errors import DataError, GmedError, UsageError
from gmed.io.files import check_room, open_regular, reading
from gmed.rng import make_rng

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


GRAY_16_BIT = b"gray of 16 bits\n"
"""Added to the digest of such images: early versions read them as black and white, and their results must not match."""


@dataclass(frozen=True)
class RawData:
    """Examples as read from disk, before they are divided into tasks.

    Attributes
    ----------
    x, x_test
        Inputs: uint8 images, or floats; the test set may be missing or empty.
    labels
        The label of each example, those of the test set last.
    digest
        The digest of the bytes that were read.
    columns, groups
        The names of a table's features, and the values of the column that defines the tasks.
    """

    x: NDArray[Any]
    labels: Sequence[Any]
    digest: str
    x_test: NDArray[Any] | None = None
    columns: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None


def read_rows(path: Path, label: str | None, column: str | None, drop: Sequence[str] = ()) -> RawData:
    """Read a table without the columns ``drop``; ``column``, if given, defines the tasks."""
    table = read_table(path, label, column, drop)
    return RawData(table.features, table.labels, _digest([path]), columns=table.names, groups=table.groups)


def read_arrays(path: Path) -> RawData:
    """Read the arrays x and y of an .npz file, and x_test and y_test if present; other arrays are ignored."""
    with reading(path), open_regular(path) as file:
        arrays = load_arrays(path, file)
        file.seek(0)
        digest = _Digest([path])
        digest.update(path, file)
    return _from_arrays(path, digest.text, *arrays)


def read_idx_files(path: Path, files: Sequence[Path]) -> RawData:
    """Read images and labels in the format of MNIST: training set, then the test set if there is one."""
    arrays = [read_idx(file, 1 if index % 2 else 3) for index, file in enumerate(files)]
    return _from_arrays(path, _digest(files), *arrays)


def _from_arrays(
    path: Path,
    digest: str,
    x: NDArray[Any],
    y: NDArray[Any],
    x_test: NDArray[Any] | None = None,
    y_test: NDArray[Any] | None = None,
) -> RawData:
    """Return arrays as data, or the error that says what they hold instead."""
    x = _validated_inputs(path, "x", x)
    x_test = x[:0] if x_test is None else _validated_inputs(path, "x_test", x_test)
    y_test = y[:0] if y_test is None else y_test
    for name, inputs, labels in (("y", x, y), ("y_test", x_test, y_test)):
        if labels.ndim != 1 or len(labels) != len(inputs) or labels.dtype.kind not in "iuU":
            raise DataError(f"{path}: {name} must hold one integer or string for each example.")
    if x_test.shape[1:] != x.shape[1:] or x_test.dtype != x.dtype:
        raise DataError(f"{path}: x_test holds {x_test.dtype} {x_test.shape[1:]}, but x holds {x.dtype} {x.shape[1:]}.")
    if unseen := set(y_test.tolist()) - set(y.tolist()):
        raise DataError(f"{path}: y_test holds {min(unseen, key=str)!r}, which is not in y.")
    return RawData(x, [*y.tolist(), *y_test.tolist()], digest, x_test)


def _validated_inputs(path: Path, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return images as uint8 or finite float32, features as finite float64; refuse anything else."""
    if x.ndim not in (2, 3, 4) or 0 in x.shape[1:] or (name == "x" and len(x) == 0):
        raise DataError(
            f"{path}: {name} must be features (examples, features) or images (examples, channels, height, width) or "
            f"(examples, height, width), not of shape {x.shape}."
        )
    if x.ndim == 3:  # of one channel
        x = x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    if x.dtype.kind not in "iuf":
        raise DataError(f"{path}: {name} holds {x.dtype}, but numbers are needed.")
    x = x.astype(np.float64 if x.ndim == 2 else np.float32)
    if not np.isfinite(x).all():
        index = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))[0])
        raise DataError(f"{path}: {name}[{index}] contains NaN or infinity. Impute it or leave the example out.")
    return x


def read_folder(path: Path) -> RawData:
    """Read a folder that has one folder of images per class, all images of the same size."""
    if not path.is_dir():
        raise DataError(f"{path}: not a .csv, .parquet, .npz or idx file, nor a folder of class folders.")
    files, names = zip(*_files(path), strict=True)
    with reading(files[0]), open_regular(files[0]) as first:
        size = image_width(first)
    check_room(path, f"{len(files)} images of {size} x {size} pixels", len(files) * 3 * size * size)
    x, digest = np.empty((len(files), 3, size, size), np.uint8), _Digest(files)
    for index, file in enumerate(files):
        with reading(file), open_regular(file) as stream:
            digest.update(file, stream)
            stream.seek(0)
            x[index] = decode_image(stream, file, size)
    return RawData(x, names, digest.text)


def _files(path: Path) -> list[tuple[Path, str]]:
    """Return every image with the name of its class, by class and file name."""
    return [(file, name) for name, images in sorted(class_folders(path).items()) for file in images]


def _digest(files: Sequence[Path]) -> str:
    digest = _Digest(files)
    for path in files:
        with reading(path), open_regular(path) as file:
            digest.update(path, file)
    return digest.text


class _Digest:
    """A digest of the bytes of files and, if there are several without a fixed order, of their names."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._with_names = len(files) > 1 and not is_idx_file(files[0])
        self._hash = hashlib.sha256()

    def update(self, path: Path, file: BinaryIO) -> None:
        self._hash.update(os.fsencode(f"{path.parent.name}/{path.name}\n") if self._with_names else b"")
        if is_16_bit_gray(file.read(26)):
            self._hash.update(GRAY_16_BIT)
        file.seek(0)
        while block := file.read(2**20):
            self._hash.update(block)

    @property
    def text(self) -> str:
        return self._hash.hexdigest()[:12]


def _encode_labels(labels: Sequence[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the class names (sorted as numbers if all are numbers, else as text) and the class index of each label."""
    distinct = set(labels)
    values = {label: to_number(label) for label in distinct}
    as_text = any(math.isnan(value) for value in values.values())
    classes = sorted(distinct, key=lambda label: (0.0 if as_text else values[label], str(label)))
    index_of = {label: index for index, label in enumerate(classes)}
    return [str(label) for label in classes], np.array([index_of[label] for label in labels], dtype=np.int64)


DEFAULT_SPLIT = "by-class"

TEST_SHARE = 0.2
"""The share of each task that is held out for testing if the data have no test set."""

MAX_NAME_LENGTH = 100_000
"""The maximum length of a name, which lists the dropped columns."""

MAX_FILE_NAME = 255
"""The maximum number of characters in a file name."""

_TASKS = re.compile(r"([1-9]\d{0,8}) tasks", re.ASCII)
_SHAPE = re.compile(r"([1-9]\d{0,8}(?:x[1-9]\d{0,8}){0,2})->([1-9]\d{0,8})", re.ASCII)
_DIGEST = re.compile("[0-9a-f]{12}")

MAX_TITLE = 60
_TITLE = re.compile(rf"[^\s,=\[\]]([^,=\[\]]{{0,{MAX_TITLE - 2}}}[^\s,=\[\]])?")
"""The name that users give to data; without the characters that separate the parts of a full name."""


@dataclass(frozen=True)
class TaskDataset(Dataset):
    """A data set whose examples are assigned to tasks.

    Attributes
    ----------
    task_train, task_test
        The task of each example.
    tasks
        The number of tasks.
    in_order
        Whether the order of training examples is meaningful.
    digest
        The digest of the files it was read from.
    classes
        The names of the classes.
    """

    task_train: NDArray[np.int64]
    task_test: NDArray[np.int64]
    tasks: int
    in_order: bool
    digest: str
    classes: tuple[str, ...]


@lru_cache(maxsize=1)
def _read_once(path: Path, label: str | None, split: str, drop: tuple[str, ...], _mtime: int) -> TaskDataset:
    """Load the data; the next run in this process reuses them if the file has not changed."""
    return load_custom(path, label, split, drop)


@dataclass(frozen=True)
class CustomDataRef:
    """A reference to custom data and their split; its name contains everything that identifies them.

    >>> ref = CustomDataRef.parse("iris.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]")
    >>> ref.label, ref.split, ref.tasks, ref.shape, ref.classes
    ('kind', 'by-class', 2, (4,), 3)
    >>> CustomDataRef.parse(ref.name) == ref, CustomDataRef.parse("split-mnist") is None
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
    title: str | None = None

    @property
    def untitled(self) -> CustomDataRef:
        """The same data without the name given by users, which does not identify them."""
        return replace(self, title=None)

    @property
    def name(self) -> str:
        """The reference as text, which :meth:`parse` reads."""
        title = f"name={self.title}," if self.title is not None else ""
        columns = f"label={self.label}," if self.label is not None else ""
        columns += f"drop={';'.join(self.drop)}," if self.drop else ""
        shape = "x".join(map(str, self.shape))
        return f"{self.file}[{title}{columns}{self.split},{self.tasks} tasks,{shape}->{self.classes},{self.digest}]"

    @classmethod
    def parse(cls, name: str) -> CustomDataRef | None:
        """Return the reference with this name, or ``None`` if the name has another form."""
        head, *sizes = name[:-1].rsplit(",", 3) if len(name) <= MAX_NAME_LENGTH and name.isprintable() else [""]
        if len(sizes) != 3 or not name.endswith("]") or not _DIGEST.fullmatch(sizes[2]):
            return None
        tasks, dimensions = _TASKS.fullmatch(sizes[0]), _SHAPE.fullmatch(sizes[1])
        parsed = _parse_head(head)
        if tasks is None or dimensions is None or parsed is None:
            return None
        file, title, label, drop, split = parsed
        shape = tuple(map(int, dimensions[1].split("x")))
        dropped = tuple(drop.split(";")) if drop else ()
        return cls(file, label, split, int(tasks[1]), shape, int(dimensions[2]), sizes[2], dropped, title)

    @classmethod
    def from_path(
        cls, path: Path, label: str | None, split: str, drop: Sequence[str] = (), title: str | None = None
    ) -> CustomDataRef:
        """Read the data at a path once and return a reference to them."""
        if title is not None and not _TITLE.fullmatch(title):
            raise UsageError(
                f"name must have at most {MAX_TITLE} characters, none of them a comma, equals sign or square bracket, "
                f"not {title[:100]!r}"
            )
        drop = tuple(dict.fromkeys(drop))
        data = load_custom(path, label, split, drop)
        label = label if is_table(path) else None
        ref = cls(
            path.name, label, split, data.tasks, data.x_train.shape[1:], data.num_classes, data.digest, drop, title
        )
        if cls.parse(ref.name) != ref or not ref.name.isprintable():
            raise DataError(f"{str(path)!r}: rename the file or the columns: {ref.name!r} is not a valid name.")
        return ref

    def load(self, folder: Path | None) -> TaskDataset:
        """Load the data; raise a :class:`~gmed.errors.DataError` if they have changed."""
        path = (folder or Path()) / self.file
        data = _read_once(path, self.label, self.split, self.drop, path.stat().st_mtime_ns if path.exists() else 0)
        if data.digest != self.digest:
            raise DataError(f"{path}: the data have changed; they are not {self.name}. Run again with the path.")
        if (data.tasks, data.x_train.shape[1:], data.num_classes) != (self.tasks, self.shape, self.classes):
            raise DataError(f"{path}: the sizes in {self.name} are not those of the data. Run again with the path.")
        return data

    def class_names(self, folder: Path | None) -> tuple[str, ...]:
        """Return the names of the classes, or nothing if the data are missing or have changed.

        A table or arrays are parsed only if their digest matches.
        """
        path = (folder or Path()) / self.file
        try:
            images = _files(path) if path.is_dir() and not find_idx_files(path) else []
            files = [file for file, _ in images] or find_idx_files(path) or [path]
            if not path.exists() or _digest(files) != self.digest:
                return ()
            return tuple(_encode_labels([name for _, name in images])[0]) if images else self.load(folder).classes
        except (GmedError, OSError):
            return ()


def is_data_path(path: str) -> bool:
    """Return whether this is a path to data rather than the name of a benchmark."""
    given = Path(path)
    return is_table(given) or given.suffix.lower() == ".npz" or is_idx_file(given) or (path != "" and given.is_dir())


def load_custom(
    path: Path, label: str | None = None, split: str = DEFAULT_SPLIT, drop: Sequence[str] = ()
) -> TaskDataset:
    """Read data and divide them into tasks.

    Parameters
    ----------
    path
        A table (.csv, .csv.gz, .parquet), arrays (.npz: x and y, optionally x_test and y_test), a folder of idx files
        in the format of MNIST, or a folder with one folder of images per class.
    label
        The label column of a table.
    split
        ``by-class`` (two classes per task; ``by-class=5``: five), ``by-time`` (rows in file order, in ten tasks;
        ``by-time=4``: four), ``by-column=NAME`` (one task per value of a column, in order of appearance), ``none``.
    drop
        Columns of a table to exclude.
    """
    kind, _, option = split.partition("=")
    if kind not in ("by-class", "by-time", "by-column", "none") or (kind == "by-column") > bool(option):
        raise UsageError(f"split must be by-class, by-time, by-column=NAME or none, not {split!r}")
    if (kind == "none" and option) or split.endswith("="):
        raise UsageError(f"split {split!r}: {'none takes no option' if option else 'a value is missing after ='}")
    suffix, column = path.suffix.lower(), option if kind == "by-column" else None
    if column is not None and not is_table(path):
        raise UsageError(f"{path}: {split!r} is only available for tables")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder.")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: neither a regular file nor a folder; data are read more than once.")
    if is_table(path):
        raw = read_rows(path, label, column, drop)
    elif label is not None:
        raise UsageError(f"{path}: --label is only for tables; these data have labels")
    elif drop:
        raise UsageError(f"{path}: --drop is only for tables; these data have no columns")
    elif idx_files := find_idx_files(path):
        raw = read_idx_files(path, idx_files)
    else:
        raw = read_arrays(path) if suffix == ".npz" else read_folder(path)
    return _assign_tasks(path, raw, kind, option)


def _assign_tasks(path: Path, raw: RawData, kind: str, option: str) -> TaskDataset:
    classes, y = _encode_labels(raw.labels)
    if len(classes) < 2:
        raise DataError(f"{path}: all examples have the same class ({classes[0]}); at least two classes are needed.")
    count, task = len(raw.x), np.zeros(len(y), dtype=np.int64)
    has_test_set = len(y) > count
    if kind == "by-class":
        task = y // _parse_count("classes per task", option or "2", len(classes))
    elif kind == "by-time":
        num_tasks = _parse_count("tasks", option or "10", count)
        if has_test_set:
            raise DataError(
                f"{path}: by-time cannot split a separate test set. Use --split by-class, or remove the test set."
            )
        task = np.arange(count) * num_tasks // count
    elif raw.groups is not None:
        task_of = {group: index for index, group in enumerate(dict.fromkeys(raw.groups))}
        task = np.array([task_of[group] for group in raw.groups], dtype=np.int64)
    tasks = int(task.max()) + 1
    if raw.x_test is not None and has_test_set:
        held_out = np.arange(len(y)) >= count
        x_train, x_test = raw.x, raw.x_test
    else:
        held_out = _sample_test_mask(path, task, tasks)
        x_train, x_test = raw.x[~held_out], raw.x[held_out]
    if missing := set(range(tasks)) - set(task[held_out].tolist()):
        raise DataError(f"{path}: the test set has no example of task {min(missing) + 1} of {tasks}.")
    if raw.x.dtype != np.uint8 and raw.x.ndim == 2:
        x_train, x_test = _standardize(path, raw.columns, x_train, x_test)
    return TaskDataset(
        name=path.name,
        x_train=x_train,
        y_train=y[~held_out],
        x_test=x_test,
        y_test=y[held_out],
        num_classes=len(classes),
        task_train=task[~held_out],
        task_test=task[held_out],
        tasks=tasks,
        in_order=kind in ("by-time", "by-column"),
        digest=raw.digest,
        classes=tuple(classes),
    )


def _sample_test_mask(path: Path, task: NDArray[np.int64], tasks: int) -> NDArray[np.bool_]:
    """Sample the examples held out for testing: the same share of every task, the same examples for every seed."""
    rng, mask = make_rng(0, "test examples"), np.zeros(len(task), dtype=bool)
    for index in range(tasks):
        examples = np.flatnonzero(task == index)
        if len(examples) < 2:
            raise DataError(
                f"{path}: task {index + 1} of {tasks} has {len(examples)} example(s); at least one for training "
                "and one for testing are needed. Use fewer tasks."
            )
        mask[rng.choice(examples, ceil(TEST_SHARE * len(examples)), replace=False)] = True
    return mask


def _standardize(
    path: Path, columns: Sequence[str], x_train: NDArray[Any], x_test: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scale features to mean 0 and standard deviation 1 over the training examples; constant features become 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        varies = x_train.max(0) > x_train.min(0)  # the computed std of a constant feature may be slightly above 0
        mean = np.where(varies, x_train.mean(0, dtype=np.float64), x_train[0])
        std = np.where(varies, x_train.std(0, dtype=np.float64), 1.0)
        train, test = (((x - mean) / std).astype(np.float32) for x in (x_train, x_test))
    finite = np.isfinite(std) & np.isfinite(train).all(0) & np.isfinite(test).all(0)
    for index in np.flatnonzero(~finite).tolist():
        name = columns[index] if columns else str(index)
        raise DataError(f"{path}: the values of column {name!r} are too large to be standardized. Scale them down.")
    return train, test


def _parse_head(head: str) -> tuple[str, str | None, str | None, str, str] | None:
    """Parse the beginning of a name into the file, the title, the label, the dropped columns and the split.

    An ambiguous name is parsed with the longest file name, then the shortest label, then the fewest dropped columns.
    The time is linear in the length of the name.

    >>> _parse_head("iris.csv[label=kind,drop=a;b,by-column=site,no")
    ('iris.csv', None, 'kind', 'a;b', 'by-column=site,no')
    >>> _parse_head("iris.csv[name=my irises,by-class")
    ('iris.csv', 'my irises', None, '', 'by-class')
    """
    bracket = head.rfind("[", 1, MAX_FILE_NAME + 1)
    while bracket > 0:
        file, start = head[:bracket], bracket + 1
        title, label, drop = None, None, ""
        if head.startswith("name=", start):
            title, comma, _ = head[start + len("name=") : start + len("name=") + MAX_TITLE + 1].partition(",")
            start += len(f"name={title},") if comma and _TITLE.fullmatch(title) else 0
        if start and head.startswith("label=", start):
            end = _field_end(head, start + len("label=") + 1, before_drop=True)
            label, start = head[start + len("label=") : end], end + 1
        if start and head.startswith("drop=", start):
            end = _field_end(head, start + len("drop=") + 1)
            drop, start = head[start + len("drop=") : end], end + 1
        if start and _is_split(head, start) and not {"/", "\\"} & set(file) and file not in (".", ".."):
            return file, title, label, drop, head[start:]
        bracket = head.rfind("[", 1, bracket)
    return None


def _field_end(head: str, start: int, *, before_drop: bool = False) -> int:
    """Return the index of the first comma before a split, or also before ``drop=`` and a split; -1 if there is none."""
    commas = [head.find(",by-column=", start), head.rfind(",", start)]
    if before_drop:
        drop = head.find(",drop=", start)
        if drop >= 0 and _field_end(head, drop + len(",drop=") + 1) >= 0:
            return min(drop, *(comma for comma in commas if comma >= 0 and _is_split(head, comma + 1)))
    return min((comma for comma in commas if comma >= 0 and _is_split(head, comma + 1)), default=-1)


def _is_split(head: str, start: int) -> bool:
    """Return whether the rest of the text from ``start`` names a split."""
    if head.startswith("by-column=", start):
        return len(head) > start + len("by-column=")
    return head.startswith(("by-class", "by-time", "none"), start) and "," not in head[start:]


def _parse_count(noun: str, text: str, limit: int) -> int:
    if not re.fullmatch("[1-9][0-9]{0,8}", text) or int(text) > limit:
        raise UsageError(f"the number of {noun} must be an integer from 1 to {limit}, not {text!r}")
    return int(text)
