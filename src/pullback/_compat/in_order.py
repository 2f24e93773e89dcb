r"""Programs whose devices meet in the same collectives, whatever runs at the same time.

XLA on the CPU starts an operation when its arguments are there, and lets collectives *begin* in the
order of the program on every device. A condition or a loop counts as begun before the collectives
inside it have: a collective after it that does not need its result may then come first on one
device and second on another. All of them carry the same number, so that devices meet in different
ones, and hang, crash, or would exchange the wrong arrays. Small programs, which run one operation
after another, never show it.

`in_order` makes it impossible: a condition or a loop with collectives inside waits for all
collectives before it, and those after it wait for its result. To wait is to take an argument from
what is waited for; `optimization_barrier` is gone before a program runs. So an integer or a
predicate has something added to it that is always zero, and floating-point numbers are replaced by
NaN where a condition holds that never does: that a word has more ones than bits. XLA does not know
either, and no result changes.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array

from .jaxpr import JaxEquation, Program, called, contains, evaluate, inner_programs, is_literal
from .jaxpr import loop as scan_of

COLLECTIVES = (
    *("psum", "psum_invariant", "pmax", "pmin", "ppermute", "pbroadcast", "all_gather"),
    *("all_gather_invariant", "all_to_all", "ragged_all_to_all", "reduce_scatter"),
)
WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}

Function = TypeVar("Function", bound=Callable[..., Any])


def in_order(function: Function) -> Function:
    """Return the same function of arrays, inside of a `jax.shard_map`, with ordered collectives."""

    def run(*args):
        closed, like = jax.make_jaxpr(function, return_shape=True)(*args)
        # What nobody needs would be kept by those who wait for it.
        jaxpr, _ = dce_jaxpr(closed.jaxpr, True, instantiate=True)
        found = _Order().run(Program(jaxpr, closed.consts), jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(like), found)

    return run  # pyright: ignore[reportReturnType]


class _Order:
    """The collectives of a program so far, or of the body of a loop or condition."""

    def __init__(self):
        self.never: Array | None = None
        """False, as soon as the last loop or condition with collectives inside has ended."""
        self.since: list[Array] = []
        """The results of the collectives after it."""

    def run(self, program: Program, values: Sequence[Any]) -> list[Any]:
        """Return the results of a program."""
        known = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        known |= dict(zip(program.inputs, values, strict=True))
        # As a number of Python, a literal may have become one of another type.
        read = lambda v: np.asarray(v.val, v.aval.dtype) if is_literal(v) else known[v]
        for eqn in program.jaxpr.eqns:
            found = self._equation(program, eqn, [read(v) for v in eqn.invars])
            known |= dict(zip(eqn.outvars, found, strict=True))
        return [read(v) for v in program.outputs]

    def _equation(self, program: Program, eqn: JaxEquation, values: list[Any]) -> list[Any]:
        if not _sends(eqn):
            return evaluate(program, eqn, values)
        inner = called(eqn)
        if inner is not None:
            return self.run(inner, values)
        inside = CONTAINERS.get(eqn.primitive.name)
        if inside is None:
            # A collective, or a call with a derivative rule of its own.
            values = values if self.never is None else [_wait(x, self.never) for x in values]
            found = evaluate(program, eqn, values)
            self.since += found
            return found
        before = [] if self.never is None else [self.never]
        before += [_never(x) for x in self.since if _is_number(x)]
        found, marked = inside(eqn, values, _any(before) if before else None)
        self.never, self.since = _never(min(filter(_is_number, marked), key=jnp.size)), []
        return found


def _sends(eqn: JaxEquation) -> bool:
    inner = inner_programs(eqn)
    return eqn.primitive.name in COLLECTIVES or any(contains(p.jaxpr, COLLECTIVES) for p in inner)


def _ordered(program: Program) -> Callable[..., list[Any]]:
    return lambda *values: _Order().run(program, values)


def _cond(eqn: JaxEquation, values: list[Any], never: Array | None) -> tuple[list[Any], list[Any]]:
    index, *given = values
    index = index if never is None else _wait(index, never)
    branches = inner_programs(eqn)
    found = jax.lax.switch(index, [_ordered(branch) for branch in branches], *given)
    sent = [_depends(branch) for branch in branches]
    return found, [x for x, *each in zip(found, *sent, strict=True) if any(each)]


def _while(eqn: JaxEquation, values: list[Any], never: Array | None) -> tuple[list[Any], list[Any]]:
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    test, body = Program(test.jaxpr, test.consts), Program(body.jaxpr, body.consts)
    of_test, of_body, init = (
        values[:first],
        values[first : first + second],
        values[first + second :],
    )
    found = jax.lax.while_loop(
        lambda carry: _ordered(test)(*of_test, *carry)[0],
        lambda carry: _ordered(body)(*of_body, *carry),
        _one_waits(init, never),
    )
    return found, _marked(found, body, second, len(init)) or found


def _scan(eqn: JaxEquation, values: list[Any], never: Array | None) -> tuple[list[Any], list[Any]]:
    loop = scan_of(eqn)
    assert loop is not None, f"an unknown layout of a scan: {sorted(eqn.params)}"
    consts, rest = values[: loop.consts], _one_waits(values[loop.consts :], never)

    def step(carry, scanned):
        found = _ordered(loop.body)(*consts, *carry, *scanned)
        return found[: loop.carry], found[loop.carry :]

    carry, stacked = jax.lax.scan(
        step,
        rest[: loop.carry],
        rest[loop.carry :],
        length=loop.length,
        reverse=loop.reverse,
        unroll=eqn.params["unroll"],
    )
    found = [*carry, *stacked]
    return found, _marked(found, loop.body, loop.consts, loop.carry)


CONTAINERS = {"cond": _cond, "while": _while, "scan": _scan}


def _marked(found: list[Any], body: Program, consts: int, carry: int) -> list[Any]:
    """Return the results of a loop that depend on its collectives: XLA cannot do without it."""
    seen = [False] * carry
    while True:
        marks = _depends(body, [False] * consts + seen)
        if marks[:carry] == seen:
            return [x for x, mark in zip(found, marks, strict=True) if mark]
        seen = [a or b for a, b in zip(seen, marks, strict=False)]


def _depends(program: Program, given: Sequence[bool] = ()) -> list[bool]:
    """Return which results depend on collectives, or on some of the arguments."""
    marked = {v for v, mark in zip(program.inputs, given, strict=False) if mark}
    for eqn in program.jaxpr.eqns:
        if _sends(eqn) or any(not is_literal(v) and v in marked for v in eqn.invars):
            marked |= set(eqn.outvars)
    return [not is_literal(v) and v in marked for v in program.outputs]


def _one_waits(values: list[Any], never: Array | None) -> list[Any]:
    """Return the values, the smallest of which waits: a loop starts when it has all of them."""
    places = [k for k, x in enumerate(values) if _is_number(x)]
    if never is None or not places:
        return values
    place = min(places, key=lambda k: jnp.size(values[k]))
    return [_wait(x, never) if k == place else x for k, x in enumerate(values)]


def _is_number(x: Any) -> bool:
    kind = jnp.result_type(x)
    return jnp.size(x) > 0 and (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, bool))


def _wait(x: Any, never: Array) -> Any:
    """Return the same numbers, which are there after `never` is."""
    kind = jnp.result_type(x)
    if jnp.issubdtype(kind, jnp.inexact):
        return jnp.where(never, jnp.asarray(jnp.nan, kind), x)
    if jnp.issubdtype(kind, jnp.integer):
        return x + never.astype(kind)
    return x ^ never if jnp.issubdtype(kind, bool) else x


def _never(x: Array) -> Array:
    """Return False, once a number is there."""
    x = jax.lax.stop_gradient(x)
    x = jax.lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())
    x = x.real if jnp.iscomplexobj(x) else x.astype(jnp.uint8) if x.dtype == bool else x
    word = jax.lax.bitcast_convert_type(x, WORDS[x.dtype.itemsize])
    return jax.lax.population_count(word) > 8 * x.dtype.itemsize


def _any(found: list[Array]) -> Array:
    return jnp.any(jnp.stack(found))
