"""Reading mini-ImageNet from image folders and pickled caches, and its decoded copy."""

import copyreg
import os
import pickle
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gmed.data import load_mini_imagenet
from gmed.data.image_cache import open_decoded
from gmed.data.images import ImageFolders, read_image
from gmed.data.mini_imagenet import MINI_IMAGENET, MiniImageNet, decoded_dir, read_classes
from gmed.data.safe_pickle import ALLOWED_CLASSES, array_of, read_pickle
from gmed.errors import DataError

pytestmark = pytest.mark.usefixtures("private_cache")
SIZE = 8
CLASSES = ["n01", "n02", "n03"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "images"


def color(name, index):
    """The colour that marks an image: its class, and its number in it."""
    return (int(name[1:]) * 20, index * 10, 7)


def write(folder, names, count, start=0, size=SIZE, suffix="png"):
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(start, start + count):
            Image.new("RGB", (size, size), color(name, i)).save(folder / name / f"{name}{i:05}.{suffix}")


def load(folder, classes=3):
    return MiniImageNet(SIZE, classes).load(folder)


def refused(folder, *words, classes=3):
    with pytest.raises(DataError) as caught:
        load(folder, classes)
    for word in words:
        assert word in str(caught.value)
    left = [p for p in decoded_dir().rglob("*") if p.name] if decoded_dir().exists() else []
    assert left == []  # nothing half-written
    return str(caught.value)


def assert_split(data, train, test):
    """The images numbered so in each of the classes, in order."""
    for x, y, numbers in ((data.x_train, data.y_train, train), (data.x_test, data.y_test, test)):
        assert y.tolist() == [k for k in range(3) for _ in numbers] and y.dtype == np.int64
        assert x.shape == (3 * len(numbers), 3, SIZE, SIZE) and x.dtype == np.uint8
        assert x[:, :, 3, 5].tolist() == [list(color(name, i)) for name in CLASSES for i in numbers]
    assert data.num_classes == 3 and data.name == "mini-imagenet"


# Folders of images


def test_folders_of_classes_hold_out_the_last_sixth(folder):
    write(folder, CLASSES, 12)
    assert_split(load(folder), range(10), range(10, 12))


def test_the_same_classes_in_train_and_val(folder):
    write(folder / "train", CLASSES, 5)
    write(folder / "val", CLASSES, 2, start=5)
    assert_split(load(folder), range(5), range(5, 7))


def test_other_classes_in_train_val_and_test_are_pooled(folder):
    for part, name in zip(("train", "val", "test"), ("n03", "n01", "n02"), strict=True):
        write(folder / part, [name], 6)
    assert_split(load(folder), range(5), range(5, 6))


@pytest.mark.parametrize(("val", "test"), [(["n01", "n02"], []), (CLASSES, CLASSES)])
def test_other_overlaps_of_classes_are_refused(folder, val, test):
    write(folder / "train", CLASSES, 6)
    write(folder / "val", val, 6)
    write(folder / "test", test, 6)
    refused(folder, str(folder), "train and val", "share classes", "the same classes")


def test_a_folder_around_the_set_and_the_environment_serve(folder, tmp_path, monkeypatch):
    write(tmp_path / "data" / "mini-imagenet", CLASSES, 6)
    (tmp_path / "data" / "cifar-10-batches-bin").mkdir()
    (tmp_path / "data" / "cifar-10-batches-bin" / "test_batch.bin").write_text("")
    assert_split(load(tmp_path / "data"), range(5), range(5, 6))
    with pytest.raises(DataError, match=r"mini-imagenet is not in .*cache"):
        load(None)
    monkeypatch.setenv("GMED_DATA", str(tmp_path / "data"))
    assert_split(load(None), range(5), range(5, 6))


def test_jpeg_gray_and_opaque_images_become_rgb(folder):
    write(folder, CLASSES, 6, suffix="JPEG")
    Image.new("L", (SIZE, SIZE), 200).save(folder / "n01" / "n0100000.JPEG")
    (folder / "n01" / "n0100001.JPEG").unlink()
    Image.new("RGBA", (SIZE, SIZE), (1, 2, 3, 255)).save(folder / "n01" / "n0100001.png")
    data = load(folder)
    assert data.x_train[0, :, 0, 0].tolist() == [200, 200, 200]
    assert data.x_train[1, :, 0, 0].tolist() == [1, 2, 3]


def test_hidden_csv_and_txt_files_are_ignored_and_others_named(folder):
    write(folder, CLASSES, 6)
    for name in ("n01/.DS_Store", "n01/labels.csv", "n02/README.TXT", "train.csv", "notes.pdf"):
        (folder / name).write_text("")
    (folder / ".hidden").mkdir()
    assert_split(load(folder), range(5), range(5, 6))
    MINI_IMAGENET.remove()
    (folder / "n02" / "archive.zip").write_text("")
    refused(folder, str(folder / "n02" / "archive.zip"), "not a .jpg, .jpeg or .png file", "Move it")
    (folder / "n02" / "archive.zip").unlink()
    (folder / "n02" / "images").mkdir()
    refused(folder, str(folder / "n02" / "images"), "not a .jpg")


def test_an_image_of_another_size_is_not_resized(folder):
    write(folder, CLASSES, 6)
    odd = folder / "n02" / "n0200003.png"
    Image.new("RGB", (9, 8)).save(odd)
    refused(folder, str(odd), "9 x 8 pixels, not 8 x 8", ".resize((8, 8))")


@pytest.mark.parametrize("content", [b"", b"<html>", "cut", "gif"])
def test_a_broken_image(folder, content):
    write(folder, CLASSES, 6)
    broken = folder / "n03" / "n0300005.png"
    if content == "cut":
        content = broken.read_bytes()[:-30]
    elif content == "gif":
        Image.new("RGB", (SIZE, SIZE)).save(broken, format="GIF")
        content = broken.read_bytes()
    broken.write_bytes(content)
    refused(folder, str(broken), "not a valid image", "Replace it")


def test_a_class_without_images_too_few_or_no_classes(folder):
    write(folder, CLASSES, 6)
    (folder / "n04").mkdir()
    refused(folder, str(folder / "n04"), "has no images", "or remove it")
    write(folder, ["n04"], 5)
    refused(folder, str(folder / "n04"), "5 images", "at least 6", classes=4)
    shutil.rmtree(folder)
    (folder / "train").mkdir(parents=True)
    refused(folder, str(folder / "train"), "no subfolders of images")
    (folder / "train").rmdir()
    refused(folder, "mini-imagenet is not in", str(folder), "<class>", "--data-dir")


def test_the_number_of_classes(folder):
    write(folder, CLASSES, 6)
    refused(folder, str(folder), "3 classes, not 4", classes=4)
    with pytest.raises(DataError, match="3 classes, not 100"):
        load_mini_imagenet(folder)


def test_true_size_and_number_of_classes(folder):
    rng, names = np.random.default_rng(0), [f"n{k:08}" for k in range(100)]
    for k, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(6):
            to_float = (
                rng.integers(0, 256, (84, 84, 3), dtype=np.uint8) if k == 0 else np.full((84, 84, 3), k, np.uint8)
            )
            Image.fromarray(to_float).save(folder / name / f"{i}.png")
            if (k, i) == (0, 5):
                last = to_float
    seen = []
    data = load_mini_imagenet(folder, lambda done, total: seen.append((done, total)))
    assert data.x_train.shape == (500, 3, 84, 84) and data.x_test.shape == (100, 3, 84, 84)
    assert data.num_classes == 100 and np.all(data.x_test[1:, 0, 0, 0] == data.y_test[1:])
    assert np.array_equal(data.x_test[0], last.transpose(2, 0, 1))
    assert seen[0] == (0, 600) and seen[-1] == (600, 600) and seen == sorted(seen)


# The decoded copy


def test_images_are_decoded_once(folder, monkeypatch):
    write(folder, CLASSES, 6)
    first = load(folder)
    assert isinstance(first.x_train, np.memmap) and not first.x_train.flags.writeable
    monkeypatch.setattr("gmed.data.mini_imagenet.decode", None)
    assert_split(load(folder), range(5), range(5, 6))


def test_changed_images_are_decoded_again(folder):
    write(folder, CLASSES, 6)
    load(folder)
    Image.new("RGB", (SIZE, SIZE), (9, 9, 9)).save(folder / "n01" / "n0100000.png")
    os.utime(folder / "n01" / "n0100000.png", ns=(1, 1))
    assert load(folder).x_train[0, :, 0, 0].tolist() == [9, 9, 9]
    (folder / "n01" / "n0100000.png").unlink()
    write(folder, ["n01"], 1, start=6)
    assert load(folder).x_train[0, :, 0, 0].tolist() == list(color("n01", 1))


def test_verifying_decodes_again_and_compares(folder):
    write(folder, CLASSES, 6)
    seen = []
    for _ in range(2):
        assert_split(MiniImageNet(SIZE, 3).verify(folder, lambda done, _: seen.append(done)), range(5), range(5, 6))
    assert seen.count(18) == 2
    (array,) = decoded_dir().glob("*/x_test.npy")
    raw = bytearray(array.read_bytes())
    raw[-1] ^= 1
    array.write_bytes(raw)
    with pytest.raises(DataError, match=r"damaged.*gmed data remove mini-imagenet"):
        MiniImageNet(SIZE, 3).verify(folder)
    assert MINI_IMAGENET.remove() == [decoded_dir()]
    MiniImageNet(SIZE, 3).verify(folder)


@pytest.mark.parametrize("name", ["x_train", "y_test"])
@pytest.mark.parametrize("content", [b"", b"cut", b"other", None])
def test_damaged_copy_is_reported(folder, name, content):
    write(folder, CLASSES, 6)
    load(folder)
    (array,) = decoded_dir().glob(f"*/{name}.npy")
    if content == b"cut":
        array.write_bytes(array.read_bytes()[:-1])
    elif content == b"other":
        np.save(array, np.zeros((2, 2), np.float32))
    elif content is None:
        array.unlink()
    else:
        array.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.*gmed data remove mini-imagenet"):
        open_decoded("mini-imagenet", array.parent, SIZE)


def test_removing_leaves_the_images(folder):
    write(folder, CLASSES, 6)
    assert MINI_IMAGENET.remove() == []
    load(folder)
    assert MINI_IMAGENET.remove() == [decoded_dir()]
    assert len(list(folder.rglob("*.png"))) == 18
    assert_split(load(folder), range(5), range(5, 6))


def test_missing_pillow_is_reported(folder, monkeypatch):
    write(folder, CLASSES, 6)
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(folder, "Pillow", "pip install 'gmed[images]'")


def test_importing_the_package_does_not_need_pillow():
    code = "import sys; sys.modules['PIL'] = None; import gmed; gmed.data.load_mini_imagenet"
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.binary(max_size=30), st.integers(0, 2000), st.sampled_from(["png", "jpg"]))
def test_reading_an_image_succeeds_or_raises_data_error(tmp_path_factory, junk, at, suffix):
    path = tmp_path_factory.getbasetemp() / f"fuzzed.{suffix}"
    Image.new("RGB", (SIZE, SIZE), (1, 2, 3)).save(path)
    raw = bytearray(path.read_bytes())
    at %= len(raw)
    raw[at : at + len(junk)] = junk
    path.write_bytes(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            assert read_image(path, SIZE).shape == (3, SIZE, SIZE)
        except DataError as error:
            assert f"fuzzed.{suffix}" in str(error)


# Pickled caches


def cache_of(names, count=6):
    """The content of a pickled cache."""
    images = np.zeros((len(names) * count, SIZE, SIZE, 3), np.uint8)
    for k, name in enumerate(names):
        for i in range(count):
            images[k * count + i] = color(name, i)
    return {"image_data": images, "class_dict": {n: [k * count + i for i in range(count)] for k, n in enumerate(names)}}


def dump(folder, part, content, protocol=4):
    folder.mkdir(exist_ok=True)
    path = folder / f"mini-imagenet-cache-{part}.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_pickled_caches(folder, protocol):
    dump(folder, "train", cache_of(["n03", "n01"]), protocol)
    dump(folder, "val", cache_of(["n02"]), protocol)
    assert_split(load(folder), range(5), range(5, 6))


def test_the_pickles_of_old_numpy_and_python_2(folder):
    """Modules as numpy 1 named them; and bytes as Python 2 wrote them, which are text here."""
    path = dump(folder, "train", cache_of(CLASSES), 2)
    path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert_split(load(folder), range(5), range(5, 6))
    old = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I3\nt"
    old += b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x01\\xff\\x00'\ntb."
    assert np.array_equal(pickle.loads(old, encoding="latin1"), [1, 255, 0])
    path.write_bytes(old)
    assert array_of(read_pickle(path)).tolist() == [1, 255, 0]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
        np.array([1, -2], ">i8"),
        np.array([True, False]),
    ],
)
def test_arrays_are_those_that_were_pickled(tmp_path, array, protocol):
    path = tmp_path / "array.pkl"
    path.write_bytes(pickle.dumps([array, np.int64(7)], protocol))
    found, seven = read_pickle(path)
    assert np.array_equal(array_of(found), array) and array_of(found).dtype == array.dtype
    assert seven == 7


def test_labels_in_place_of_lists_of_images(folder):
    content = cache_of(CLASSES)
    labels = [k for k in range(3) for _ in range(6)]
    other = {"data": content["image_data"], "labels": labels, "catname2label": {n: k for k, n in enumerate(CLASSES)}}
    dump(folder, "train", other)
    assert_split(load(folder), range(5), range(5, 6))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([1, 2], "not a dictionary of image_data"),
        ({"image_data": 1}, "not a dictionary of image_data"),
        ({"image_data": "pixels", "class_dict": {}}, "not a dictionary of image_data"),
        ({"image_data": np.zeros((2, 8, 8, 3), np.uint8), "class_dict": {"n01": "01"}}, "not a dictionary"),
        ({"image_data": np.zeros((2, 8, 8, 3), np.uint8), "class_dict": {"n01": [1 << 70]}}, "not a dictionary"),
        ({"image_data": np.zeros((2, 8, 8, 3), np.int32), "class_dict": {"n01": [0]}}, "int32"),
        ({"image_data": np.zeros((2, 8, 8), np.uint8), "class_dict": {"n01": [0]}}, "(2, 8, 8)"),
        (
            {"image_data": np.zeros((9, 8, 8, 3), np.uint8), "class_dict": {"n01": [0, 9]}},
            "class n01 has image indices",
        ),
        (
            {"image_data": np.zeros((9, 8, 8, 3), np.uint8), "class_dict": {"n01": [-1, 0]}},
            "class n01 has image indices",
        ),
        ({"image_data": np.zeros((9, 8, 8, 3), np.uint8), "class_dict": {"n01": [0, 1]}}, "at least 6"),
    ],
)
def test_pickles_of_other_content_are_refused(folder, content, what):
    path = dump(folder, "train", content)
    refused(folder, str(path), what)


def test_pickles_of_another_size_or_that_share_a_class(folder):
    path = dump(folder, "train", cache_of(CLASSES))
    with pytest.raises(
        DataError, match=r"mini-imagenet-cache-train\.pkl: images of shape \(8, 8, 3\), not \(9, 9, 3\)"
    ):
        MiniImageNet(9, 3).load(folder)
    dump(folder, "test", cache_of(["n03"]))
    refused(folder, "mini-imagenet-cache-test.pkl", "class n03 is also in another")
    path.write_bytes(path.read_bytes()[:-40])
    refused(folder, str(path), "not a valid pickle", "Replace the file")


@pytest.mark.parametrize(
    "raw", [b"\x80\x05\x96" + bytes(5) + b"\x01\0\0.", b"Nr\xff\xff\xff\x7f0.", b"\x95" + bytes(6) + b"\x01\0."]
)
def test_damaged_pickle_allocates_little_memory(folder, raw):
    """Byte arrays of a terabyte, two billion memories, frames without end."""
    path = dump(folder, "train", None)
    path.write_bytes(raw)
    refused(folder, str(path), "not a valid pickle")


class Call:
    """Pickled, it asks whoever reads it to call a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def asking(module, name, *arguments):
    """A pickle that calls what a module has under a name, dots and all."""
    return b"\x80\x04" + b"".join(_text(t) for t in (module, name)) + b"\x93" + pickle.dumps(arguments)[2:-1] + b"R."


def _text(text):
    return b"\x8c" + bytes([len(text)]) + text.encode()


def test_pickle_code_is_not_executed(folder, tmp_path):
    canary = tmp_path / "canary"
    touch = f"touch {canary}"
    before = {key: (stand_in, dict(vars(stand_in))) for key, stand_in in ALLOWED_CLASSES.items()}
    copyreg.add_extension("os", "system", 240)
    try:
        malicious = [
            pickle.dumps(Call(os.system, touch)),
            pickle.dumps({"image_data": Call(eval, f"__import__('os').system({touch!r})"), "class_dict": {}}),
            pickle.dumps(Call(exec, f"open({str(canary)!r}, 'w')"), 0),
            pickle.dumps(Call(getattr, np.ndarray, "tofile")),
            pickle.dumps(Call(copyreg._reconstructor, Call, object, None)),
            pickle.dumps(Call(copyreg.add_extension, "os", "system", 1)),
            pickle.dumps(Call(np.fromfile, "/etc/passwd", np.dtype("u1"))),
            pickle.dumps(Call(np.memmap, str(canary), np.dtype("u1"), "w+", 0, 10)),
            asking("os", "system", touch),
            asking("posix", "system", touch),
            asking("numpy", "ndarray.tofile", str(canary)),
            asking("numpy._core.multiarray", "_reconstruct.__globals__", touch),
            asking("numpy.core.numeric", "load", str(canary)),
            asking("gmed.data.safe_pickle", "os.system", touch),
            asking("_codecs", "decode", b"x", "rot13"),
            b"cos\nsystem\n(S'" + touch.encode() + b"'\ntR.",
            b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
            b"(cos\nsystem\nS'" + touch.encode() + b"'\no.",
            b"\x80\x02\x82\xf0U" + bytes([len(touch)]) + touch.encode() + b"\x85R.",
            b"Psomewhere\n.",
            b"cnumpy\nndarray\n}S'x'\nI1\nsb.",  # state for a stand-in itself, which would stay
            b"cnumpy\nndarray\n(N}S'__setstate__'\nNstb.",
            b"c_codecs\nencode\n(N}S'__new__'\nNstb.",
        ]
        for raw in malicious:
            path = dump(folder, "train", None)
            path.write_bytes(raw)
            refused(folder, str(path))
    finally:
        copyreg.remove_extension("os", "system", 240)
    assert not canary.exists()
    assert {key: (stand_in, dict(vars(stand_in))) for key, stand_in in ALLOWED_CLASSES.items()} == before


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}, None], object),
        np.zeros(3, [("a", "u1"), ("b", "O")]),
        np.zeros(3, np.float32),
        np.array(["text"]),
        np.ma.array([1, 2]),
        np.array(["2021-12-06"], "M8[D]"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_non_numeric_arrays_are_refused(folder, array, protocol):
    path = dump(folder, "train", {"image_data": array, "class_dict": {}}, protocol)
    said = refused(folder, str(path))
    assert "where only integers are allowed" in said or "which no pickle of arrays needs" in said


SOUND = [pickle.dumps(cache_of(["n01"]), protocol) for protocol in range(6)]


@settings(max_examples=300)
@given(st.binary(max_size=40), st.integers(0, 100_000), st.sampled_from(SOUND), st.booleans())
def test_reading_a_pickle_succeeds_or_raises_data_error(tmp_path_factory, junk, at, sound, whole):
    """Whatever a file holds, reading gives images and classes or a DataError that names the file."""
    path = tmp_path_factory.getbasetemp() / "fuzzed.pkl"
    if whole:
        path.write_bytes(junk)
    else:
        at %= len(sound)
        path.write_bytes(sound[:at] + junk + sound[at + len(junk) :])
    try:
        images, classes = read_classes(path)
        assert images.dtype == np.uint8 and all(0 <= i < len(images) for own in classes.values() for i in own)
    except DataError as error:
        assert "fuzzed.pkl" in str(error)


GLOBALS = [b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"cnumpy.core.multiarray\nscalar\n"]
OPCODES = [*(bytes([n]) for n in range(256)), *GLOBALS, b"I1\n", b"K\x01", b"U\x02u1"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(OPCODES), max_size=30))
def test_random_pickle_programs_end_cleanly(tmp_path_factory, opcodes):
    path = tmp_path_factory.getbasetemp() / "program.pkl"
    path.write_bytes(b"".join(opcodes) + b".")
    try:
        read_pickle(path)
    except DataError as error:
        assert "program.pkl" in str(error)


def test_folders_are_read_in_name_order(folder):
    write(folder, ["n03", "n01", "n02"], 7)
    source = ImageFolders(folder)
    assert list(source.counts.items()) == [("n01", (6, 1)), ("n02", (6, 1)), ("n03", (6, 1))]
    assert [file.name for file in source.files[:7]] == [f"n01{i:05}.png" for i in range(7)]
