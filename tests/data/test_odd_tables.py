"""Unusual but valid tables are read as pandas and pyarrow read them; non-numeric ones are refused."""

import csv
import io
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gmed.data.tabular import TableFile, read_table
from gmed.errors import DataError, InputError, UsageError
from gmed.online import ClassifierConfig, OnlineClassifier
from helpers import FUZZ_EXAMPLES

NOTATIONS = (repr, "{:+.17g}".format, "{:.17e}".format, "{:.17E}".format, " {!r}".format, "{!r}\t".format)

numbers = st.one_of(
    st.floats(-1e300, 1e300, allow_subnormal=False).flatmap(
        lambda number: st.sampled_from([write(number) for write in NOTATIONS])
    ),
    st.integers(-(10**6), 10**6).flatmap(lambda number: st.sampled_from([str(number), f"{number}.", f"{number}e0"])),
    st.sampled_from([".5", "-.5", "5.", "1E5", "1e+05", "-0", "0", "007"]),
)
words = st.text(
    st.one_of(
        st.sampled_from(string.ascii_letters + " ,;\t\"'=+-@#é中"), st.characters(codec="utf-8", categories=["L"])
    ),
    min_size=1,
    max_size=8,
).filter(lambda text: text.strip() and "\0" not in text)


@st.composite
def tables(draw):
    """The text of a table, its header, its numbers and its labels."""
    width, count = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    names = draw(st.lists(words.map(str.strip), min_size=width, max_size=width, unique=True))
    names = [f"{name}_{place}" for place, name in enumerate(names)]
    label = draw(st.integers(0, width))
    header = [*names[:label], "kind", *names[label:]]
    rows, features, labels = [], [], []
    for _ in range(count):
        cells, kind = [draw(numbers) for _ in names], draw(words)
        rows.append([*cells[:label], kind, *cells[label:]])
        features.append([float(cell) for cell in cells])
        labels.append(kind.strip())
    text = io.StringIO()
    delimiter = draw(st.sampled_from(",;\t"))
    writer = csv.writer(
        text,
        delimiter=delimiter,
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
    )
    # Which delimiter it is must be plain from the header, whatever the names hold.
    written = [name.translate(str.maketrans("", "", ',;\t"')) for name in header]
    writer.writerow(written)
    for row in rows:
        writer.writerow(row)
        if draw(st.integers(0, 5)) == 0:
            text.write("\n")  # a blank line
    whole = text.getvalue()
    if draw(st.booleans()):
        whole = whole.rstrip("\r\n")
    return draw(st.sampled_from(["", "\ufeff"])) + whole, written, features, labels, delimiter


@settings(
    max_examples=int(FUZZ_EXAMPLES or 80),
    derandomize=FUZZ_EXAMPLES is None,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
@given(drawn=tables(), size=st.integers(1, 5))
def test_whatever_table_is_legal_is_read_as_others_read_it(tmp_path_factory, drawn, size):
    text, header, features, labels, delimiter = drawn
    path = tmp_path_factory.getbasetemp() / "odd.csv"
    path.write_bytes(text.encode())
    names = [name.strip() for name in header]
    if len(set(names)) < len(names):
        with pytest.raises(DataError, match="every column a different name"):
            read_table(path, "kind")
        return
    table = read_table(path, "kind")
    assert table.labels == tuple(labels)
    assert table.features.tolist() == features
    assert list(table.names) == [name for name in names if name != "kind"]
    parts = list(TableFile(path).batches(table.names, "kind", size=size))
    assert np.concatenate([part.features for part in parts]).tolist() == features

    rows = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=delimiter) if row]
    place = names.index("kind")
    assert [row[place].strip() for row in rows[1:]] == labels
    frame = pd.read_csv(
        path, sep=delimiter, dtype=str, keep_default_na=False, encoding="utf-8-sig", skip_blank_lines=True
    )
    assert [float(cell) for row in frame.to_numpy().tolist() for n, cell in enumerate(row) if n != place] == [
        number for row in features for number in row
    ]


def parquet(path, **columns):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(pa.table({"kind": ["a", "b"], **columns}), path)
    return path


LISTS = {"of one number": [[1.0], [2.0]], "of two": [[1.0, 2.0], [3.0, 4.0]], "of lists": [[[1.0]], [[2.0]]]}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("beside", [{}, {"b": [1.0, 2.0]}])
def test_list_columns_are_refused_as_features(tmp_path, kind, beside):
    path = parquet(tmp_path / "t.parquet", a=LISTS[kind], **beside)
    with pytest.raises(DataError, match=r"row 1, column 'a': '\[.*\]' is not a finite number"):
        read_table(path, "kind")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([["a"], ["b"]], "is not text or a number"),
        ([{"a": 1}, {"a": 2}], "is not text or a number"),
        ([1.0, float("nan")], "row 2, column 'kind': a value is missing"),
    ],
)
def test_labels_may_be_words_or_numbers(tmp_path, labels, said):
    path = parquet(tmp_path / "t.parquet", a=[1.0, 2.0], kind=labels)
    with pytest.raises(DataError, match=said):
        read_table(path, "kind")


# ---------------------------------------------------------------------- River


def test_one_bad_label_drops_only_its_row():
    pytest.importorskip("river")
    from gmed.river import GMEDClassifier

    model = GMEDClassifier(ClassifierConfig(memory=50, hidden=4), buffer=10)
    for number in range(9):
        model.learn_one({"a": float(number)}, "low" if number < 5 else "high")
    for wrong in (3, None, float("nan"), ["low"], True):
        with pytest.raises(InputError, match="label"):
            model.learn_one({"a": 9.0}, wrong)
    model.learn_one({"a": 9.0}, "high")
    assert model._classifier.rows == 10
    with pytest.raises(InputError, match="labels so far are strings"):
        model.learn_one({"a": 9.0}, 3)
    model.learn_one({"a": 9.0}, "low")
    model.flush()
    assert model._classifier.rows == 11
    fresh = GMEDClassifier()
    with pytest.raises(InputError, match="label"):
        fresh.learn_one({"a": 1.0}, None)
    fresh.learn_one({"b": 1.0}, 1)  # what was refused decided nothing


@pytest.mark.parametrize(("standardise", "wrong"), [(True, 10**400), (True, 1e200), (False, 10**400), (False, 1e39)])
def test_one_overflowing_number_drops_no_valid_row(standardise, wrong):
    pytest.importorskip("river")
    from gmed.river import GMEDClassifier

    model = GMEDClassifier(ClassifierConfig(memory=50, hidden=4, standardise=standardise), buffer=3)
    for number in range(2):
        model.learn_one({"a": float(number)}, number)
    with pytest.raises(InputError, match="feature 'a'"):
        model.learn_one({"a": wrong}, 1)
    model.learn_one({"a": 2.0}, 1)
    assert model._classifier.rows == 3


# ---------------------------------------------------------------------- frames, lists, modules that do not fit


def test_the_classifier_takes_frames_and_lists():
    x, y = pd.DataFrame({"a": [1.0, 2, 8, 9], "b": [0, 1, 0, 1]}), pd.Series(["low", "low", "high", "high"])
    model, other = (OnlineClassifier(ClassifierConfig(memory=20, hidden=4), inputs=2) for _ in range(2))
    model.learn(x, y)
    other.learn(x.to_numpy(dtype=float), y.to_numpy())
    assert model.predict(x).tolist() == other.predict(x.to_numpy().tolist()).tolist()


@pytest.mark.parametrize(
    "x",
    [
        pd.DataFrame({"a": ["x", "y"], "b": [1, 2]}),
        [[1.0], [1.0, 2.0]],
        [[1.0, 2.0, 3.0]],
        None,
        3,
        "ab",
        [[None, 1.0]],
    ],
)
def test_non_numeric_table_is_refused_with_a_reason(x):
    model = OnlineClassifier(ClassifierConfig(memory=20, hidden=4), inputs=2)
    model.learn([[1.0, 2.0], [3.0, 4.0]], ["a", "b"])
    before = str(model.state())
    for call in (lambda: model.learn(x, ["a", "b"]), lambda: model.predict(x)):
        with pytest.raises(InputError):
            call()
    assert str(model.state()) == before


def test_incompatible_modules_are_reported():
    from torch import nn

    for module in (nn.Linear(7, 3), nn.Identity(), nn.Flatten(0)):
        model = OnlineClassifier(ClassifierConfig(model=module), inputs=2)
        with pytest.raises(UsageError, match="the model"):
            model.learn([[1.0, 2.0], [3.0, 4.0]], ["a", "b"])
        assert model.rows == 0
