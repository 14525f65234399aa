"""Hostile files are read or refused in bounded time and memory, without blocking."""

import io
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy
from PIL import Image

import gmed
from gmed.data import custom
from gmed.data.cifar import RecordFile, read_records
from gmed.data.custom import load_custom
from gmed.data.download import download
from gmed.data.images import read_image
from gmed.data.mini_imagenet import MiniImageNet, decoded_dir
from gmed.data.mnist import read_idx
from gmed.data.paths import atomic_dir, exclusive
from gmed.data.safe_pickle import read_pickle
from gmed.data.tabular import TableFile
from gmed.errors import DataError, GmedError
from gmed.experiment import Experiment

MANY = int(os.environ.get("GMED_FUZZ", "100"))

# PNG files, written by themselves: color type and bits, samples a pixel
KINDS = [(0, bits, 1) for bits in (1, 2, 4, 8, 16)] + [(2, 8, 3), (2, 16, 3), (4, 8, 2), (4, 16, 2), (6, 8, 4)]
KINDS += [(6, 16, 4), *((3, bits, 1) for bits in (1, 2, 4, 8))]


def png(kind, samples, palette=None, transparent=None):
    """The bytes of a PNG of samples (height, width, of a pixel)."""
    color, bits, _ = kind
    height, width, _ = samples.shape
    if bits == 16:
        rows = samples.astype(">u2").view(np.uint8).reshape(height, -1)
    else:
        places = np.arange(bits)[::-1]
        each = (samples.reshape(height, -1, 1) >> places & 1).reshape(height, -1)
        rows = np.packbits(each.astype(np.uint8), axis=1)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))]
    chunks += [] if palette is None else [(b"PLTE", palette.astype(np.uint8).tobytes())]
    chunks += [] if transparent is None else [(b"tRNS", transparent)]
    chunks += [(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))), (b"IEND", b"")]
    framed = (struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def eight_bits(values, bits, *, gray):
    """Of gray the nearest of 256 levels; of 16-bit colors the upper byte."""
    if bits == 16:
        return np.round(values / 65535 * 255) if gray else values // 256
    return values * 255 // (2**bits - 1)


@settings(max_examples=MANY)
@given(st.data())
def test_whatever_a_png_holds(data):
    kind = color, bits, each = data.draw(st.sampled_from(KINDS))
    size, rng = data.draw(st.integers(1, 9)), np.random.default_rng(data.draw(st.integers(0, 2**32)))
    samples = rng.integers(0, 2**bits, (size, size, each))
    if color in (4, 6) and data.draw(st.booleans()):
        samples[:, :, -1] = 2**bits - 1
    palette = rng.integers(0, 256, (2**bits, 3)) if color == 3 else None
    transparent, opaque = None, np.ones((size, size), dtype=bool)
    if color == 3 and data.draw(st.booleans()):
        alphas = rng.integers(254, 256, 2**bits).astype(np.uint8)
        transparent, opaque = alphas.tobytes(), alphas[samples[:, :, 0]] == 255
    elif color == 0 and bits >= 8 and data.draw(st.booleans()):
        value = int(rng.integers(0, 2**bits))
        transparent, opaque = struct.pack(">H", value), samples[:, :, 0] != value
    elif color in (4, 6):
        opaque = eight_bits(samples[:, :, -1], bits, gray=False) == 255

    if color == 3:
        expected = palette[samples[:, :, 0]]
    else:
        colors = samples[:, :, :3] if color in (2, 6) else samples[:, :, [0, 0, 0]]
        expected = eight_bits(colors, bits, gray=color == 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "image.png")
        path.write_bytes(png(kind, samples, palette, transparent))
        if opaque.all():
            assert (read_image(path, size) == expected.transpose(2, 0, 1)).all()
        else:
            with pytest.raises(DataError, match="transparent pixels"):
                read_image(path, size)


def test_sixteen_bit_grayscale_keeps_its_levels(tmp_path):
    values = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert (read_image(tmp_path / "deep.png", 16) == np.arange(256).reshape(16, 16)).all()


def test_sixteen_bit_images_have_another_digest_than_in_older_versions(tmp_path):
    """They were of black and white: the digest of such images, and with it the name of the data, is another now."""
    for bits in (8, 16):
        for number in range(4):
            path = tmp_path / str(bits) / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png((0, bits, 1), np.full((4, 4, 1), 9 * number)))
        files = [file for file, _ in custom._files(tmp_path / str(bits))]
        before = custom.hashlib.sha256()
        for file in files:
            before.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
        data = load_custom(tmp_path / str(bits))
        assert (data.digest == before.hexdigest()[:12]) == (bits == 8)
        reference = custom.CustomDataRef.from_path(tmp_path / str(bits), None, "by-class")
        assert reference.digest == data.digest and reference.class_names(tmp_path) == ("a", "b")


def test_cmyk_is_seen_as_it_is_printed(tmp_path):
    inks = np.random.default_rng(0).integers(0, 256, 4)
    Image.new("CMYK", (8, 8), tuple(inks.tolist())).save(tmp_path / "print.jpg", quality=100)
    expected = (255 - inks[:3]) * (255 - inks[3]) / 255
    assert np.abs(read_image(tmp_path / "print.jpg", 8)[:, 0, 0] - expected).max() <= 4


def test_animation_is_refused_and_mpo_second_image_ignored(tmp_path):
    red, blue = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
    red.save(tmp_path / "moving.png", save_all=True, append_images=[blue])
    with pytest.raises(DataError, match="an animation"):
        read_image(tmp_path / "moving.png", 8)
    red.save(tmp_path / "phone.jpg", format="MPO", save_all=True, append_images=[blue])
    assert read_image(tmp_path / "phone.jpg", 8)[0].min() > 250


def test_images_larger_than_memory_are_refused_before_they_are_decoded(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        small = png((0, 8, 1), np.zeros((2, 2, 1), int))
        header = struct.pack(">IIBBBBB", 2**20, 2**20, 8, 0, 0, 0, 0)
        crc = struct.pack(">I", zlib.crc32(b"IHDR" + header))
        (tmp_path / name / "bomb.png").write_bytes(small[:16] + header + crc + small[33:])
    with pytest.raises(DataError, match="bomb"):
        load_custom(tmp_path)


def test_many_images_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / name / "1.png")
    monkeypatch.setattr("gmed.io.files.memory_limit", lambda: 20_000)
    with pytest.raises(DataError, match=r"not enough memory for 2 images of 64 x 64 pixels \(2\.46e-05 GB\)"):
        load_custom(tmp_path)


# arrays


def write_npz(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def array_bytes(array):
    file = io.BytesIO()
    npy.write_array(file, np.asarray(array))
    return file.getvalue()


def header_bytes(shape, dtype="<f8"):
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


X, Y = array_bytes(np.arange(8.0).reshape(4, 2)), array_bytes(np.array([0, 0, 1, 1]))


def test_unneeded_archive_members_are_not_read(tmp_path):
    path = tmp_path / "a.npz"
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    others = {"README.txt": "hello", "meta.npy": objects.getvalue(), "x": b"not an array"}
    others["huge.npy"] = header_bytes((2**40,)) + bytes(10**6)
    write_npz(path, {"x.npy": X, "y.npy": Y, **others})
    assert load_custom(path).num_classes == 2


@pytest.mark.parametrize("shape", [(2**40, 2), (2**62, 2**62), (5, 2), (0, 2), (3, 2)])
def test_false_array_sizes_are_refused(tmp_path, shape):
    path = tmp_path / "a.npz"
    write_npz(path, {"x.npy": header_bytes(shape) + bytes(64), "y.npy": Y})
    with pytest.raises(DataError, match="x does not have the size in its header"):
        load_custom(path)


def test_arrays_larger_than_memory_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    write_npz(path, {"x.npy": header_bytes((10**6, 2)) + bytes(16 * 10**6), "y.npy": Y})
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("gmed.io.files.memory_limit", lambda: 10**7)
    with pytest.raises(DataError, match=r"not enough memory for its content \(0\.016 GB\)"):
        load_custom(path)


@settings(max_examples=MANY)
@given(st.data())
def test_whatever_an_npz_holds(data):
    """Headers, sizes and bytes at random: arrays that are learned from, or an error of ours."""
    names = ["x.npy", "y.npy", "x_test.npy", "y_test.npy", "x", "other.npy"]
    dtypes = ["<f8", "|u1", "<i8", "<U3", "<U0", "|O", "<f2", "<c16", "|V4", "|b1", "<M8[s]", "<u8"]
    lengths = st.sampled_from([0, 1, 2, 4, 2**31, 2**63])
    members = {"x.npy": X, "y.npy": Y}
    for name in data.draw(st.lists(st.sampled_from(names), max_size=4, unique=True)):
        shape = tuple(data.draw(st.lists(lengths, max_size=4)))
        body = data.draw(st.binary(max_size=64) | st.sampled_from([bytes(32), bytes(64)]))
        made = header_bytes(shape, data.draw(st.sampled_from(dtypes))) + body
        members[name] = data.draw(st.sampled_from([made, body, X, Y, made[:20]]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.npz")
        write_npz(path, members, data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try:
            found = load_custom(path, split="none")
        except GmedError as error:
            assert str(path) in str(error)
        else:
            assert len(found.x_train) == len(found.y_train) > 0
            assert found.x_train.dtype == np.float32


# pickles

READER = """
import resource, sys
from pathlib import Path
from gmed.data.mini_imagenet import read_classes
from gmed.errors import DataError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for line in sys.stdin:
    try:
        read_classes(Path(line.strip()))
        print("read", flush=True)
    except DataError as error:
        print("refused:", str(error).replace("\\n", " "), flush=True)
"""


@pytest.fixture(scope="module")
def reader():
    """Reads pickles in a process of its own, with little memory and time: what it says of each."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )

    def read(content):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.pkl")
            path.write_bytes(content)
            process.stdin.write(f"{path}\n")
            said = process.stdout.readline()
        assert said, f"the reader died: {process.wait()}"
        return said

    yield read
    process.stdin.close()
    process.wait()


def deep(depth):
    """A dictionary whose key is a tuple in a tuple in a tuple."""
    return b"\x80\x04})" + b"\x85" * depth + b"Ns."


def doubling(times):
    """A dictionary whose key is a tuple of twice itself, and so on."""
    return b"\x80\x04}K\x01\x85" + b"".join(b"\x94h%c\x86" % n for n in range(times)) + b"Ns."


def encoded_again_and_again(length, times):
    """One text, turned into bytes so many times."""
    text = b"X" + struct.pack("<I", length) + b"a" * length + b"\x94"
    encode = b"\x8c\x07_codecs\x8c\x06encode\x93\x94"
    return b"\x80\x04](" + text + encode + b"h\x01h\x00N\x86R" * times + b"e."


HOSTILE = {
    "deep": (deep(2_000_000), "a key of type tuple"),
    "doubling": (doubling(60), "a key of type tuple"),
    "in a set": (b"\x80\x04\x8f(" + doubling(60)[3:-3] + b"\x90.", "a key of type tuple"),
    "in a frozenset": (b"\x80\x04(" + doubling(60)[3:-3] + b"\x91.", "a key of type tuple"),
    "the type of an array": (
        b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93" + doubling(60)[3:-3] + b"\x85R.",
        "an array of type",
    ),
    "encoded": (encoded_again_and_again(10**6, 5000), "more bytes than the file contains"),
    "an object": (b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93)\x81.", "creates an object"),
    "a class that is filled": (b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93}b.", "sets the state of something"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pickles_needing_unbounded_time_or_memory_are_refused(reader, name):
    content, says = HOSTILE[name]
    assert says in reader(content)


def test_repeatedly_listed_images_are_refused(reader):
    images = np.zeros((6, 84, 84, 3), np.uint8)
    content = {"image_data": images, "class_dict": {"a": [0] * 1_000_000}}
    assert "an image is listed twice" in reader(pickle.dumps(content, 4))
    assert reader(pickle.dumps(content | {"class_dict": {"a": [0, 1, 2], "b": [3, 5]}}, 4)) == "read\n"


@settings(max_examples=MANY)
@given(st.data())
def test_whatever_opcodes_a_pickle_holds(reader, data):
    """Sequences of sound opcodes, nested deep and repeated often; the reader says so and lives."""
    pieces = [
        b")", b"(", b"t", b"\x85", b"\x86", b"\x87", b"]", b"l", b"a", b"e", b"}", b"d", b"s", b"u", b"\x8f", b"\x90",
        b"\x91", b"K\x01", b"N", b"\x88", b"\x8c\x01a", b"C\x04abcd", b"\x94", b"h\x00", b"h\x01", b"2", b"0", b"1",
        b"\x8c\x05numpy\x8c\x05dtype\x93", b"\x8c\x05numpy\x8c\x07ndarray\x93", b"\x8c\x07_codecs\x8c\x06encode\x93",
        b"R", b"b", b"\x81", b"\x92", b"o", b"\x8a\xff" + b"\x7f" * 255, b"\x94h\x00\x86",
    ]  # fmt: skip
    content = b"\x80\x04"
    for _ in range(data.draw(st.integers(1, 12))):
        piece = b"".join(data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=4)))
        content += piece * data.draw(st.sampled_from([1, 1, 1, 2, 40, 100_000 // len(piece)]))
    assert reader(content + b".").startswith(("read", "refused"))


# what is no file


def opened_by(kind):
    return {
        "table": lambda path: load_custom(path.with_suffix(".csv"), "label"),
        "parquet": lambda path: load_custom(path.with_suffix(".parquet"), "label"),
        "table in batches": lambda path: TableFile(path.with_suffix(".csv")),
        "arrays": lambda path: load_custom(path.with_suffix(".npz")),
        "image": lambda path: read_image(path.with_suffix(".png"), 4),
        "folder": lambda path: load_custom(path.parent.parent),
        "experiment": lambda path: Experiment.from_file(path.with_suffix(".toml")),
        "extension": lambda path: gmed.load_extension(path.with_suffix(".py")),
        "idx": lambda path: read_idx(path.with_suffix(".gz"), 3),
        "pickle": lambda path: read_pickle(path.with_suffix(".pkl")),
        "records": lambda path: read_records(path.parent, RecordFile(path.with_suffix(".bin").name, 1), [10]),
    }[kind]


@pytest.mark.parametrize("other", ["pipe", "device"])
@pytest.mark.parametrize(
    "kind",
    [
        "table",
        "parquet",
        "table in batches",
        "arrays",
        "image",
        "folder",
        "experiment",
        "extension",
        "idx",
        "pickle",
        "records",
    ],
)
def test_special_files_are_refused_without_blocking(tmp_path, kind, other):
    for label in "ab":
        (tmp_path / label).mkdir()
        for suffix in ("csv", "parquet", "npz", "png", "toml", "py", "gz", "pkl", "bin"):
            if kind == "folder" and suffix != "png":
                continue
            path = tmp_path / label / f"f.{suffix}"
            os.mkfifo(path) if other == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(GmedError, match=r"not a regular file|neither a regular file nor a folder") as caught:
        opened_by(kind)(tmp_path / "a" / "f")
    assert str(tmp_path / "a" / "f.") in str(caught.value)


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "images.gz"
    content = bytes([0, 0, 8, 3]) + struct.pack(">III", 10**4, 28, 28) + bytes(28 * 28 * 10**4 + 10**7)
    path.write_bytes(raw_gzip(content))
    with pytest.raises(DataError, match="too long: more bytes"):
        read_idx(path, 3)
    monkeypatch.setattr("gmed.io.files.memory_limit", lambda: 10**6)
    with pytest.raises(DataError, match="not enough memory"):
        read_idx(path, 3)


def raw_gzip(content):
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(content) + compressor.flush()


# the cache


def test_links_planted_in_the_cache_are_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "data.tar.gz.part").symlink_to(victim)
    (cache / ".data.lock").symlink_to(tmp_path / "made")
    source = tmp_path / "source"
    source.write_bytes(b"archive")
    with pytest.raises(DataError, match="cannot be written"):
        download(source.as_uri(), cache / "data.tar.gz", "0" * 32)
    with pytest.raises(DataError, match="cannot be written"), exclusive(cache / "data"):
        pass
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "made").exists()


MAKER = """
import sys, time
from pathlib import Path
from gmed.data.paths import exclusive, atomic_dir
target = Path(sys.argv[1])
with exclusive(target.parent), atomic_dir(target) as folder:
    (folder / "half").write_bytes(bytes(1000))
    print("making", flush=True)
    time.sleep(60)
"""


def test_cache_leftovers_are_removed_by_the_next_writer(tmp_path):
    folder = tmp_path / "decoded"
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", MAKER, str(folder / "one")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "making\n"
        process.kill()
        process.wait()
    assert len(list(folder.iterdir())) == 1  # the second took away what the first had left
    with exclusive(folder), atomic_dir(folder / "one") as making:
        (making / "whole").write_bytes(b"all")
    assert [path.name for path in folder.iterdir()] == ["one"]


def test_decoder_leftovers_are_removed_by_the_next_decoder(tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_CACHE", str(tmp_path / "cache"))
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (4, 4), number).save(tmp_path / "images" / name / f"{number}.png")
    left = decoded_dir() / ".0123456789abcdef-0123abcd"
    left.mkdir(parents=True)
    (left / "x_train.npy").write_bytes(bytes(1000))
    MiniImageNet(4, 2).load(tmp_path / "images")
    (only,) = decoded_dir().iterdir()
    assert only != left


# what callers give


def test_oracle_copies_observed_batches():
    learner = gmed.learners.ER(
        gmed.models.MLP(inputs=4, hidden=8, classes=2),
        lr=0.05,
        memory=gmed.memory.Reservoir(10),
        editing=gmed.editing.OptimalEdit(alpha=0.1),
    )
    x, y = torch.rand(6, 4), torch.tensor([0, 1] * 3)
    kept = x.clone(), y.clone()
    learner.observe(x, y)
    x.zero_()
    y.zero_()
    state = learner.state_dict()
    found = [tensor for name, tensor in state.items() if tensor.shape == kept[0].shape and (tensor == kept[0]).all()]
    assert found


def test_numpy_batches_are_copied():
    learner = gmed.learners.ER(
        gmed.models.MLP(inputs=4, hidden=8, classes=2), lr=0.05, memory=gmed.memory.Reservoir(10)
    )
    x = np.random.default_rng(0).random((6, 4), dtype=np.float32)
    learner.observe(x, np.array([0, 1] * 3))
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    x[:] = 0
    after = learner.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
