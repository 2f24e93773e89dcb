"""A random problem from a seed: `problem(seed, index)`.

`EACH` consecutive problems share a structure, hence a compiled program, and differ in their values.
"""

import numpy as np

from . import formulas
from .geometry import METRICS
from .problem import EPS, Leaf, Problem, Structure, Values, rounded

EACH = 25
"""How many problems share a structure."""

LOSSES_OF_TARGETS = {
    "real": ("square", "square", "linear", "cosh"),
    "binary": ("bernoulli", "square"),
    "counts": ("poisson", "square"),
    "label": ("categorical",),
    "probabilities": ("soft", "log_sum_exp", "square"),
    "half": ("mean_scale",),
    "product": ("product",),
}
NEED_DATA = (
    "scores",
    "product",
    "independent",
    "hessian_cosh",
    "hessian_logistic",
    "hessian_categorical",
    "empirical",
)
OBSERVE = (
    "scores",
    "hessian_cosh",
    "hessian_logistic",
    "hessian_categorical",
    "empirical",
)
"""Metrics that need the targets, or all samples at once."""
COMMON = ("euclidean", "euclidean", "categorical", "categorical", "bernoulli", "gaussian")


SHARES = {"terms": 0.12, "complex": 0.12, "mean": 0.1}
"""The shares of the kinds of problems that are drawn in a way of their own (`kinds.py`)."""


def structure(seed: int, number: int) -> Structure:
    """Return a random structure."""
    from . import kinds

    # A generator of its own, so that all other structures of a seed stay what they are.
    rng = np.random.default_rng((seed, number, 2))
    kind = rng.choice([*SHARES, "plain"], p=[*SHARES.values(), 1 - sum(SHARES.values())])
    if kind != "plain":
        return kinds.KINDS[str(kind)](rng)
    return plain(np.random.default_rng((seed, number, 0)))


def plain(rng) -> Structure:
    """Return a structure of one real term."""
    pick = lambda *items: items[rng.integers(len(items))]
    dtype = rng.choice(["float64", "float32", "float16", "bfloat16"], p=[0.56, 0.3, 0.07, 0.07])
    metric = pick(*METRICS, *COMMON)
    q = pick(*METRICS[metric].outputs)
    samples = int(pick(1, 2, 3, 4, 5, 6))
    inputs = int(pick(1, 2, 2, 3))
    data = rng.random() > 0.07 or metric in NEED_DATA
    program, leaves = model(rng, inputs, q)
    if metric == "graph":
        program = (*program, ("softmax",))
    if rng.random() < 0.03:
        program = (*program, ("zero",))
    kind = METRICS[metric].targets
    loss = pick(*LOSSES_OF_TARGETS[kind])
    if METRICS[metric].likelihood is not None and data and rng.random() < 0.65:
        loss = None
    leaves, layout = tree(rng, leaves)
    inverse = str(rng.choice(["pseudo", "tikhonov", "rtol", "rank"], p=[0.45, 0.35, 0.1, 0.1]))
    solvers = ("SVD", "Dual", "Primal", "Auto") + (
        ("Krylov",) if inverse in ("pseudo", "tikhonov") else ()
    )
    measure = str(rng.choice(["mean", "sum", "weights"], p=[0.45, 0.2, 0.35])) if data else "mean"
    gauge = None if rng.random() > 0.15 else pick("number", "diagonal")
    # Last, so that the other choices of a seed stay what they are.
    chosen = pick(*solvers)
    apart = data and measure != "weights" and metric not in OBSERVE and rng.random() < 0.15
    return Structure(
        dtype=str(dtype),
        samples=samples if data else 0,
        inputs=inputs,
        outputs=q,
        program=program,
        leaves=leaves,
        layout=layout,
        metric=metric,
        loss=loss,
        measure=measure,
        solver=chosen,
        inverse=inverse,
        rank=int(pick(1, 2, 3)) if inverse == "rank" else 0,
        gauge=gauge,
        others=int(pick(1, 2, 4, 6)) if apart else 0,
    )


def model(rng, inputs: int, q: int) -> tuple[tuple, list[Leaf]]:
    """Return a program from d inputs to q outputs, and the leaves that it uses."""
    kinds = ["dense", "powers", "bilinear", "quadratic", "duplicate", "scaled"]
    kind = rng.choice(kinds, p=[0.45, 0.15, 0.12, 0.1, 0.1, 0.08])
    smooth = lambda: str(rng.choice(["tanh", "softplus", "sin", "tanh"]))
    program, leaves, width = [], [], inputs

    def leaf(*shape: int) -> str:
        name = f"p{len(leaves)}"
        leaves.append(Leaf(name, "numpy" if rng.random() < 0.1 else "float", shape))
        return name

    def affine(out: int, times: int = 1, bias: bool | None = None) -> None:
        nonlocal width
        names = tuple(leaf(out, width) for _ in range(times))
        has = rng.random() < 0.5 if bias is None else bias
        program.append(("affine", names, leaf(out) if has else None))
        width = out

    if kind == "dense":
        for _ in range(rng.integers(0, 3)):
            affine(int(rng.integers(1, 4)))
            program.append(("act", smooth()))
        affine(q)
    elif kind == "powers":
        degree = int(rng.integers(1, 4))
        program.append(("powers", degree))
        width = inputs * (degree + 1)
        affine(q, bias=False)
    elif kind == "bilinear":
        affine(int(rng.integers(1, 3)), bias=False)
        affine(q, bias=False)
    elif kind == "quadratic":
        affine(int(rng.integers(1, 4)))
        program.append(("act", str(rng.choice(["square", "cube"]))))
        affine(q)
    elif kind == "duplicate":
        affine(q, times=int(rng.integers(2, 4)))
    else:
        program.append(("scale", leaf(inputs)))
        program.append(("act", smooth()))
        affine(q)
    return tuple(program), leaves


def tree(rng, used: list[Leaf]) -> tuple[tuple[Leaf, ...], tuple]:
    """Return all leaves, carried and unused ones among them, and a nested layout."""
    extra = [
        Leaf("unused", "float", (2,)),
        Leaf("empty", "float", (0,)),
        Leaf("hollow", "numpy", (2, 0)),
        Leaf("index", "int", (3,)),
        Leaf("mask", "bool", (2,)),
        Leaf("nothing", "none"),
        Leaf("number", "python"),
        Leaf("text", "text"),
    ]
    leaves = used + [leaf for leaf in extra if rng.random() < 0.15]
    order = list(rng.permutation(len(leaves)))
    names: list = [leaves[i].name for i in order]
    container = lambda: str(rng.choice(["dict", "list", "tuple"]))
    while len(names) > 1 and rng.random() < 0.5:
        cut = int(rng.integers(1, len(names) + 1))
        names = [(container(), *names[:cut]), *names[cut:]]
    return tuple(leaves), (container(), *names)


# ---- values -------------------------------------------------------------------------------------

SCENARIOS = {
    "plain": 6, "duplicates": 3, "zero inputs": 1, "zero params": 1, "fitted": 2, "saturated": 5,
    "huge inputs": 1, "tiny inputs": 1, "huge params": 1, "tiny params": 1, "huge targets": 1,
    "tiny targets": 1, "bad param": 1, "bad input": 1, "bad target": 1, "bad weight": 1,
    "collinear": 2, "wrong targets": 1, "extreme weights": 2, "absent garbage": 2, "integers": 2,
}  # fmt: skip


def problem(seed: int, index: int) -> Problem:
    """Return the problem with this number."""
    given = structure(seed, index // EACH)
    rng = np.random.default_rng((seed, index, 1))
    weights = np.array(list(SCENARIOS.values()), float)
    count = int(rng.choice([1, 2, 3], p=[0.6, 0.3, 0.1]))
    chosen = rng.choice(list(SCENARIOS), size=count, replace=False, p=weights / weights.sum())
    scenario = tuple(str(name) for name in chosen)
    if given.terms:
        return Problem(given, _all_values(rng, given, scenario), scenario, seed, index)
    return Problem(given, _values(rng, given, scenario), scenario, seed, index)


def _all_values(rng, given: Structure, scenario: tuple[str, ...]) -> Values:
    """Return the values of several terms: the parameters of the first, and weights."""
    first = _values(rng, given.terms[0], scenario)
    about_params = ("saturated", "zero params", "huge params", "tiny params", "bad param")
    others = tuple(name for name in scenario if name not in about_params)
    parts = [first, *(_values(rng, term, others, first.params) for term in given.terms[1:])]
    weights = 10 ** rng.uniform(-2, 2, len(parts))
    weights[rng.random(len(parts)) < 0.15] = 0.0
    for part, weight in zip(parts, weights, strict=True):
        if weight == 0 and rng.random() < 0.5 and part.x is not None:
            part.x[0] = np.nan  # An absent term may have anything.
        if rng.random() < 0.01 and part.x is not None:
            part.x, part.y, part.w = (a if a is None else a[:0] for a in (part.x, part.y, part.w))
    if rng.random() < 0.02:
        weights[0] = rng.choice([np.nan, np.inf, -1.0])
    whole = Values(first.params, damping=first.damping, rtol=first.rtol, gauge=first.gauge)
    whole.terms, whole.weights = parts, rounded(weights, given.dtype)
    return whole


def _values(rng, given: Structure, scenario: tuple[str, ...], shared=None) -> Values:
    """Return the values of one term; `shared` are parameters that are given."""
    n, dtype = given.samples, given.dtype
    draw = lambda *shape: rng.standard_normal(shape)
    if "integers" in scenario:
        draw = lambda *shape: rng.integers(-2, 3, shape).astype(float)
    params = shared or {
        leaf.name: draw(*leaf.shape) + (1j * draw(*leaf.shape) if leaf.kind == "complex" else 0)
        for leaf in given.moving
    }
    x = draw(n, given.inputs) if n else None
    w = rng.random(n) + 0.1 if given.measure == "weights" else None
    others = draw(given.others, given.inputs) if given.others else None
    values = Values(params, x, others, None, w)
    _inputs(rng, given, scenario, values)
    values.constants = _constants(rng, given)
    values.params = shared or {k: rounded(v, dtype) for k, v in params.items()}
    values.x = None if values.x is None else rounded(values.x, dtype)
    values.others = None if others is None else rounded(others, dtype)
    values.constants = {k: rounded(v, dtype) for k, v in values.constants.items()}
    if "saturated" in scenario:
        _saturate(rng, given, values)
    _targets(rng, given, scenario, values)
    low, high = (-3, 3) if dtype in ("float16", "bfloat16") else (-16, 4)
    values.damping = float(rounded(10.0 ** rng.uniform(low, high), dtype))
    values.rtol = float(rounded(10.0 ** rng.uniform(np.log10(EPS[dtype]), -0.3), dtype))
    if given.gauge is not None:
        values.gauge = rounded(10 ** rng.uniform(-1.5, 1.5, given.size), dtype)
    _weights(rng, scenario, values)
    values.w = None if values.w is None else rounded(values.w, dtype)
    _damage(rng, given, scenario, values)
    return values


def _inputs(rng, given: Structure, scenario, values: Values) -> None:
    """Duplicate, collinear, zero, huge and tiny inputs and parameters."""
    reach = {"float64": 150, "float32": 20, "float16": 2, "bfloat16": 20}[given.dtype]
    far = lambda: 10.0 ** rng.uniform(reach / 8, reach)
    x = values.x
    if x is not None:
        if "duplicates" in scenario:
            x[...] = x[rng.integers(0, max(1, len(x) // 2), len(x))]
        if "collinear" in scenario:
            x[...] = rng.integers(-3, 4, (len(x), 1)) * x[:1]
        if "zero inputs" in scenario:
            x[rng.random(x.shape) < rng.choice([0.3, 1.0])] = 0.0
        if "huge inputs" in scenario:
            x[rng.random(x.shape) < rng.choice([0.3, 1.0])] *= far()
        if "tiny inputs" in scenario:
            x[rng.random(x.shape) < rng.choice([0.3, 1.0])] /= far()
        if given.kind == "mean" and rng.random() < 0.5:
            # Samples near one another: the spread is small beside the mean.
            x[...] = x[:1] + x * 2.0 ** -rng.uniform(2, -np.log2(EPS[given.dtype]) / 2)
    names = [name for name in values.params if rng.random() < 0.6]
    for name in names:
        p = values.params[name]
        if "zero params" in scenario:
            p[rng.random(p.shape) < rng.choice([0.4, 1.0])] = 0.0
        if "huge params" in scenario:
            p *= far()
        if "tiny params" in scenario:
            p /= far()


def _constants(rng, given: Structure) -> dict[str, np.ndarray]:
    """Return the numbers in the metric."""
    if given.metric in ("euclidean", "weighted", "sum"):
        return {"scale": np.asarray(10 ** rng.uniform(-2, 2))}
    if given.metric != "gaussian":
        return {}
    q = given.outputs
    kind = given.samples % 3
    if kind == 0:
        return {"covariance": np.asarray(10 ** rng.uniform(-2, 2))}
    if kind == 1:
        return {"covariance": 10 ** rng.uniform(-1, 1, q)}
    a = rng.standard_normal((q, q))
    return {"covariance": a @ a.T + np.eye(q) / 2}


def plain_outputs(given: Structure, values: Values) -> np.ndarray:
    """Return the outputs in float64, (N, q)."""
    lib = formulas.floats(given, "float64")
    params = formulas.moving(given, values, lib)
    with np.errstate(all="ignore"):
        rows = [None] if values.x is None else list(map(lib.array, values.x))
        return np.array([formulas.outputs(given, params, x, lib)[0] for x in rows])


def _saturate(rng, given: Structure, values: Values) -> None:
    """Scale the last layer so that the largest output is far out."""
    last = [op for op in given.program if op[0] == "affine"][-1]
    names = [*last[1], *([last[2]] if last[2] else [])]
    size = np.max(np.abs(plain_outputs(given, values)))
    if not (np.isfinite(size) and size > 0):
        return
    most = 300 if given.dtype == "float16" else 1000
    factor = rng.choice([5, 10, 20, 40, 80, 90, 100, 200, 400, 700, 800, most]) / size
    for name in names:
        values.params[name] = rounded(values.params[name] * factor, given.dtype)


def _targets(rng, given: Structure, scenario, values: Values) -> None:
    n, q = max(given.samples, 1), given.outputs
    kind = METRICS[given.metric].targets
    wrong = "wrong targets" in scenario
    if kind == "label":
        low, high = (1, q + 1) if wrong else (0, q)
        y = rng.integers(low, high, n)
        if "saturated" in scenario and not wrong and rng.random() < 0.6:
            y = np.argmax(np.nan_to_num(plain_outputs(given, values)), axis=1)
    elif kind == "binary":
        y = rng.integers(0, 2, (n, q)).astype(float)
        if rng.random() < 0.2:
            y = rng.random((n, q))
        if "saturated" in scenario and rng.random() < 0.6:
            y = (plain_outputs(given, values) > 0).astype(float)
        if wrong:
            y = 2 * np.round(y) - 1
    elif kind == "counts":
        y = rng.integers(0, 4, (n, q)).astype(float)
    elif kind == "probabilities":
        # Multiples of 1/16 that sum to one in every dtype.
        y = rng.multinomial(16, np.ones(q) / q, n) / 16.0
        if wrong:
            y = y * rng.choice([0.25, 0.5, 2.0])
    elif kind == "half":
        y = rng.standard_normal((n, q // 2))
    elif kind == "product":
        y = np.concatenate([rng.integers(0, 3, (n, 1)), rng.standard_normal((n, q - 3))], axis=1)
    else:
        y = rng.standard_normal((n, q))
        if given.kind == "mean" and rng.random() < 0.7:
            w = np.ones(n) if values.w is None else values.w
            y = y - np.average(y, axis=0, weights=w)
        if "fitted" in scenario:
            y = plain_outputs(given, values)
        reach = {"float64": 150, "float32": 20, "float16": 2, "bfloat16": 20}[given.dtype]
        power = rng.uniform(reach / 8, reach)
        y = y * 10**power if "huge targets" in scenario else y
        y = y / 10**power if "tiny targets" in scenario else y
    if "duplicates" in scenario and values.x is not None and rng.random() < 0.5:
        _, place = np.unique(values.x, axis=0, return_inverse=True)
        y = y[[list(place.ravel()).index(i) for i in place.ravel()]]
    y = np.asarray(y, np.int64) if kind == "label" else rounded(y, given.dtype)
    values.y = y if given.samples else y[0]


def _weights(rng, scenario, values: Values) -> None:
    if values.w is None:
        return
    w = values.w
    if "extreme weights" in scenario:
        w *= 10 ** rng.uniform(-12, 6, len(w))
    if "absent garbage" in scenario or rng.random() < 0.3:
        w[rng.random(len(w)) < 0.4] = 0.0
    if rng.random() < 0.02:
        w[:] = 0.0


def _damage(rng, given: Structure, scenario, values: Values) -> None:
    """Put NaN and infinities where the scenario says, the absent samples included."""
    bad = lambda: rng.choice([np.nan, np.inf, -np.inf])

    def spoil(a: np.ndarray | None) -> None:
        if a is not None and a.size and a.dtype.kind in "fc":
            a.ravel()[rng.integers(a.size)] = bad()

    if "bad param" in scenario:
        filled = [leaf.name for leaf in given.moving if leaf.size]
        spoil(values.params[filled[rng.integers(len(filled))]])
    if "bad input" in scenario:
        spoil(values.x)
    if "bad target" in scenario and values.y is not None:
        values.y = np.array(values.y)
        spoil(values.y)
    if "bad weight" in scenario and values.w is not None:
        values.w[rng.integers(len(values.w))] = rng.choice([np.nan, np.inf, -1.0])
    if "absent garbage" in scenario and values.w is not None and values.x is not None:
        for i in np.flatnonzero(values.w == 0):
            values.x[i] = bad()
            if values.y is not None and values.y.dtype.kind == "f":
                values.y[i] = bad()
