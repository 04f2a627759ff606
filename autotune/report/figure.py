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
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: smaller, and it can be searched
    matplotlib.rcParams["svg.hashsalt"] = "autotune"  # the same figure is the same file
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, out: str) -> None:
    """Writes the figure; the file's suffix says how. Raises `InvalidInput` when that cannot be done."""
    try:
        figure.savefig(out, metadata={"Date": None} if out.endswith(".svg") else None)
    except ValueError as error:  # a suffix that it does not know
        raise InvalidInput(f"{out} cannot be written: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise InvalidInput(f"{out} cannot be written: {error.strerror}") from None
