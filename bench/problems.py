"""The workloads as NumPy arrays and numbers, the same in every environment: parameters, batch,
damping, and what the floor needs.

Every loss is a mean over samples: the negative log-likelihood of a softmax (metric: the Fisher
metric of the logits) or half the squared error (metric: Euclidean). Wave functions have the mean of
2 (e - ē) log ψ, with local energies e (metric: the covariance over the samples). The result asked
for is v = (G + λ)⁻¹ g, flattened leaf by leaf in the order of the nested lists below, complex
numbers as pairs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Layer:
    """One product with a parameter: `positions` rows of `inputs` numbers meet a matrix `inputs ×
    outputs` and a bias, per sample.
    """

    inputs: int
    outputs: int
    positions: int = 1


@dataclass(frozen=True)
class Workload:
    """What is timed."""

    name: str
    title: str
    kind: str
    """`mlp`, `laplacian`, `conv`, `encoder`, `rbm`, `complex` or `product`: which model of
    `models.py`.
    """
    sizes: tuple[int, ...]
    samples: int
    dtype: str
    damping: float
    softmax: bool
    scores: bool = False
    """Whether the outputs are log-amplitudes, whose derivatives are centred over the samples."""

    @property
    def classes(self) -> int:
        """C, the number of outputs of one sample."""
        return self.sizes[-1]

    @property
    def root_size(self) -> int:
        """The rank of the metric of one sample: C - 1 for a softmax, 2 C of complex outputs."""
        if self.dtype == "complex128":
            return 2 * self.classes
        return self.classes - 1 if self.softmax else self.classes

    @property
    def rows(self) -> int:
        """m."""
        return self.samples * self.root_size

    @property
    def tolerance(self) -> float:
        """The largest relative error at which a time is taken at all."""
        return 1e-3


_MLPS = (
    Workload(
        "W1",
        "softmax MLP 64-256-256-10, N = 256, float32",
        "mlp",
        (64, 256, 256, 10),
        256,
        "float32",
        1e-3,
        True,
    ),
    Workload(
        "W2",
        "tanh MLP 2-64-64-64-1, N = 1000, float64",
        "mlp",
        (2, 64, 64, 64, 1),
        1000,
        "float64",
        1e-6,
        False,
    ),
    Workload(
        "W2p",
        "the Laplacian of W2's network, N = 1000, float64",
        "laplacian",
        (2, 64, 64, 64, 1),
        1000,
        "float64",
        1e-6,
        False,
    ),
    Workload(
        "P5",
        "the Laplacian of a tanh MLP 5-64-64-48-48-1, N = 1000, float64",
        "laplacian",
        (5, 64, 64, 48, 48, 1),
        1000,
        "float64",
        1e-6,
        False,
    ),
    Workload(
        "P10",
        "the Laplacian of a tanh MLP 10-256-256-128-128-1 (that of F'), N = 150, float64",
        "laplacian",
        (10, 256, 256, 128, 128, 1),
        150,
        "float64",
        1e-3,
        False,
    ),
    Workload(
        "W3",
        "softmax MLP 20-32-32-10, N = 20 000, float32",
        "mlp",
        (20, 32, 32, 10),
        20_000,
        "float32",
        1e-3,
        True,
    ),
    Workload(
        "W4",
        "softmax MLP 784-1500-1500-10, N = 512, float32",
        "mlp",
        (784, 1500, 1500, 10),
        512,
        "float32",
        1e-3,
        True,
    ),
)
_OTHERS = (
    Workload(
        "W5",
        "product of L square matrices, D = 100, float64",
        "product",
        (100,),
        1,
        "float64",
        0.0,
        False,
    ),
    Workload(
        "R1",
        "conv net 28×28×1, 3×3 conv 16 and 32, stride 2, dense 10, N = 256, float32",
        "conv",
        (1, 16, 32, 10),
        256,
        "float32",
        1e-3,
        True,
    ),
    Workload(
        "R2",
        "transformer encoder, 2 layers, 4 heads, width 64, sequence 32, 10 classes, N = 128, "
        "float32",
        "encoder",
        (64, 256, 10),
        128,
        "float32",
        1e-3,
        True,
    ),
)
_WAVES = (
    Workload(
        "V1",
        "log-amplitudes of 16 spins, tanh MLP 16-128-128-1, N = 1024, float64",
        "mlp",
        (16, 128, 128, 1),
        1024,
        "float64",
        1e-3,
        False,
        scores=True,
    ),
    Workload(
        "V2",
        "log-amplitudes of 16 spins, RBM with 4 hidden units per spin, N = 1024, float64",
        "rbm",
        (16, 64, 1),
        1024,
        "float64",
        1e-3,
        False,
        scores=True,
    ),
    Workload(
        "V3",
        "holomorphic tanh MLP 16-64-64-1, N = 512, complex128",
        "complex",
        (16, 64, 64, 1),
        512,
        "complex128",
        1e-3,
        False,
    ),
)
_LARGE = Workload(
    "W1-4096",
    "W1 with N = 4096 (m = 36 864)",
    "mlp",
    (64, 256, 256, 10),
    4096,
    "float32",
    1e-3,
    True,
)
WORKLOADS = {w.name: w for w in (*_MLPS, *_OTHERS, *_WAVES, _LARGE)}
TABLES = ("W1", "W2", "W2p", "P5", "P10", "W3", "W4", "W5", "R1", "R2", "V1", "V2", "V3")
"""The workloads that get a table of their own."""
GROUPS = {"VMC": ("V1", "V2", "V3")}
"""Names for several of them."""


def find(name: str) -> Workload:
    """A workload by name, or a softmax MLP by widths and samples, e.g. `mlp-16-32-10@128`."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    kind, *widths = name.partition("@")[0].split("-")
    sizes = tuple(map(int, widths))
    samples = int(name.partition("@")[2])
    return Workload(
        name,
        f"softmax MLP {'-'.join(widths)}, N = {samples}, float32",
        kind,
        sizes,
        samples,
        "float32",
        1e-3,
        True,
    )


IMAGE = 28
SEQUENCE = 32
HEADS = 4
DEPTHS = (3, 4)
"""The sides of the images of R1; the sequence and the heads of R2; the depths of W5."""
REPEATS = 10
"""How many products are made in one timed loop."""


def mlp_params(sizes, normal) -> list:
    """Weights `(in, out)` of variance 1/in, and small biases."""
    return [[normal(a, b) / a**0.5, 0.1 * normal(b)] for a, b in pairwise(sizes)]


def _conv_params(sizes, normal) -> list:
    kernels = [
        [normal(3, 3, a, b) / (9 * a) ** 0.5, 0.1 * normal(b)] for a, b in pairwise(sizes[:-1])
    ]
    return [*kernels, *mlp_params(((IMAGE // 4) ** 2 * sizes[-2], sizes[-1]), normal)]


def _encoder_params(sizes, normal) -> list:
    width, hidden, classes = sizes

    def norm():
        return [1 + 0.1 * normal(width), 0.1 * normal(width)]

    def block():
        # Normalisation, query, key, value, output; normalisation, the two layers of the MLP.
        projections = [mlp_params((width, width), normal)[0] for _ in range(4)]
        return [
            norm(),
            *projections,
            norm(),
            *mlp_params((width, hidden), normal),
            *mlp_params((hidden, width), normal),
        ]

    return [block(), block(), norm(), *mlp_params((width, classes), normal)]


def _rbm_params(sizes, normal) -> list:
    """Weights and biases of the hidden units, and the visible biases."""
    spins, hidden, _ = sizes
    return [*mlp_params((spins, hidden), normal), 0.1 * normal(spins)]


_PARAMS: dict[str, Callable] = {
    "mlp": mlp_params,
    "rbm": _rbm_params,
    "complex": mlp_params,
    "laplacian": mlp_params,
    "conv": _conv_params,
    "encoder": _encoder_params,
}


def make(workload: Workload) -> tuple[list, tuple[np.ndarray, np.ndarray]]:
    """Parameters (nested lists of arrays) and batch: random weights, inputs and labels."""
    rng = np.random.Generator(np.random.PCG64(0))

    def normal(*shape):
        found = rng.standard_normal(shape)
        if workload.dtype == "complex128":
            return (found + 1j * rng.standard_normal(shape)) / 2**0.5
        return found.astype(workload.dtype)

    if workload.kind == "product":
        side = workload.sizes[0]
        layers = [np.eye(side) + 0.3 * normal(side, side) / side**0.5 for _ in range(max(DEPTHS))]
        return layers, (np.zeros(1), normal(side, side))
    params = _PARAMS[workload.kind](workload.sizes, normal)
    if workload.softmax:
        shape = {"conv": (IMAGE, IMAGE, 1), "encoder": (SEQUENCE, workload.sizes[0])}.get(
            workload.kind, (workload.sizes[0],)
        )
        return params, (
            normal(workload.samples, *shape),
            rng.integers(0, workload.classes, workload.samples).astype("int32"),
        )
    if workload.scores:
        spins = rng.choice((-1.0, 1.0), (workload.samples, workload.sizes[0]))
        energies = normal(workload.samples)
        return params, (spins, energies - energies.mean())
    if workload.kind == "complex":
        return params, (normal(workload.samples, workload.sizes[0]), normal(workload.samples, 1))
    # Regression on the unit square: points spread evenly, a smooth target.
    x = rng.random((workload.samples, workload.sizes[0])).astype(workload.dtype)
    return params, (x, np.prod(np.sin(np.pi * x), axis=1, keepdims=True))


def leaves(tree: Any) -> Iterator[np.ndarray]:
    """The arrays of nested lists, in order."""
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def flat(tree: Any) -> np.ndarray:
    """The arrays of nested lists as one float64 vector; complex numbers are pairs."""
    arrays = [np.asarray(x).ravel() for x in leaves(tree)]
    wide = [x.astype(complex if np.iscomplexobj(x) else float) for x in arrays]
    return np.concatenate([x.view(float) for x in wide])


def layers(workload: Workload) -> list[Layer]:
    """The products with a parameter, from the input to the output; scales and shifts of
    normalisations are left out.
    """
    sizes = workload.sizes
    if workload.kind == "conv":
        first = (IMAGE // 2) ** 2
        second = (IMAGE // 4) ** 2
        return [
            Layer(9 * sizes[0], sizes[1], first),
            Layer(9 * sizes[1], sizes[2], second),
            Layer(second * sizes[2], sizes[3]),
        ]
    if workload.kind == "encoder":
        width, hidden, classes = sizes
        block = [
            *[Layer(width, width, SEQUENCE)] * 4,
            Layer(width, hidden, SEQUENCE),
            Layer(hidden, width, SEQUENCE),
        ]
        return [*block, *block, Layer(width, classes)]
    if workload.kind == "rbm":
        return [Layer(sizes[0], sizes[1]), Layer(sizes[0], 1)]
    # The Laplacian in forward mode meets each weight with the value, the d first and the sum of the
    # d second derivatives.
    positions = 2 + sizes[0] if workload.kind == "laplacian" else 1
    return [Layer(a, b, positions) for a, b in pairwise(sizes)]
