"""`python -m bench.first_step [policy ...] [--before REV]`: how long until the first step is made.

Every case runs in a process of its own on one core, from the arrays on: tracing, compiling and the
step itself, by `opt.step` and by `fit`, in CPU seconds. Then once more with what JAX's compilation
cache kept of the first run. `--before` measures an earlier commit of this repository beside it,
with the same script.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LATER = 20
"""How many further steps are timed."""


class Case(NamedTuple):
    """A problem, where it starts, its batch, the rule, and the goal in seconds."""

    problem: Any
    params: Any
    batch: Any
    options: dict[str, Any]


def _normal(seed: int, *shape: int) -> Any:
    import jax

    return jax.random.normal(jax.random.key(seed), shape)


def _dense(widths: tuple[int, ...]) -> Any:
    import jax.numpy as jnp

    pairs = itertools.pairwise(widths)
    return [(_normal(i, a, b) / a**0.5, jnp.zeros(b)) for i, (a, b) in enumerate(pairs)]


def _mlp(layers: Any, x: Any) -> Any:
    import jax.numpy as jnp

    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


def policy() -> Case:
    """A policy 4-32-32-2 on 256 states, LevenbergMarquardt."""
    import jax.numpy as jnp

    import pullback as pb

    problem = pb.Composite(_mlp, metric=pb.metric.Categorical())
    batch = (_normal(9, 256, 4), jnp.arange(256) % 2)
    rule = pb.step.LevenbergMarquardt()
    return Case(problem, _dense((4, 32, 32, 2)), batch, {"step": rule})


def cnn() -> Case:
    """Two convolutions and a dense layer on 128 digits, damped, of fixed length."""
    import jax
    import jax.numpy as jnp

    import pullback as pb

    def model(params, x):
        for w in params["conv"]:
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"))
        return x.reshape(x.shape[0], -1) @ params["out"]

    conv = [_normal(1, 8, 1, 3, 3) / 3, _normal(2, 16, 8, 3, 3) / 9]
    params = {"conv": conv, "out": _normal(3, 1024, 10) / 32}
    problem = pb.Composite(model, metric=pb.metric.Categorical())
    batch = (_normal(9, 128, 1, 8, 8), jnp.arange(128) % 10)
    return Case(problem, params, batch, {"inverse": pb.Tikhonov(0.1), "step": pb.step.Fixed(0.3)})


def pinn() -> Case:
    """A Poisson equation, 2-32-32-32-1 on 500 points, Geodesic(LevenbergMarquardt())."""
    import jax
    import jax.numpy as jnp

    import pullback as pb

    def residual(layers, x):
        u = lambda x: _mlp(layers, x)[0]
        return jax.vmap(lambda x: jnp.trace(jax.hessian(u)(x)))(x)

    problem = pb.Composite(residual, lambda z, y: (z - y) ** 2 / 2)
    rule = pb.step.Geodesic(pb.step.LevenbergMarquardt())
    batch = (_normal(9, 500, 2), _normal(8, 500))
    return Case(problem, _dense((2, 32, 32, 32, 1)), batch, {"step": rule})


CASES: dict[str, tuple[Callable[[], Case], bool, float]] = {
    "policy": (policy, False, 2.5),
    "cnn": (cnn, False, 5.0),
    "pinn": (pinn, True, 5.0),
}
"""The cases, whether they are in float64, and the goals in seconds."""
WARM = 2.0
"""The goal with a warm cache."""


def first(name: str, by: str) -> None:
    """Print the CPU seconds of the first step of a case, and of a later one."""
    import jax

    make, double, _ = CASES[name]
    jax.config.update("jax_enable_x64", double)
    import pullback as pb

    case = make()
    jax.block_until_ready((case.params, case.batch))
    start = time.process_time()
    opt = pb.NaturalGradientDescent(case.problem, **case.options)
    run = _fitted if by == "fit" else _looped
    params = run(opt, case.params, case.batch, 1)
    then = time.process_time()
    run(opt, params, case.batch, LATER)
    print(then - start, (time.process_time() - then) / LATER)


def _looped(opt: Any, params: Any, batch: Any, steps: int) -> Any:
    import jax

    state = opt.init(params)
    for _ in range(steps):
        params, state, _ = opt.step(params, state, batch)
    return jax.block_until_ready(params)


def _fitted(opt: Any, params: Any, batch: Any, steps: int) -> Any:
    import pullback as pb

    return pb.fit(opt, params, batch, steps).params


def measured(name: str, by: str, source: Path, cache: Path) -> tuple[float, float]:
    """Run a case in a process of its own, on one core."""
    environment = os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    core = {min(os.sched_getaffinity(0))} if hasattr(os, "sched_setaffinity") else None
    pinned = (lambda: os.sched_setaffinity(0, core)) if core else None
    command = [sys.executable, "-m", "bench.first_step", "--child", name, by]
    made = subprocess.run(
        command, env=environment, cwd=ROOT, preexec_fn=pinned, capture_output=True, text=True
    )
    if made.returncode:
        raise SystemExit(made.stderr)
    seconds, later = map(float, made.stdout.split()[-2:])
    return seconds, later


def extracted(revision: str, folder: Path) -> Path:
    """Return the sources of an earlier commit."""
    packed = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def main() -> int:
    """Print the table; 1 if a first step takes longer than its goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_step", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--before", metavar="REV", help="an earlier commit to measure beside it")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        first(*given.child)
        return 0
    late = False
    with tempfile.TemporaryDirectory() as folder:
        sources = {"now": ROOT / "src"}
        if given.before:
            sources = {given.before: extracted(given.before, Path(folder))} | sources
        print("| first step, CPU s | by | version | cold | goal | warm cache | goal | later, ms |")
        print("|---|---|---|---|---|---|---|---|")
        for name, by, (version, source) in itertools.product(
            given.names, ("opt.step", "fit"), sources.items()
        ):
            cache = Path(folder) / "cache" / version / by / name
            goal = CASES[name][2]
            cold, later = measured(name, by, source, cache)
            warm, _ = measured(name, by, source, cache)
            late |= version == "now" and (cold > goal or warm > WARM)
            cells = (
                name,
                by,
                version,
                f"{cold:.1f}",
                goal,
                f"{warm:.1f}",
                WARM,
                f"{1e3 * later:.1f}",
            )
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return int(late)


if __name__ == "__main__":
    raise SystemExit(main())
