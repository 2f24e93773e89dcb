"""Shrinks a problem that fails: fewer samples and parameters, simpler values, the same outcome."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from .problem import Problem, dump, rounded


def minimise(problem: Problem, outcome: Callable[[Problem], str], tries: int = 400) -> Problem:
    """Return a smaller problem with the same outcome."""
    goal, left = outcome(problem), tries
    changed = True
    while changed and left > 0:
        changed = False
        for smaller in candidates(problem):
            left -= 1
            if left <= 0:
                break
            try:
                same = outcome(smaller) == goal
            except Exception:  # A change that makes no problem at all.
                continue
            if same:
                problem, changed = smaller, True
                break
    return problem


def candidates(problem: Problem) -> Iterator[Problem]:
    """Yield simpler problems, the largest steps first."""
    s, v = problem.structure, problem.values
    if s.terms:
        yield from _fewer_terms(problem)
        return
    kept = [leaf for leaf in s.leaves if leaf.moves and leaf.name.startswith("p")]
    if len(kept) < len(s.leaves) and s.gauge != "diagonal":
        params = {leaf.name: v.params[leaf.name] for leaf in kept}
        layout = ("dict", *(leaf.name for leaf in kept))
        yield _structure(problem, leaves=tuple(kept), layout=layout).with_values(params=params)
        for name in [leaf.name for leaf in s.leaves if leaf not in kept]:
            rest = tuple(leaf for leaf in s.leaves if leaf.name != name)
            params = {k: p for k, p in v.params.items() if k != name}
            layout = ("dict", *(leaf.name for leaf in rest))
            yield _structure(problem, leaves=rest, layout=layout).with_values(params=params)
    if s.gauge is not None:
        yield _structure(problem, gauge=None).with_values(gauge=None)
    for n in (1, s.samples // 2, s.samples - 1):
        if 0 < n < s.samples:
            for start in (0, s.samples - n):
                yield _take(problem, slice(start, start + n))
    for measure in ("sum", "mean"):
        if s.measure == "weights" or (measure, s.measure) == ("sum", "mean"):
            yield _structure(problem, measure=measure).with_values(w=None)
    yield from _simpler_values(problem)


def _fewer_terms(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with a term, or the weights of terms, left out."""
    s, v = problem.structure, problem.values
    assert v.terms is not None
    assert v.weights is not None
    for i in range(len(s.terms)):
        if len(s.terms) > 1:
            terms = (*s.terms[:i], *s.terms[i + 1 :])
            whole = replace(problem, structure=replace(terms[0], terms=terms))
            yield whole.with_values(
                terms=[*v.terms[:i], *v.terms[i + 1 :]], weights=np.delete(v.weights, i)
            )
    if not np.all(v.weights == 1):
        yield problem.with_values(weights=np.ones_like(v.weights))
    for name, p in v.params.items():
        for b in (np.zeros_like(p), np.ones_like(p), rounded(np.round(p, 1), s.dtype)):
            if not np.array_equal(p, b) and _shorter(b, p):
                params = v.params | {name: b}
                terms = [replace(term, params=params) for term in v.terms]
                yield problem.with_values(params=params, terms=terms)


def _structure(problem: Problem, **changes) -> Problem:
    return replace(problem, structure=replace(problem.structure, **changes))


def _take(problem: Problem, samples: slice) -> Problem:
    v = problem.values
    assert v.x is not None
    part = lambda a: None if a is None else a[samples]
    return _structure(problem, samples=len(v.x[samples])).with_values(
        x=v.x[samples], y=part(v.y), w=part(v.w)
    )


def _simpler_values(problem: Problem) -> Iterator[Problem]:
    v, dtype = problem.values, problem.structure.dtype

    def put(name: str, array: np.ndarray) -> Problem:
        if name in v.params:
            return problem.with_values(params=v.params | {name: array})
        return problem.with_values(**{name: array})

    arrays = dict(v.params) | {n: getattr(v, n) for n in ("x", "y", "w")}
    for name, a in arrays.items():
        if a is None or not a.size:
            continue
        simpler = [np.zeros_like(a), np.ones_like(a)]
        if a.dtype.kind == "c":
            simpler += [np.round(a), np.round(a, 1), a.real + 0j]
        if a.dtype.kind == "f":
            with np.errstate(all="ignore"):
                simpler += [np.round(a), np.round(a, 1), np.round(a, 2)]
                digits = [float(f"{x:.1g}") for x in a.ravel()]
                simpler.append(np.array(digits).reshape(a.shape))
            simpler = [rounded(b, dtype) for b in simpler]
        for b in simpler:
            if not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") and _shorter(b, a):
                yield put(name, b)
    short = float(rounded(float(f"{v.damping:.0e}"), dtype))
    if short != v.damping:
        yield problem.with_values(damping=short)


def _shorter(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether numbers take fewer characters, so that shrinking ends."""
    both = lambda x: np.stack([np.real(x), np.imag(x)]).ravel()
    length = lambda x: sum(len(repr(float(value))) for value in both(x))
    return length(a) < length(b) or (not a.any() and b.any())


def as_test(problem: Problem) -> str:
    """Return a problem as a pytest test."""
    text = dump(problem)
    return (
        f"def test_found_{problem.seed}_{problem.index}():\n"
        f"    problem = load({text!r})\n"
        f"    assert judge(problem).outcome not in BAD\n"
    )
