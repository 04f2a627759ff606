"""Reading the small text files of /proc and /sys. A file that is missing or unreadable is empty text.

Plain `os` calls: a profile takes some fifty files, and it is on the path of the first lookup.
"""

from __future__ import annotations

import os


def read(path: str, limit_bytes: int = 4096) -> str:
    """The file's first `limit_bytes`, stripped; "" when it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except (OSError, ValueError):
        return ""
    try:
        return os.read(handle, limit_bytes).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(handle)


def read_until(path: str, mark: bytes = b"") -> str:
    """The file up to the first `mark`, or all of it; "" when it cannot be read."""
    data = b""
    try:
        handle = os.open(path, os.O_RDONLY)
    except (OSError, ValueError):
        return ""
    try:
        while chunk := os.read(handle, 1 << 14):  # /proc hands out a page or so at a time
            data += chunk
            if mark and mark in data:
                data = data[: data.index(mark)]
                break
    except OSError:
        pass
    finally:
        os.close(handle)
    return data.decode("utf-8", "replace")


def number(path: str) -> int | None:
    """The file as one non-negative decimal number; None when it is anything else."""
    text = read(path)
    return int(text) if text.isascii() and text.isdigit() else None


def cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers of a list such as "0-3,8,10-11", ascending; parts that are no such thing are left out."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isascii() and low.isdigit()):
            continue
        if not dash:
            found.add(int(low))
        elif high.isascii() and high.isdigit() and int(high) - int(low) < 1 << 16:
            found.update(range(int(low), int(high) + 1))
    return tuple(sorted(found))
