from __future__ import annotations

import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from gmed.data.writing import writing
from gmed.errors import DataError


def unpack(archive: Path, members: Mapping[str, int], folder: Path) -> None:
    """Write the named files of a ``.tar.gz`` into ``folder``, flat, and nothing else.

    Names and sizes are ours, not the archive's: nothing can be written elsewhere or grow beyond what is expected.
    A link or a folder under one of the names is refused; whatever else the archive holds is passed over.

    Parameters
    ----------
    members
        The size in bytes of every file wanted, by its path in the archive.
    """

    def refuse(what: str) -> DataError:
        return DataError(f"{archive}: {what}. Remove the file and fetch it again.")

    missing = dict(members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = str(PurePosixPath(member.name))
                if name not in members:
                    continue
                if name not in missing:
                    raise refuse(f"holds {name} twice")
                source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if source is None:
                    raise refuse(f"{name} in it is not a plain file")
                if member.size != missing.pop(name):
                    raise refuse(f"{name} in it has {member.size:,} bytes, not {members[name]:,}")
                content, path = source.read(), folder / PurePosixPath(name).name
                with writing(path):
                    path.write_bytes(content)
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise refuse(f"not a sound archive ({error})") from None
    if missing:
        raise refuse(f"holds no {', '.join(missing)}")
