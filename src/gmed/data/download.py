"""Download and unpack archives that have a known checksum and known members."""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from gmed.data.dataset import Progress, no_progress
from gmed.data.paths import open_to_append, writing
from gmed.errors import DataError

CHUNK = 1 << 16
MANUAL_HINT = "or get the data set another way and give its folder with --data-dir or $GMED_DATA"


def download(url: str, path: Path, md5: str, progress: Progress = no_progress, timeout: float = 30) -> None:
    """Download a file with a known checksum; ``path`` appears when it is complete and verified.

    A partial download is stored in ``path`` + ``.part``, and the next call resumes it. If a resumed download has the
    wrong checksum (the file on the server has changed), it is downloaded again from the start.
    """
    part = path.with_name(path.name + ".part")
    with writing(path):
        if path.is_file() and checksum(path) == md5:
            return
        part.parent.mkdir(parents=True, exist_ok=True)
        resumed = _receive(url, part, progress, timeout)
        if resumed and checksum(part) != md5:
            part.unlink()
            _receive(url, part, progress, timeout)
        if (actual := checksum(part)) != md5:
            part.unlink()
            raise DataError(
                f"{url}: the downloaded file is not the published one (its MD5 checksum is {actual}, not {md5}). "
                f"It was deleted. Try again later, {MANUAL_HINT}.",
            )
        part.replace(path)


def checksum(path: Path) -> str:
    """Return the MD5 checksum of a file, as the publisher gives it; it only detects damage, not manipulation."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(url: str, part: Path, progress: Progress, timeout: float) -> bool:
    """Download the missing end of ``part``; return whether an earlier download was resumed."""
    size = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    try:
        response = urlopen(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == 416 and size:  # the range is empty: the file is complete
            return True
        raise DataError(
            f"{url}: the server responded with {error.code} {error.reason}. Try again later, {MANUAL_HINT}."
        ) from None
    except (OSError, HTTPException) as error:
        raise DataError(f"{url}: cannot be reached ({_reason(error)}). Check the network, {MANUAL_HINT}.") from None

    with response:
        resumed = bool(response.status == 206)
        done = size if resumed else 0
        length = response.headers["Content-Length"]
        total = done + int(length) if length and length.isdecimal() else None
        with open_to_append(part, truncate=not resumed) as file:
            while True:
                progress(done, total)
                try:
                    chunk = response.read(CHUNK)
                except (OSError, HTTPException) as error:
                    raise _interrupted(url, done, total, _reason(error)) from None
                if not chunk:
                    break
                file.write(chunk)
                done += len(chunk)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _interrupted(url, done, total, "the server closed the connection")
    return resumed


def _interrupted(url: str, done: int, total: int | None, reason: str) -> DataError:
    of_total = "" if total is None else f" of {total:,}"
    return DataError(
        f"{url}: the download was interrupted after {done:,}{of_total} bytes ({reason}). "
        "Run the same command again to resume."
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def unpack(archive: Path, members: Mapping[str, int], folder: Path) -> None:
    """Write the named files of a ``.tar.gz`` into ``folder``, flat, and nothing else.

    Names and sizes come from ``members``, not from the archive, so nothing is written elsewhere or larger than
    expected. A link or a folder under one of the names is refused; other members are skipped.

    Parameters
    ----------
    members
        The size in bytes of every required file, by its path in the archive.
    """

    def invalid(problem: str) -> DataError:
        return DataError(f"{archive}: {problem}. Remove the file and fetch it again.")

    missing = dict(members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = str(PurePosixPath(member.name))
                if name not in members:
                    continue
                if name not in missing:
                    raise invalid(f"contains {name} twice")
                source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if source is None:
                    raise invalid(f"its member {name} is not a regular file")
                if member.size != missing.pop(name):
                    raise invalid(f"its member {name} has {member.size:,} bytes, not {members[name]:,}")
                content, path = source.read(), folder / PurePosixPath(name).name
                with writing(path):
                    path.write_bytes(content)
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise invalid(f"not a valid archive ({error})") from None
    if missing:
        raise invalid(f"does not contain {', '.join(missing)}")
