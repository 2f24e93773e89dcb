"""Everything here that depends on how JAX writes programs down; tested on every version that is
supported.

A program is a list of equations on named values. Nothing is bound by hand: an equation is run as a
program of one equation by JAX itself, so that custom derivative rules and new calling conventions
are JAX's business.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
"""Equations that only call a program; their body may be written out in their place."""


class Program(NamedTuple):
    """Equations, and the constants they close over."""

    jaxpr: Any
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
    """A `lax.scan`: how many of its arguments are constants, how many are carried; the others are
    scanned over.
    """

    body: Program
    consts: int
    carry: int
    length: int
    reverse: bool


def trace(function: Callable, *args: Any) -> Program:
    """The program of a function of arrays."""
    closed = jax.make_jaxpr(function)(*args)
    return Program(closed.jaxpr, closed.consts)


def is_literal(name: Any) -> bool:
    """Whether an argument of an equation is a number written into it."""
    return isinstance(name, Literal)


def has_effects(program: Program) -> bool:
    """Whether a program does more than compute (callbacks, mutable state)."""
    return bool(program.jaxpr.effects)


def called(eqn: Any) -> Program | None:
    """The program that an equation calls, if it does nothing but call it."""
    if eqn.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr"):
        if key in eqn.params:
            return _program(eqn.params[key])
    return None


def loop(eqn: Any) -> Loop | None:
    """The loop that an equation is, if it is one whose arguments can be told apart."""
    if eqn.primitive.name != "scan":
        return None
    params = eqn.params
    body = _program(params["jaxpr"])
    if "num_consts" in params:
        consts, carry = params["num_consts"], params["num_carry"]
    elif hasattr(params.get("ft_in"), "elts"):
        consts, carry = (len(part) for part in params["ft_in"].elts[:2])
    else:
        return None
    # The last line of defence against another layout: the counts must fit.
    if len(body.inputs) != len(eqn.invars) or len(body.outputs) != len(eqn.outvars):
        return None
    return Loop(body, consts, carry, params["length"], params["reverse"])


def evaluate(program: Program, eqn: Any, values: Sequence[Any]) -> list[Any]:
    """Run one equation."""
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


def _program(jaxpr: Any) -> Program:
    """Closed or open: older versions have two types of program, newer ones one."""
    return Program(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()))
