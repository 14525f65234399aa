"""Downloads: resuming, checksums, archives, the cache and concurrent fetches."""

import errno
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmed.data.cifar import CIFAR10, FETCHED_MARKER, RecordFile
from gmed.data.download import download, unpack
from gmed.data.paths import atomic_dir
from gmed.errors import DataError

CONTENT = np.random.default_rng(0).bytes(500_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """A server on this machine of one file, with the habits of those one meets."""

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.cut_after, self.status, self.asked = content, True, None, None, []
        self.url = f"http://127.0.0.1:{self.server_port}/files/data.tar.gz"

    def handle_error(self, request, client_address):
        """Clients that hang up are none of our business."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.status:
            return self.send_error(server.status)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start and start >= len(server.content):
            return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cut_after is not None:
            body, server.cut_after = body[: server.cut_after], None
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


@contextmanager
def serving(content):
    server = Server(content)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy(private_cache, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serving(CONTENT) as server:
        yield server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new folder" / "data.tar.gz"


def part(path):
    return path.with_name("data.tar.gz.part")


def refused(server, path, *words, **options):
    with pytest.raises(DataError) as caught:
        download(server.url, path, MD5, **options)
    assert not path.exists()
    for word in words:
        assert word in str(caught.value)


def test_a_download_with_progress(server, path):
    seen = []
    download(server.url, path, MD5, lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert seen[0] == (0, 500_000) and seen[-1] == (500_000, 500_000) and seen == sorted(seen)
    assert list(path.parent.iterdir()) == [path]
    download(server.url, path, MD5)
    assert server.asked == [None]  # what is there is not asked for again


def test_interrupted_download_resumes(server, path):
    server.cut_after = 200_000
    refused(server, path, "interrupted after 200,000 of 500,000 bytes", "Run the same command again to resume")
    assert part(path).read_bytes() == CONTENT[:200_000]
    seen = []
    download(server.url, path, MD5, lambda done, total: seen.append((done, total)))
    assert server.asked == [None, "bytes=200000-"]
    assert seen[0] == (200_000, 500_000)
    assert path.read_bytes() == CONTENT and not part(path).exists()


def test_download_restarts_without_range_support(server, path):
    server.cut_after, server.ranges = 200_000, False
    refused(server, path, "the download was interrupted")
    download(server.url, path, MD5)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("begun", [b"of another file", CONTENT[:1000] + b"!", CONTENT + b"too long", b"?" * 500_000])
def test_partial_file_of_other_content_is_discarded(server, path, begun):
    """The file on the server changed meanwhile, or ends before what we have (416)."""
    path.parent.mkdir()
    part(path).write_bytes(begun)
    download(server.url, path, MD5)
    assert path.read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(begun)}-", None]


def test_complete_partial_file_needs_no_request(server, path):
    path.parent.mkdir()
    part(path).write_bytes(CONTENT)
    download(server.url, path, MD5)
    assert path.read_bytes() == CONTENT and server.asked == ["bytes=500000-"]


def test_wrong_checksum_is_discarded(server, path):
    server.content = b"<html>moved</html>"
    refused(server, path, server.url, "not the published one", MD5, "It was deleted")
    assert list(path.parent.iterdir()) == []


def test_the_server_refuses(server, path):
    server.status = 404
    refused(server, path, server.url, "404 Not Found", "--data-dir")
    server.status = 503
    refused(server, path, "503 Service Unavailable")


def test_no_network(server, path):
    with serving(b"") as gone:
        pass
    refused(gone, path, gone.url, "cannot be reached (Connection refused)", "Check the network", "$GMED_DATA")


def test_silent_server_times_out(path, tmp_path):
    with serving(CONTENT) as server:
        server.RequestHandlerClass = type("Mute", (Handler,), {"do_GET": lambda self: threading.Event().wait(1)})
        refused(server, path, "no answer in time", timeout=0.2)


def test_a_full_disk(server, path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(server, path, str(path), "No space left on device", "Free disk space", "GMED_CACHE")


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("")
    refused(server, tmp_path / "file" / "data.tar.gz", "cannot be written (File exists)", "GMED_CACHE")


# The archive


def tar_gz(*members):
    """An archive of (name, content) or of (name, type, target) members."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, *what in members:
            info = tarfile.TarInfo(name)
            if len(what) == 1:
                info.size = len(what[0])
                tar.addfile(info, io.BytesIO(what[0]))
            else:
                info.type, info.linkname = what
                tar.addfile(info)
    return raw.getvalue()


WANTED = {"set/a.bin": 3, "set/b.bin": 5}
SOUND = (("set/a.bin", b"abc"), ("set/b.bin", b"12345"))


@pytest.fixture
def unpacked(tmp_path):
    """Unpacks an archive; the error it gave, and what is there then in the folder and beside it."""
    folder = tmp_path / "beside" / "folder"
    folder.mkdir(parents=True)

    def attempt(raw):
        archive = tmp_path / "archive.tar.gz"
        archive.write_bytes(raw)
        error = ""
        try:
            unpack(archive, WANTED, folder)
        except DataError as refusal:
            error = str(refusal)
            assert str(archive) in error and "fetch it again" in error
        assert list((tmp_path / "beside").iterdir()) == [folder]
        return error, {file.name: file.read_bytes() for file in folder.iterdir()}

    return attempt


def test_unpacking_extracts_only_named_files(unpacked):
    others = (("set/readme.html", b"hello"), ("../escaped", b"x"), ("/tmp/escaped", b"x"), ("set", tarfile.DIRTYPE, ""))
    assert unpacked(tar_gz(*others, *SOUND)) == ("", {"a.bin": b"abc", "b.bin": b"12345"})


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ([("set/a.bin", b"abc")], "does not contain set/b.bin"),
        ([("set/a.bin", tarfile.SYMTYPE, "/etc/passwd"), SOUND[1]], "set/a.bin is not a regular file"),
        ([SOUND[1], ("set/a.bin", tarfile.LNKTYPE, "set/b.bin")], "set/a.bin is not a regular file"),
        ([("set/a.bin", tarfile.DIRTYPE, ""), SOUND[1]], "set/a.bin is not a regular file"),
        ([("set/a.bin", tarfile.FIFOTYPE, ""), SOUND[1]], "set/a.bin is not a regular file"),
        ([("set/a.bin", b"abcd"), SOUND[1]], "set/a.bin has 4 bytes, not 3"),
        ([*SOUND, ("set/a.bin", b"xyz")], "contains set/a.bin twice"),
        ([("../set/a.bin", b"abc"), SOUND[1]], "does not contain set/a.bin"),
    ],
)
def test_archives_that_are_refused(unpacked, members, what):
    assert what in unpacked(tar_gz(*members))[0]


def test_a_damaged_archive(unpacked):
    assert "not a valid archive" in unpacked(tar_gz(*SOUND)[:60])[0]
    assert "not a valid archive" in unpacked(b"<html>")[0]
    assert "not a valid archive" in unpacked(b"")[0]


@given(st.binary(max_size=64), st.integers(0, 3000), st.booleans())
def test_unpacking_succeeds_or_raises_data_error(tmp_path_factory, junk, at, compressed):
    """Whatever an archive holds, it gives exactly the named files or a DataError that names it."""
    beside = tmp_path_factory.mktemp("fuzzed")
    archive, folder = beside / "fuzzed.tar.gz", beside / "folder"
    folder.mkdir()
    raw = bytearray(tar_gz(*SOUND))
    if not compressed:
        raw = bytearray(gzip.decompress(raw))
    at %= len(raw)
    raw[at : at + len(junk)] = junk
    archive.write_bytes(raw if compressed else gzip.compress(raw, 1))
    try:
        unpack(archive, WANTED, folder)
        assert {file.name: file.stat().st_size for file in folder.iterdir()} == {"a.bin": 3, "b.bin": 5}
    except DataError as error:
        assert "fuzzed.tar.gz" in str(error)
    assert sorted(beside.iterdir()) == [folder, archive]


# Fetching


@pytest.fixture
def tiny_cifar(server):
    """CIFAR-10 with two records in each file, on the server."""
    rows = np.zeros((2, 3073), np.uint8)
    files = [RecordFile(file.name, 2, hashlib.sha1(rows.tobytes()).hexdigest()) for file in CIFAR10.files]
    members = [(f"{CIFAR10.folder}/{file.name}", rows.tobytes()) for file in files]
    server.content = tar_gz((f"{CIFAR10.folder}/readme.html", b"hello"), *members)
    md5 = hashlib.md5(server.content).hexdigest()
    return replace(CIFAR10, train=tuple(files[:5]), test=tuple(files[5:]), url=server.url, md5=md5)


def cached(tmp_path):
    """What is in the cache, but for the locks."""
    inside = tmp_path / "cache"
    files = [p for p in inside.rglob("*") if p.is_file() and p.suffix != ".lock"]
    return sorted(str(p.relative_to(inside)) for p in files)


def test_fetch_then_load_then_remove(tiny_cifar, tmp_path, server):
    with pytest.raises(DataError, match="gmed data fetch cifar10"):
        tiny_cifar.load()
    folder = tiny_cifar.fetch()
    assert folder == tmp_path / "cache" / "cifar-10-batches-bin"
    assert cached(tmp_path) == sorted(
        f"{folder.name}/{name}" for name in [FETCHED_MARKER, *(f.name for f in CIFAR10.files)]
    )
    assert len(tiny_cifar.load().y_train) == 10
    tiny_cifar.fetch()
    assert len(server.asked) == 1  # a sound copy is not fetched again
    assert tiny_cifar.remove() == [folder]
    assert cached(tmp_path) == [] and tiny_cifar.remove() == []


def test_fetching_again_repairs_a_damaged_copy(tiny_cifar):
    folder = tiny_cifar.fetch()
    (folder / "test_batch.bin").write_bytes(b"damaged")
    with pytest.raises(DataError, match="truncated"):
        tiny_cifar.load()
    tiny_cifar.fetch()
    assert len(tiny_cifar.load().y_test) == 2


def test_failed_fetch_leaves_no_files(tiny_cifar, tmp_path, server):
    wrong = replace(tiny_cifar, test=(RecordFile("test_batch.bin", 2, "0" * 40),))
    with pytest.raises(DataError, match="altered"):
        wrong.fetch()
    assert cached(tmp_path) == ["downloads/data.tar.gz"]
    wrong.archive.unlink()
    server.cut_after = 100
    with pytest.raises(DataError, match="the download was interrupted"):
        tiny_cifar.fetch()
    assert cached(tmp_path) == ["downloads/data.tar.gz.part"]
    assert tiny_cifar.remove() == [tmp_path / "cache" / "downloads" / "data.tar.gz.part"]


def test_a_folder_of_the_users_in_the_cache_is_neither_replaced_nor_removed(tiny_cifar, tmp_path):
    own = tmp_path / "cache" / tiny_cifar.folder
    own.mkdir(parents=True)
    (own / "test_batch.bin").write_bytes(b"mine")
    for act in (tiny_cifar.fetch, tiny_cifar.remove):
        with pytest.raises(DataError, match="not created by `gmed data fetch`"):
            act()
    assert (own / "test_batch.bin").read_bytes() == b"mine"
    own.rename(tmp_path / "mine")
    own.symlink_to(tmp_path / "mine")
    (tmp_path / "mine" / FETCHED_MARKER).write_text("")
    with pytest.raises(DataError, match="is not removed"):
        tiny_cifar.remove()
    assert (tmp_path / "mine" / "test_batch.bin").exists()


def test_leftovers_of_a_killed_process_are_removed(tiny_cifar, tmp_path):
    tiny_cifar.fetch()
    left = tmp_path / "cache" / f".{tiny_cifar.folder}-0123"
    left.mkdir()
    assert left in tiny_cifar.remove()


def test_two_processes_fetch_at_once(tiny_cifar, tmp_path, server):
    code = """if True:
        import sys
        from dataclasses import replace
        from gmed.data.cifar import CIFAR10
        two = lambda files: tuple(replace(file, records=2, sha1=None) for file in files)
        url, md5 = sys.argv[1:]
        replace(CIFAR10, train=two(CIFAR10.train), test=two(CIFAR10.test), url=url, md5=md5).fetch()
    """
    command = [sys.executable, "-c", code, tiny_cifar.url, tiny_cifar.md5]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert len(server.asked) == 1  # one fetched, the other waited and found it there
    assert len(tiny_cifar.load().y_train) == 10
    assert not any(name.startswith((".cifar", "downloads")) for name in cached(tmp_path))


def test_folder_appears_atomically(tmp_path):
    target = tmp_path / "cache" / "target"

    def half():
        with atomic_dir(target) as making:
            (making / "half").write_text("")
            assert not target.exists()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert list(target.parent.iterdir()) == []
