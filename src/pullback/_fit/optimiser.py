"""What `fit` requires of an optimiser: a state before the first step, and a step.

```python
class GradientDescent(eqx.Module):
    rate: float

    def init(self, params):
        return None

    def step(self, params, state, batch):
        loss, gradient = jax.value_and_grad(mean_loss)(params, batch)
        return params - self.rate * gradient, state, {"loss": loss}
```
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax

from .._base.show import columns
from .._base.types import Params

BY_TERM = ("losses", "weights")
"""Fields that hold a number for each of several terms, by name or by place."""


@runtime_checkable
class Optimiser(Protocol):
    """An optimiser that `fit` can run: `NaturalGradientDescent`, or any object with both methods.

    `step` is traced, so it must be a pure function of arrays. An `equinox.Module` passes its arrays
    as arguments of the compiled loop and shows its settings in checkpoints; the attributes of
    another object are constants.

    A method `attempt`, if there is one, is called before `step`, with the same arguments. It
    returns what `step` does and a fourth value, whether it has no answer; then `step` is called.
    `NaturalGradientDescent` leaves out there what takes long to compile and is rarely needed.

    A method `efforts(params, batch)`, if there is one, returns two things: how hard XLA works on
    the first steps (0, 1, or `None` for all it can), and the number of the step from which it does
    all it can. Less compiles sooner and runs slower.

    A method `loss(params, batch)`, if there is one, returns the loss on a batch, which
    `fit(validate=...)` needs.
    """

    def init(self, params: Params) -> Any:
        """Return the state before the first step, a pytree.

        **Arguments:**

        - `params`: the parameters.
        """
        ...

    def step(self, params: Params, state: Any, batch: Any) -> tuple[Params, Any, Any]:
        """Return the new parameters, the new state and the record of one step.

        Parameters and state keep their structure, shapes and dtypes. The record holds named
        scalars: a dictionary, a named tuple or an `equinox.Module`. `loss` is required. The fields
        `loss_after`, `accepted`, `rank`, `damping` and `result` (a `RESULTS` code) are shown and
        plotted if there are any; `step`, if there is one, is the number of the step, from 0.

        A step has failed if the record's `failed` is true; the optimiser then returns the
        parameters to continue with. Without `failed`, a step has failed if its loss or its
        parameters are not finite, and `fit` keeps the parameters and the state before it.

        **Arguments:**

        - `params`: the parameters.
        - `state`: the state.
        - `batch`: `(inputs, targets)`, a named tuple; both are `None` for a model without data.
        """
        ...


def check_optimiser(opt: Any) -> None:
    """Raise a `ValueError` unless `opt` has the methods of an `Optimiser`."""
    if isinstance(opt, type) or not isinstance(opt, Optimiser):
        name = opt.__name__ if isinstance(opt, type) else type(opt).__name__
        raise ValueError(
            "fit(opt, ...): opt must have the methods init(params) and step(params, state, batch), "
            f"got {name}. Call fit(pullback.NaturalGradientDescent(problem), params, batches)."
        )


def beside_step(opt: Any, name: str) -> Callable[..., Any] | None:
    """Return the method `attempt`, or `efforts`, that belongs to `step`, if there is one.

    Both are of one class: a `step` of a derived class, or of a wrapper that passes on what it does
    not know, is not gone round.
    """
    if "step" in getattr(opt, "__dict__", {}):
        return None
    for kind in type(opt).__mro__:
        if "step" in vars(kind):
            return getattr(opt, name) if name in vars(kind) else None
    return None


def check_attempt(owner: str, made: Any) -> None:
    """Raise a `ValueError` unless an attempt returned four things."""
    if not isinstance(made, tuple) or len(made) != 4:
        raise ValueError(
            f"{owner}.attempt must return (params, state, record, unanswered), got "
            f"{type(made).__name__}"
            + (f" of length {len(made)}" if isinstance(made, tuple) else "")
            + ". Name the method otherwise if it is something else (see pullback.Optimiser)."
        )


def named(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name; what each of several terms has, as `name.term`."""
    if isinstance(record, dict):
        return record
    if hasattr(record, "_asdict"):
        return record._asdict()
    found = {}
    for name in getattr(record, "__dataclass_fields__", ()):
        value = getattr(record, name)
        if name in BY_TERM and not eqx.is_array(value):
            found |= columns(f"{name}.", value)
        else:
            found[name] = value
    return found


def check_step(owner: str, before: tuple[Params, Any], made: Any) -> None:
    """Raise a `ValueError` unless a step returned what `Optimiser.step` promises."""
    if not isinstance(made, tuple) or len(made) != 3:
        raise ValueError(
            f"{owner}.step must return (params, state, record), got {type(made).__name__}"
            + (f" of length {len(made)}." if isinstance(made, tuple) else ".")
        )
    for name, old, new in zip(("params", "state"), before, made, strict=False):
        check_kept(f"{owner}.step: {name}", old, new)
    _check_record(owner, made[2])


def check_kept(name: str, old: Any, new: Any, method: str = "step") -> None:
    """Raise a `ValueError` unless two trees have the same structure, shapes and dtypes."""
    for path, was, is_now in _changes(old, new):
        raise ValueError(
            f"{name}{path} is {was} before the step and {is_now} after it; a step must keep "
            "structure, shapes and dtypes. Convert what changes to an array in `init`, and use "
            f"x.astype(...) in `{method}`."
        )


def check_state(owner: str, like: Any, state: Any) -> None:
    """Raise a `ValueError` unless a given state has the structure of `init(params)`."""
    for path, wanted, given in _changes(like, state):
        raise ValueError(
            f"fit(state=...): state{path} is {given}, but {owner}.init(params) has {wanted} there. "
            "Pass the state of an optimiser of the same kind, e.g. "
            "fit(opt, fit.params, batches, state=fit.state)."
        )


def _changes(old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Yield where two trees differ: the path, and both leaves in words."""
    there, here = _described(old), _described(new)
    for path in dict.fromkeys([*there, *here]):
        was, is_now = there.get(path, "nothing"), here.get(path, "nothing")
        if was != is_now:
            yield path, was, is_now


def _described(tree: Any) -> dict[str, str]:
    """Return dtype and shape of every leaf, or the leaf itself if it is no array, by path."""
    show = lambda x: f"{x.dtype}{list(x.shape)}" if eqx.is_array(x) else repr(x)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): show(leaf) for path, leaf in leaves}


def _check_record(owner: str, record: Any) -> None:
    """Raise a `ValueError` unless a record has a loss and its fields are scalars."""
    fields = named(record)
    if fields.get("loss") is None:
        raise ValueError(
            f"{owner}.step(params, state, batch) must return (params, state, record) with a record "
            f"that has a `loss`, e.g. {{'loss': loss}}, got {type(record).__name__}"
            + (f" with {', '.join(map(str, fields))}." if fields else ".")
        )
    for name, value in fields.items():
        shapes = [x.shape for x in jax.tree.leaves(value) if eqx.is_array(x)]
        if len(shapes) > 1:
            raise ValueError(
                f"{owner}.step: the field {name!r} of the record holds {len(shapes)} arrays; give "
                "each a field of its own."
            )
        if shapes and shapes[0] != ():
            raise ValueError(
                f"{owner}.step: the field {name!r} of the record has the shape {shapes[0]}; record "
                f"scalars, e.g. jnp.mean({name})."
            )
