"""Text files of other tools, as they are or compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from typing import IO

from autotune.errors import InvalidInput, Unavailable

MOST_BYTES = 1 << 30
"""Of a text, unpacked: a small file may claim to hold terabytes."""

_OPEN: dict[str, Callable[..., IO[bytes]]] = {".xz": lzma.open, ".bz2": bz2.open, ".gz": gzip.open}  # type: ignore[dict-item]  # they return files of their own kinds


def read_text(path: str) -> str:
    """The text of a file, unpacked by its suffix. Raises `Unavailable` where it cannot be read, `InvalidInput` where it
    is no text of UTF-8, or too long.
    """
    opened: Callable[..., IO[bytes]] = _OPEN.get(os.path.splitext(path)[1], open)
    try:
        with opened(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInput(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise InvalidInput(f"{path} holds more than {MOST_BYTES >> 30} GiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is no UTF-8 text, at byte {error.start:,}") from None
