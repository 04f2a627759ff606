"""One canonical JSON and one hash for everything that is a key.

Two processes, machines or databases that describe the same thing must get the same key, so there is
one spelling: sorted names, no spaces, UTF-8, no NaN or infinity, tuples written as arrays.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
    from typing import Any
else:
    try:  # CPython's own, without the 3 ms that loading OpenSSL costs a fresh process
        from _sha2 import sha256
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

KEY_LENGTH = 32
"""Hex digits kept of the sha256: 128 bits, collision-free for any database that fits on a disk."""


def canonical_json(value: Any) -> str:
    """`value` (dicts with string keys, tuples, lists, str, int, float, bool, None) as canonical JSON.

    Raises ValueError on NaN or infinity, TypeError on anything that JSON has no word for.
    """
    return _ENCODER.encode(value)


def content_key(value: Any) -> str:
    """The first 32 hex digits of sha256 over the canonical JSON of `value`."""
    return sha256(canonical_json(value).encode()).hexdigest()[:KEY_LENGTH]


def text_key(text: str) -> str:
    """Like `content_key`, for text that already is canonical (a source file, a canonical JSON)."""
    return sha256(text.encode()).hexdigest()[:KEY_LENGTH]
