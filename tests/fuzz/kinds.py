"""Structures of kinds of their own: several terms, complex numbers, scores with a large mean."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .generate import COMMON, LOSSES_OF_TARGETS, NEED_DATA, model, plain, tree
from .geometry import METRICS
from .problem import Leaf, Structure

MEANS = {"float64": (4, 26), "float32": (3, 14), "float16": (2, 6), "bfloat16": (2, 4)}
"""Powers of two: how much larger than the spread a mean may be."""


def several(rng) -> Structure:
    """Return two or three terms that share parameters: a trunk, or all of a model."""
    whole = replace(plain(rng), others=0, kind="terms")
    first = _part(rng, whole, whole.program, whole.metric, whole.outputs)
    ends = [i for i, op in enumerate(whole.program) if op[0] == "affine"]
    trunk, (_, names, _) = whole.program[: ends[-1]], whole.program[ends[-1]]
    used = [leaf for leaf in whole.leaves if leaf.name.startswith("p")]
    width = next(leaf.shape[1] for leaf in used if leaf.name == names[0])
    parts = [first]
    for _ in range(int(rng.integers(1, 3))):
        metric = str(rng.choice([*METRICS, *COMMON]))
        q = int(rng.choice(METRICS[metric].outputs))
        program = whole.program
        if q != whole.outputs or metric == "graph" or rng.random() < 0.5:
            used.append(Leaf(f"p{len(used)}", "float", (q, width)))
            program = (*trunk, ("affine", (used[-1].name,), None))
        if metric == "graph":
            program = (*program, ("softmax",))
        parts.append(_part(rng, whole, program, metric, q))
    leaves, layout = tree(rng, used)
    parts = [replace(part, leaves=leaves, layout=layout) for part in parts]
    return replace(parts[0], terms=tuple(parts))


def _part(rng, whole: Structure, program: tuple, metric: str, q: int) -> Structure:
    """Return a term with a batch, a loss and a measure of its own."""
    pick = lambda *items: items[rng.integers(len(items))]
    data = rng.random() > 0.1 or metric in NEED_DATA
    loss = pick(*LOSSES_OF_TARGETS[METRICS[metric].targets])
    if METRICS[metric].likelihood is not None and data and rng.random() < 0.65:
        loss = None
    measure = pick("mean", "sum", "weights") if data else "mean"
    samples = int(pick(1, 2, 3, 4)) if data else 0
    return replace(
        whole, program=program, metric=metric, outputs=q, samples=samples, loss=loss,
        measure=measure,
    )  # fmt: skip


def in_complex_numbers(rng) -> Structure:
    """Return complex leaves, or complex and real ones, with complex or real outputs."""
    given = plain(rng)
    dtype = "float32" if given.dtype in ("float32", "float16") else "float64"
    holomorphic = bool(rng.random() < 0.3)
    real = not holomorphic and rng.random() < 0.4
    q = given.outputs
    if not real:
        metric = str(rng.choice(["euclidean", "euclidean", "scores"]))
        q, outputs = (1, 2) if metric == "scores" else (int(rng.integers(1, 3)), 0)
        given = replace(
            given, metric=metric, outputs=outputs or 2 * q, others=0,
            loss=str(rng.choice(["square", "linear"])), samples=given.samples or 3,
        )  # fmt: skip
    program, leaves = model(rng, given.inputs, q)
    # The logarithm in a softplus has branches.
    smooth = lambda op: ("act", "sin") if op == ("act", "softplus") else op
    program = tuple(map(smooth, program))
    if not holomorphic and rng.random() < 0.3:
        program = (*program, ("conj",))
    if real:
        program = (*program, (str(rng.choice(["real", "abs2"])),))
        program += (("softmax",),) if given.metric == "graph" else ()
    else:
        program = (*program, ("pairs",))
    every = holomorphic or rng.random() < 0.5
    turn = lambda leaf: replace(leaf, kind="complex")
    leaves = [
        turn(leaf) if i == 0 or every or rng.random() < 0.5 else leaf
        for i, leaf in enumerate(leaves)
    ]
    leaves, layout = tree(rng, leaves)
    if holomorphic:
        leaves = tuple(turn(leaf) if leaf.moves else leaf for leaf in leaves)
    return replace(
        given, dtype=dtype, program=program, leaves=leaves, layout=layout, kind="complex",
        holomorphic=holomorphic,
    )  # fmt: skip


def far_from_zero(rng) -> Structure:
    """Return scores with a mean that is larger than their spread.

    All log-probabilities have a multiple of the sum of the parameters in common, a normaliser, or
    the samples are near one another (`generate.py`).
    """
    given = plain(rng)
    program, leaves = model(rng, given.inputs, 1)
    if rng.random() < 0.6:
        power = int(rng.integers(*MEANS[given.dtype]))
        program = (*program, ("shared", power, *(leaf.name for leaf in leaves)))
    leaves, layout = tree(rng, leaves)
    measure = given.measure if given.samples else "mean"
    return replace(
        given, program=program, leaves=leaves, layout=layout, metric="scores", outputs=1,
        loss=str(rng.choice(["linear", "linear", "linear", "square"])), others=0, kind="mean",
        samples=max(given.samples, 2), measure=measure,
    )  # fmt: skip


KINDS: dict[str, Callable[[np.random.Generator], Structure]] = {
    "terms": several,
    "complex": in_complex_numbers,
    "mean": far_from_zero,
}
