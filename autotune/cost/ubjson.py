"""Checks an XGBoost model in UBJSON before the library sees it: a file from elsewhere is untrusted, and the library
is not hardened. Understands what XGBoost writes (objects, typed arrays, strings, numbers), and only that.

UBJSON: https://ubjson.org, draft 12. The names inside are those of XGBoost's model schema.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_DEEPEST = 24
_MOST_NODES = 1 << 20


class Malformed(ValueError):
    """Not a model that XGBoost would write for us."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise Malformed("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def marker(self) -> str:
        return self.take(1).decode("latin-1")

    def number(self, kind: str) -> Any:
        if kind not in _NUMBERS:
            raise Malformed(f"a number of type {kind!r}")
        form = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(form.itemsize), form)[0].item()

    def length(self) -> int:
        count = self.number(self.marker())
        if not isinstance(count, int) or count < 0:
            raise Malformed("a negative length")
        return count

    def text(self) -> str:
        try:
            return self.take(self.length()).decode()
        except UnicodeDecodeError:
            raise Malformed("a text that is no UTF-8") from None

    def value(self, kind: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise Malformed("it is nested too deeply")
        if kind == "{":
            return self.object(depth)
        if kind == "[":
            return self.array(depth)
        if kind == "S":
            return self.text()
        if kind in "TFZ":
            return {"T": True, "F": False, "Z": None}[kind]
        return self.number(kind)

    def object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.data[self.at : self.at + 1] != b"}":
            name = self.text()
            if name in found:
                raise Malformed(f"{name!r} twice")
            found[name] = self.value(self.marker(), depth + 1)
        self.at += 1
        return found

    def array(self, depth: int) -> Any:
        kind = ""
        if self.data[self.at : self.at + 1] == b"$":
            self.at += 1
            kind = self.marker()
        if self.data[self.at : self.at + 1] == b"#":
            self.at += 1
            count = self.length()
            if kind:
                if kind not in _NUMBERS:
                    raise Malformed(f"an array of type {kind!r}")
                form = np.dtype(_NUMBERS[kind])
                return np.frombuffer(self.take(count * form.itemsize), form)
            if count > len(self.data):
                raise Malformed("an array longer than the file")
            return [self.value(self.marker(), depth + 1) for _ in range(count)]
        if kind:
            raise Malformed("a typed array without a length")
        items = []
        while self.data[self.at : self.at + 1] != b"]":
            items.append(self.value(self.marker(), depth + 1))
        self.at += 1
        return items


def check(data: bytes, features: int) -> int:
    """The number of trees of a regression model with that many features; raises `Malformed` in a few words."""
    reader = _Reader(data)
    if reader.marker() != "{":
        raise Malformed("no object")
    whole = reader.object(0)
    if reader.at != len(data):
        raise Malformed("something after its end")
    try:
        learner = whole["learner"]
        if learner["gradient_booster"]["name"] != "gbtree" or learner["objective"]["name"] not in OBJECTIVES:
            raise Malformed("another kind of model")
        if int(learner["learner_model_param"]["num_feature"]) != features:
            raise Malformed(f"made for {learner['learner_model_param']['num_feature']} features, not {features}")
        model = learner["gradient_booster"]["model"]
        trees = model["trees"]
        if int(model["gbtree_model_param"]["num_trees"]) != len(trees) or len(model["tree_info"]) != len(trees):
            raise Malformed("a wrong number of trees")
        if len(trees) and (min(model["tree_info"]) != 0 or max(model["tree_info"]) != 0):
            raise Malformed("trees of several outputs")
        for tree in trees:
            _check_tree(tree, features)
        return len(trees)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, Malformed):
            raise
        raise Malformed(f"something is missing or of another type: {error}") from None


OBJECTIVES = ("reg:squarederror", "binary:logistic")


def _check_tree(tree: dict[str, Any], features: int) -> None:
    left, right, parents = (np.asarray(tree[name], np.int64) for name in ("left_children", "right_children", "parents"))
    index, values = np.asarray(tree["split_indices"], np.int64), np.asarray(tree["split_conditions"], np.float64)
    count = int(tree["tree_param"]["num_nodes"])
    if not 0 < count <= _MOST_NODES or int(tree["tree_param"].get("num_deleted", 0)) != 0:
        raise Malformed(f"a tree of {count} nodes")
    sizes = {len(left), len(right), len(parents), len(index), len(values), len(tree["default_left"])}
    sizes |= {len(tree[name]) for name in ("loss_changes", "sum_hessian", "base_weights", "split_type")}
    if sizes != {count} or int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise Malformed("arrays of other lengths than its nodes")
    if len(tree["categories"]) or np.any(np.asarray(tree["split_type"]) != 0):
        raise Malformed("categorical splits")
    inner = left >= 0
    here = np.arange(count)
    down = (left[inner] > here[inner]) & (right[inner] > here[inner]) & (left[inner] < count) & (right[inner] < count)
    if not down.all() or not (right[~inner] < 0).all():
        raise Malformed("children that are no nodes below theirs")
    if not ((index[inner] >= 0) & (index[inner] < features)).all() or not np.isfinite(values).all():
        raise Malformed("splits by no feature, or at no number")
    children = np.concatenate([left[inner], right[inner]])
    if len(np.unique(children)) != len(children) or len(children) != count - 1:
        raise Malformed("nodes that are not one tree")
    if np.any(parents[children] != np.concatenate([here[inner], here[inner]])):
        raise Malformed("parents that are not those of the children")
