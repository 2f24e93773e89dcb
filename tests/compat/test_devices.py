"""XLA's partitioner and per-sample gradients of convolutions: why samples are spread by hand."""

import os
import subprocess
import sys
import textwrap

FAULT = """
    import jax, jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    form = {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    conv = lambda w, x: jnp.sum(jax.lax.conv_general_dilated(x[None], w, (1, 1), **form) ** 2)
    slopes = jax.jit(jax.vmap(jax.grad(conv), (None, 0)))
    w, x = jnp.ones((3, 3, 1, 2)), jnp.arange(128.0).reshape(8, 4, 4, 1)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    spread = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    error = jnp.max(jnp.abs(slopes(w, spread) - slopes(w, x))) / jnp.max(jnp.abs(slopes(w, x)))
    print(float(error))
"""


def test_the_partitioner_still_gets_convolutions_wrong():
    """When this fails, the fault is gone: say so in docs/devices.md, and keep the shard_map."""
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", textwrap.dedent(FAULT)]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) > 0.1
