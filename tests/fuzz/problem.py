"""A fuzzed problem as data: what is compiled (`Structure`) and what is put into it (`Values`).

Nothing here knows JAX, pullback or mpmath: `build.py` makes the problem for pullback, and
`reference.py` evaluates it in arbitrary precision, from the same description.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LARGEST = {"float64": 308.2, "float32": 38.5, "float16": 4.8, "bfloat16": 38.5}
"""The decimal logarithm of the largest number."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of the parameters: `float` and `numpy` leaves move, all others are carried."""

    name: str
    kind: str
    shape: tuple[int, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether the leaf is differentiated; one with a 0 in its shape has no entries."""
        return self.kind in ("float", "numpy")

    @property
    def size(self) -> int:
        """The number of entries."""
        return int(np.prod(self.shape, dtype=int))


@dataclass(frozen=True)
class Structure:
    """Everything that a compiled program depends on."""

    dtype: str
    samples: int
    """0 for a model without data."""
    inputs: int
    outputs: int
    """The length of the output vector of one sample."""
    program: tuple[tuple, ...]
    leaves: tuple[Leaf, ...]
    layout: Any
    """Nested ("dict" | "list" | "tuple", ...) of names of leaves."""
    metric: str
    loss: str | None
    measure: str = "mean"
    solver: str = "SVD"
    inverse: str = "pseudo"
    rank: int = 0
    gauge: str | None = None
    others: int = 0
    """How many samples the metric is averaged over, if they are not those of the loss."""

    @property
    def moving(self) -> list[Leaf]:
        """The leaves that are differentiated."""
        return [leaf for leaf in self.leaves if leaf.moves]

    @property
    def size(self) -> int:
        """P."""
        return sum(leaf.size for leaf in self.moving)


@dataclass
class Values:
    """Numbers, exactly as rounded in the dtype of the structure; arrays are float64 or int."""

    params: dict[str, np.ndarray]
    x: np.ndarray | None = None
    others: np.ndarray | None = None
    """The inputs that the metric is averaged over."""
    y: np.ndarray | None = None
    w: np.ndarray | None = None
    damping: float = 0.0
    rtol: float = 0.0
    gauge: np.ndarray | None = None
    constants: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Problem:
    """A structure, its values, and where the two come from."""

    structure: Structure
    values: Values
    scenario: tuple[str, ...] = ()
    seed: int = 0
    index: int = 0

    def with_values(self, **changes: Any) -> "Problem":
        """Return the problem with some values replaced."""
        return replace(self, values=replace(self.values, **changes))


def rounded(x: Any, dtype: str) -> np.ndarray:
    """Return numbers rounded to a dtype, as float64."""
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            # To the nearest, ties to even, on the bits of the float32.
            bits = np.atleast_1d(x.astype(np.float32)).view(np.uint32).astype(np.uint64)
            up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            short = up.astype(np.uint32).view(np.float32).reshape(x.shape)
            return np.where(np.isfinite(x), short, x).astype(np.float64)
        return x.astype(dtype).astype(np.float64)


def dump(problem: Problem) -> str:
    """Return a problem as JSON."""

    def plain(x):
        if isinstance(x, np.ndarray):
            kind = "int" if x.dtype.kind == "i" else "float"
            numbers = [int(v) if kind == "int" else float(v).hex() for v in x.ravel()]
            return {"array": numbers, "shape": list(x.shape), "kind": kind}
        if isinstance(x, dict):
            return {k: plain(v) for k, v in x.items()}
        if isinstance(x, list | tuple):
            return [plain(v) for v in x]
        return x

    return json.dumps(plain(asdict(problem)))


def load(text: str) -> Problem:
    """Return the problem that `dump` wrote."""

    def arrays(x):
        if isinstance(x, dict) and set(x) == {"array", "shape", "kind"}:
            read = int if x["kind"] == "int" else float.fromhex
            dtype = np.int64 if x["kind"] == "int" else np.float64
            return np.array([read(v) for v in x["array"]], dtype).reshape(x["shape"])
        return {k: arrays(v) for k, v in x.items()} if isinstance(x, dict) else x

    def tuples(x):
        return tuple(tuples(v) for v in x) if isinstance(x, list) else x

    data = json.loads(text)
    leaves = tuple(
        Leaf(leaf["name"], leaf["kind"], tuple(leaf["shape"]))
        for leaf in data["structure"].pop("leaves")
    )
    given = {k: tuples(v) for k, v in data["structure"].items()}
    structure = Structure(leaves=leaves, **given)
    # What was found before a field was added has none of it.
    read = {f.name: data["values"].get(f.name) for f in fields(Values)}
    values = Values(**{name: arrays(x) for name, x in read.items()})
    return Problem(structure, values, tuple(data["scenario"]), data["seed"], data["index"])
