"""Access to the programs (jaxprs) of JAX, whose form changes between versions.

A program is a list of equations on named values. No primitive is bound here: JAX itself runs an
equation as a program of one equation, so that custom derivative rules and new calling conventions
need no code here. The tests run on every supported version.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
"""Equations that only call a program, which may be inlined."""

LITERALS = (np.ndarray, np.generic, bool, int, float, complex, jax.Array)
SMALL = 4096
"""The entries up to which constants are compared."""


class JaxEquation(Protocol):
    """An equation of a program, as far as it is read here."""

    primitive: Any
    """Has a `name`."""
    invars: Sequence[Any]
    """The names of the arguments, or literals; each has an `aval` with shape and dtype."""
    outvars: Sequence[Any]
    params: dict[str, Any]


class Program(NamedTuple):
    """Equations, and the constants that they close over."""

    jaxpr: Any
    """A `Jaxpr`; its type differs between versions of JAX."""
    consts: Sequence[Any]

    @property
    def inputs(self) -> list[Any]:
        """The names of the arguments."""
        return list(self.jaxpr.invars)

    @property
    def outputs(self) -> list[Any]:
        """The names of the results (or literals)."""
        return list(self.jaxpr.outvars)


class Loop(NamedTuple):
    """A `lax.scan`. Its arguments are constants, then the carry, then what is scanned over."""

    body: Program
    consts: int
    """The number of constants."""
    carry: int
    """The number of carried arrays."""
    length: int
    reverse: bool


def trace(function: Callable, *args: Any) -> Program:
    """The program of a function of arrays."""
    closed = jax.make_jaxpr(function)(*args)
    return Program(closed.jaxpr, closed.consts)


def is_literal(name: Any) -> bool:
    """Whether an argument of an equation is a literal number."""
    return isinstance(name, Literal)


def has_effects(program: Program) -> bool:
    """Whether a program has side effects (callbacks, mutable state)."""
    return bool(program.jaxpr.effects)


def called(eqn: JaxEquation) -> Program | None:
    """The program that an equation calls; `None` if the equation is no plain call."""
    if eqn.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr"):
        if key in eqn.params:
            return _program(eqn.params[key])
    return None


def loop(eqn: JaxEquation) -> Loop | None:
    """The loop of an equation; `None` if it is no `scan`, or has an unknown layout of arguments."""
    if eqn.primitive.name != "scan":
        return None
    params = eqn.params
    body = _program(params["jaxpr"])
    if "num_consts" in params:
        consts = params["num_consts"]
        carry = params["num_carry"]
    elif hasattr(params.get("ft_in"), "elts"):
        consts, carry = (len(part) for part in params["ft_in"].elts[:2])
    else:
        return None
    # Whatever the layout is called, the counts must fit.
    if len(body.inputs) != len(eqn.invars) or len(body.outputs) != len(eqn.outvars):
        return None
    return Loop(body, consts, carry, params["length"], params["reverse"])


def evaluate(program: Program, eqn: JaxEquation, values: Sequence[Any]) -> list[Any]:
    """The results of one equation of a program."""
    given = {}
    for name, value in zip(eqn.invars, values, strict=True):
        if not is_literal(name):
            given[name] = value
    jaxpr = program.jaxpr
    debug = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    single = jaxpr.replace(
        constvars=(), invars=list(given), outvars=list(eqn.outvars), eqns=[eqn], debug_info=debug
    )
    return jaxpr_as_fun(ClosedJaxpr(single, ()))(*given.values())


def without_repetitions(program: Program) -> Program:
    """The same program without equations that repeat another one.

    Equations with side effects stay, and what equations call is left as it is.
    """
    jaxpr = program.jaxpr
    same: dict[Any, Any] = {}
    known: dict[Any, Any] = {}
    for name, value in zip(jaxpr.constvars, program.consts, strict=True):
        key = _content(value)
        if key is not None:
            same[name] = known.setdefault(key, name)
    now = lambda v: v if is_literal(v) else same.get(v, v)
    kept = []
    for given in jaxpr.eqns:
        eqn = given.replace(invars=[now(v) for v in given.invars])
        key = _identity(eqn)
        before = None if key is None else known.setdefault(key, eqn)
        if before is None or before is eqn:
            kept.append(eqn)
        else:
            same |= dict(zip(eqn.outvars, before.outvars, strict=True))
    debug = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    outputs = [now(v) for v in jaxpr.outvars]
    return Program(jaxpr.replace(eqns=kept, outvars=outputs, debug_info=debug), program.consts)


def _identity(eqn: Any) -> Any:
    """What two equations with the same results have in common; `None` if that is not known."""
    # A result that is dropped has no name by which it could be used.
    if eqn.effects or any(type(v).__name__ == "DropVar" for v in eqn.outvars):
        return None
    names = tuple(("literal", _content(v.val)) if is_literal(v) else v for v in eqn.invars)
    key = (eqn.primitive, names, tuple(sorted(eqn.params.items(), key=lambda item: item[0])))
    try:
        hash(key)
    except TypeError:
        return None
    return None if ("literal", None) in names else key


def _content(value: Any) -> Any:
    """The shape, type and bytes of a small array that is known; otherwise `None`."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, LITERALS):
        return None
    # A typed PRNG key is a jax.Array that NumPy cannot read.
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return None
    array = np.asarray(value)
    if array.size > SMALL or array.dtype.hasobject:
        return None
    return array.shape, str(array.dtype), array.tobytes()


def inner_programs(eqn: JaxEquation) -> list[Program]:
    """All programs among the parameters of an equation: calls, bodies, branches."""
    found = []
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                found.append(_program(item))
    return found


def contains(jaxpr: Any, names: Sequence[str]) -> bool:
    """Whether a program, or one inside it, has an equation of one of the named primitives."""
    return any(
        eqn.primitive.name in names or any(contains(p.jaxpr, names) for p in inner_programs(eqn))
        for eqn in _program(jaxpr).jaxpr.eqns
    )


def with_params(eqn: JaxEquation, **params: Any) -> JaxEquation:
    """An equation with other parameters, for arguments of other shapes."""
    return eqn.replace(params=eqn.params | params)  # pyright: ignore[reportAttributeAccessIssue]


def with_own_derivative(eqn: JaxEquation) -> Program | None:
    """The program of an equation with a forward derivative rule of its own, otherwise `None`."""
    if eqn.primitive.name != "custom_jvp_call" or "call_jaxpr" not in eqn.params:
        return None
    return _program(eqn.params["call_jaxpr"])


def _program(jaxpr: Any) -> Program:
    """A program from an open or a closed jaxpr, which newer versions do not distinguish."""
    return Program(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()))
