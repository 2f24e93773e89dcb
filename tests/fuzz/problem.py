"""A fuzzed problem as data: what is compiled (`Structure`) and what is put into it (`Values`).

Nothing here knows JAX, pullback or mpmath: `build.py` makes the problem for pullback, and
`reference.py` evaluates it in arbitrary precision, from the same description.
"""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LARGEST = {"float64": 308.2, "float32": 38.5, "float16": 4.8, "bfloat16": 38.5}
"""The decimal logarithm of the largest number."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of the parameters: `float`, `numpy`, `complex` move, all others are carried."""

    name: str
    kind: str
    shape: tuple[int, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether the leaf is differentiated; one with a 0 in its shape has no entries."""
        return self.kind in ("float", "numpy", "complex")

    @property
    def size(self) -> int:
        """The number of real coordinates: of a complex leaf all real parts, then the others."""
        return int(np.prod(self.shape, dtype=int)) * (2 if self.kind == "complex" else 1)


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
    holomorphic: bool = False
    """Whether the model is declared to be that."""
    terms: "tuple[Structure, ...]" = ()
    """The terms, which have the dtype, the leaves and the layout in common with the whole."""
    kind: str = "plain"
    """What is drawn: `terms`, `complex`, scores with a large `mean`, or none of these."""

    @property
    def is_complex(self) -> bool:
        """Whether a leaf is complex."""
        return any(leaf.kind == "complex" for leaf in self.leaves)

    @property
    def complex_outputs(self) -> bool:
        """Whether the model returns complex numbers; `outputs` counts both parts of each."""
        return any(op[0] == "pairs" for op in self.program)

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
    terms: "list[Values] | None" = None
    """Those of each term; the parameters are those of the whole."""
    weights: np.ndarray | None = None
    """The weight of each term."""


class Term(NamedTuple):
    """One term of a problem, or the problem itself if it has no terms."""

    structure: Structure
    values: Values
    weight: float


@dataclass
class Problem:
    """A structure, its values, and where the two come from."""

    structure: Structure
    values: Values
    scenario: tuple[str, ...] = ()
    seed: int = 0
    index: int = 0

    @property
    def parts(self) -> list[Term]:
        """The terms; the whole, with the weight one, if there are none."""
        if not self.structure.terms:
            return [Term(self.structure, self.values, 1.0)]
        assert self.values.terms is not None
        assert self.values.weights is not None
        weights = [float(w) for w in self.values.weights]
        return list(map(Term, self.structure.terms, self.values.terms, weights))

    @property
    def present(self) -> list[Term]:
        """The terms whose weight is not zero."""
        return [part for part in self.parts if part.weight != 0]

    def with_values(self, **changes: Any) -> "Problem":
        """Return the problem with some values replaced."""
        return replace(self, values=replace(self.values, **changes))


def rounded(x: Any, dtype: str) -> np.ndarray:
    """Return numbers rounded to a dtype, as float64."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return rounded(x.real, dtype) + 1j * rounded(x.imag, dtype)
    x = x.astype(np.float64)
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
            kind = {"i": "int", "c": "complex"}.get(x.dtype.kind, "float")
            flat = x.ravel()
            if kind == "complex":
                flat = np.stack([flat.real, flat.imag], axis=1).ravel()
            numbers = [int(v) if kind == "int" else float(v).hex() for v in flat]
            return {"array": numbers, "shape": list(x.shape), "kind": kind}
        if isinstance(x, dict):
            return {k: plain(v) for k, v in x.items()}
        if isinstance(x, list | tuple):
            return [plain(v) for v in x]
        return x

    return json.dumps(plain(asdict(problem)))


def load(text: str) -> Problem:
    """Return the problem that `dump` wrote."""
    data = json.loads(text)
    structure, values = _structure(data["structure"]), _values(data["values"])
    for term in values.terms or []:
        term.params = values.params
    return Problem(structure, values, tuple(data["scenario"]), data["seed"], data["index"])


def _structure(data: dict[str, Any]) -> Structure:
    def tuples(x):
        return tuple(tuples(v) for v in x) if isinstance(x, list) else x

    leaves = tuple(Leaf(x["name"], x["kind"], tuple(x["shape"])) for x in data.pop("leaves"))
    terms = tuple(_structure(term) for term in data.pop("terms", ()))
    given = {k: tuples(v) for k, v in data.items()}
    return Structure(leaves=leaves, terms=terms, **given)


def _values(data: dict[str, Any]) -> Values:
    def arrays(x):
        if isinstance(x, dict) and set(x) == {"array", "shape", "kind"}:
            read = int if x["kind"] == "int" else float.fromhex
            dtype = np.int64 if x["kind"] == "int" else np.float64
            found = np.array([read(v) for v in x["array"]], dtype)
            if x["kind"] == "complex":
                found = found.view(np.complex128)
            return found.reshape(x["shape"])
        return {k: arrays(v) for k, v in x.items()} if isinstance(x, dict) else x

    # What was found before a field was added has none of it.
    read = {f.name: data.get(f.name) for f in fields(Values)}
    terms = read.pop("terms")
    found = Values(**{name: arrays(x) for name, x in read.items()})
    found.terms = None if terms is None else [_values(term) for term in terms]
    return found
