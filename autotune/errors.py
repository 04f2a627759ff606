"""Exceptions, named by what the caller does next.

Failure of a *candidate* is never an exception: it is a `Status` in a `Measurement`.
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Base of everything this package raises on purpose; its text is one sentence for people."""


class InvalidInput(AutotuneError, ValueError):
    """The request itself is wrong: correct it and call again."""


class Unavailable(AutotuneError, RuntimeError):
    """Something this needs is missing or away (a package, a compiler, a file, a server): provide it and retry."""


class Incompatible(AutotuneError, RuntimeError):
    """Data of another version or kind: upgrade one side; retrying will not help."""
