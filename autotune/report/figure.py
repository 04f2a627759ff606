"""Pictures of reports: matplotlib, drawing to files only."""

from __future__ import annotations

from typing import Any

from autotune.errors import InvalidInput, Unavailable


def pyplot() -> Any:
    """matplotlib's. Raises `Unavailable` with the command that installs it."""
    try:
        import matplotlib
    except ImportError:
        raise Unavailable("this needs matplotlib: pip install 'autotune[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, out: str) -> None:
    """Writes the figure; the file's suffix says how. Raises `InvalidInput` when that cannot be done."""
    try:
        figure.savefig(out)
    except ValueError as error:  # a suffix that it does not know
        raise InvalidInput(f"{out} cannot be written: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise InvalidInput(f"{out} cannot be written: {error.strerror}") from None
