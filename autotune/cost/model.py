"""A trained model in memory, and its file: one header in JSON, then the boosters in XGBoost's UBJSON, deflated. No
pickle.

    magic line, 8 bytes: length of the header, header, boosters one after another

The header holds the feature list, the range of what was trained on, the categories seen, the calibration, the configs
worth ranking, and sizes and a hash of the boosters. `read` refuses, in one sentence, whatever is not exactly that.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune import registry
from autotune.cost import FORMAT, features
from autotune.cost.features import Array, FeatureSet, Table
from autotune.cost.trees import Trees
from autotune.cost.ubjson import Malformed
from autotune.cost.views import View, place, view
from autotune.errors import Incompatible, Unavailable
from autotune.hardware import probe
from autotune.types import Config, HardwareProfile, Workload

MAGIC = b"autotune cost model\n"
MOST_BYTES = 64 << 20
COVERAGE = 0.9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Residuals (label − prediction) / scale on shapes not seen, of what would have been served; sorted.

    `shapes`: layer shapes they are of. Workloads of one shape err alike, so quantiles are taken as if there were
    only that many residuals.
    """

    residuals: tuple[float, ...]
    shapes: int

    def centre(self, mean: float, scale: float) -> float:
        """The prediction less its bias: what is picked for being predicted fast is on average a little slower."""
        return mean + scale * float(np.median(self.residuals))

    def bounds(self, mean: float, scale: float) -> tuple[float, float]:
        """Split-conformal interval of the label, half of what is left out on each side.

        Vovk, Gammerman and Shafer (2005); scaled residuals as in Lei et al., JASA 113 (2018).
        """
        high = min((1 + COVERAGE) / 2 * (self.shapes + 1) / self.shapes, 1.0)
        low, high = np.quantile(self.residuals, (1 - high, high))
        return mean + scale * float(low), mean + scale * float(high)

    def p_below(self, mean: float, scale: float, limit: float = 0.0) -> float:
        """Probability that the label is below `limit`: share of residuals that keep it there, never quite 0 or 1."""
        below = int(np.searchsorted(np.array(self.residuals), (limit - mean) / scale))
        return (below + 0.5) / (len(self.residuals) + 1)


@dataclass(frozen=True)
class Measured:
    """A workload of the training data: where lookup's neighbourhood is. `winners`: indices into the portfolio."""

    workload: Workload
    winners: tuple[int, ...]
    view: View


@dataclass
class OpModel:
    """What a model knows of one op. Not changed once made; may be used from any thread."""

    op: str
    features: FeatureSet
    members: list[Trees]
    default_time: Trees | None  # log(the default's ns / its roofline)
    usable: Trees | None  # probability that a config runs, and within the op's tolerance
    scale: Trees | None  # size of the error to expect
    head: dict[str, Any]
    prior: OpModel | None = None  # source machine's model; the members then add to it
    portfolio: Table = field(init=False)
    measured: tuple[Measured, ...] = field(init=False)

    def __post_init__(self) -> None:
        configs = [Config(str(c["algorithm"]), c["params"], str(c["placement"])) for c in self.head["portfolio"]]
        self.portfolio = Table(configs)
        kind = registry.op(self.op).workload
        made = []
        for entry in self.head["measured"]:
            workload = kind.from_dims(entry["dims"])
            winners = tuple(int(i) for i in entry["winners"])
            if any(not 0 <= index < len(configs) for index in winners):
                raise ValueError("winners that are not in the portfolio")
            made.append(Measured(workload, winners, view(workload)))
        self.measured = tuple(made)
        extras, views = self.features.extras, [entry.view for entry in made]
        self._places = np.array([place(one, extras) for one in views]).reshape(len(views), 4 + len(extras))
        self._categories = {
            name: np.array([one.categories.get(name) for one in views], object)
            for name in ("dtype", "layout", "activation")
        }
        self.calibrations = {
            str(key): Calibration(tuple(map(float, value["residuals"])), int(value["shapes"]))
            for key, value in self.head["calibration"].items()
        }
        numbers = [n for c in self.calibrations.values() for n in c.residuals]
        numbers += [n for pair in self.head["ranges"].values() for n in pair]
        numbers += [self.head[name] for name in ("threshold", "reach", "usable_from", "floor")]
        self._figures = {
            str(key): ({str(name): float(peak) for name, peak in f["peak_gflops"].items()}, float(f["bandwidth_gbs"]))
            for key, f in self.head["figures"].items()
        }
        numbers += [n for peaks, bandwidth in self._figures.values() for n in (*peaks.values(), bandwidth)]
        if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers):
            raise ValueError("figures that are no numbers")
        if not self.members or any(not c.residuals or c.shapes < 1 for c in self.calibrations.values()):
            raise ValueError("no trees, or no calibration")

    def as_trained(self, hardware: HardwareProfile) -> HardwareProfile:
        """The profile with the measured figures it had in training; of another machine, with those probed here."""
        if hardware.key not in self._figures:
            return probe.cached(hardware)
        peaks, bandwidth = self._figures[hardware.key]
        return replace(hardware, peak_gflops=peaks, bandwidth_gbs=bandwidth)

    def predict(self, workload: Workload, hardware: HardwareProfile, table: Table) -> tuple[Floats, Floats]:
        """(mean, size of the error to expect) of log(time / default's) per config."""
        return self.predict_rows(self.features.matrix(workload, hardware, table), workload, hardware, table)

    def predict_rows(
        self, rows: Array, workload: Workload, hardware: HardwareProfile, table: Table | None
    ) -> tuple[Floats, Floats]:
        """The same, for the matrix of these configs. `table` is needed where there is a prior."""
        every = self._each(rows)
        mean = every.mean(axis=0)
        if self.prior is not None:
            assert table is not None
            mean = mean + self.prior.predict(workload, hardware, table)[0]
        expected = every.std(axis=0) if self.scale is None else self.scale.predict(rows).astype(np.float64)
        return mean, np.maximum(expected, float(self.head["floor"]))

    def spread(self, workload: Workload, hardware: HardwareProfile, table: Table) -> Floats:
        """Standard deviation over the members: how much they disagree on each config."""
        found: Floats = self._each(self.features.matrix(workload, hardware, table)).std(axis=0)
        return found

    def _each(self, rows: Array) -> Floats:
        return np.stack([member.predict(rows) for member in self.members]).astype(np.float64)

    def distances(self, seen: View) -> Floats:
        """`views.distance` to each measured workload, all at once."""
        total = np.abs(self._places - place(seen, self.features.extras))
        total[:, 4:] = np.minimum(total[:, 4:], 2.0)
        names = self._categories.keys()
        other = sum((self._categories[name] != seen.categories.get(name) for name in names), np.zeros(len(total)))
        return np.asarray(total.sum(axis=1) + other, np.float64)

    def rough(self, workload: Workload, hardware: HardwareProfile, table: Table) -> Floats:
        """The mean by one member alone, a quarter of the time."""
        found = self.members[0].predict(self.features.matrix(workload, hardware, table)).astype(np.float64)
        return found if self.prior is None else found + self.prior.rough(workload, hardware, table)

    def default_ns(self, workload: Workload, hardware: HardwareProfile) -> float | None:
        """The default's expected time, None where the model does not tell."""
        if self.default_time is None:
            return None
        row = self.features.workload_row(workload, hardware)[None, :]
        return float(math.exp(float(self.default_time.predict(row)[0])) * features.roofline_ns(workload, hardware))

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """The boosters by role, in the order of the file."""
        for member in self.members:
            yield "member", member.blob
        for role, trees in (
            ("default_time", self.default_time),
            ("usable", self.usable),
            ("scale", self.scale),
        ):
            if trees is not None:
                yield role, trees.blob
        if self.prior is not None:
            for role, blob in self.prior.blobs():
                yield f"prior.{role}", blob


@dataclass(frozen=True)
class Model:
    """The op models of one file, by name. `head`: versions, revisions, what it was trained on."""

    ops: Mapping[str, OpModel]
    head: Mapping[str, Any]
    path: str = ""


def write(path: str, ops: Sequence[OpModel], head: Mapping[str, Any]) -> int:
    """Writes the file whole or not at all; returns its size in bytes. Raises `Unavailable` where it cannot be
    written."""
    entries, blobs = [], []
    for one in sorted(ops, key=lambda op: op.op):
        pairs = list(one.blobs())
        entries.append({**_op_json(one), "blobs": [[role, len(blob)] for role, blob in pairs]})
        blobs += [blob for _, blob in pairs]
    body = zlib.compress(b"".join(blobs), 9)
    header = {
        **head,
        "format": FORMAT,
        "features": features.VERSION,
        "ops": entries,
        "sha256": sha256(body).hexdigest(),
    }
    text = json.dumps(header, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
    data = MAGIC + len(text).to_bytes(8, "little") + text + body
    partial = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(partial, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from None
    return len(data)


def _op_json(one: OpModel) -> dict[str, Any]:
    found = {**one.head, "op": one.op, "features": one.features.to_json()}
    if one.prior is not None:
        found["prior"] = _op_json(one.prior)
    return found


def read(path: str) -> Model:
    """The model of a file; the boosters of an op are checked when it is first asked for. Raises `Unavailable` when it
    cannot be read or xgboost is missing, `Incompatible` for anything that is not a whole model of this version."""
    try:
        size = os.path.getsize(path)
        if size > MOST_BYTES:
            raise Incompatible(f"{path} is no cost model: it has {size} bytes")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror or error}") from None
    with _refusals(path):
        return _parsed(data, path)


@contextmanager
def _refusals(path: str) -> Iterator[None]:
    """One sentence for whatever is wrong with a file."""
    try:
        yield
    except Malformed as error:
        raise Incompatible(f"{path} is damaged: a booster in it has {error}; train it again") from None
    except (Incompatible, Unavailable):
        raise
    except Exception as error:  # whatever a hostile header provokes
        told = f"{type(error).__name__}: {error}"[:120].replace("\n", " ")
        raise Incompatible(f"{path} is damaged: its header is not what it should be ({told}); train it again") from None


def _parsed(data: bytes, path: str) -> Model:
    if not data.startswith(MAGIC):
        raise Incompatible(f"{path} is no cost model of this project")
    at = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : at], "little")
    if length > len(data) - at:
        raise Incompatible(f"{path} is truncated: train it again, or copy it again")
    head = json.loads(data[at : at + length], parse_constant=_no_constant)
    if head.get("format") != FORMAT:
        raise Incompatible(f"{path} has format {head.get('format')!r}, and this version reads {FORMAT}: train it again")
    if head.get("features") != features.VERSION:
        raise Incompatible(
            f"{path} was made for features {head.get('features')!r}, and this version has {features.VERSION}: "
            "train it again"
        )
    packed = data[at + length :]
    sizes = [int(size) for entry in head["ops"] for _, size in entry["blobs"]]
    if sha256(packed).hexdigest() != head["sha256"]:
        raise Incompatible(f"{path} is truncated or damaged, its contents do not have their hash: train it again")
    body = zlib.decompressobj().decompress(packed, MOST_BYTES)
    if min(sizes, default=0) < 0 or sum(sizes) != len(body):
        raise Incompatible(f"{path} is damaged, its boosters are not as long as it states: train it again")
    waiting, position = {}, 0
    for entry in head["ops"]:
        blobs: dict[str, list[bytes]] = {}
        for role, size in entry["blobs"]:
            blobs.setdefault(str(role), []).append(body[position : position + size])
            position += size
        waiting[str(entry["op"])] = (entry, blobs)
    return Model(_Ops(waiting, path), {name: value for name, value in head.items() if name != "ops"}, path)


class _Ops(Mapping[str, OpModel]):
    """Op models, made when first asked for: a lookup needs one of them, and has a third of a second for it.

    Asking raises what `read` raises. Two threads may both make one; either serves.
    """

    def __init__(self, waiting: dict[str, tuple[dict[str, Any], dict[str, list[bytes]]]], path: str) -> None:
        self._waiting, self._path = waiting, path
        self._made: dict[str, OpModel] = {}

    def __getitem__(self, op: str) -> OpModel:
        if op not in self._made:
            entry, blobs = self._waiting[op]
            with _refusals(self._path):
                self._made[op] = _op_model(entry, blobs, self._path, "")
        return self._made[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no figure")


def _op_model(entry: dict[str, Any], blobs: dict[str, list[bytes]], path: str, prefix: str) -> OpModel:
    stated = entry["features"]
    if stated["version"] != features.VERSION:
        raise Incompatible(f"{path} was made for features {stated['version']!r}: train it again")
    try:  # columns are found by name
        made = FeatureSet(stated["params"], stated["extras"], stated["categories"]).reordered(stated["names"])
    except ValueError as error:
        raise Incompatible(
            f"{path} was made for other features than this version has ({error}): train it again"
        ) from None
    count = len(made.names)

    def trees(role: str) -> list[Trees]:
        return [Trees(blob, count) for blob in blobs.get(prefix + role, [])]

    head = {name: value for name, value in entry.items() if name not in ("op", "features", "blobs", "prior")}
    prior = None
    if entry.get("prior") is not None:
        if prefix:
            raise Incompatible(f"{path} is damaged: a prior with a prior")
        prior = _op_model(entry["prior"], blobs, path, "prior.")
    return OpModel(
        str(entry["op"]), made, trees("member"), next(iter(trees("default_time")), None),
        next(iter(trees("usable")), None), next(iter(trees("scale")), None), head, prior,
    )  # fmt: skip
