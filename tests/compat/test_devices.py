"""XLA's partitioner and per-sample gradients of convolutions: why samples are spread by hand."""

import os
import subprocess
import sys

FAULT = """
import jax, jax.numpy as jnp
w, x, form = jnp.ones((3, 3, 1, 2)), jnp.arange(128.0).reshape(8, 4, 4, 1), ("NHWC", "HWIO", "NHWC")
conv = lambda w, x: jax.lax.conv_general_dilated(x[None], w, (1, 1), "SAME", (1, 1), (1, 1), form)
slopes = jax.jit(jax.vmap(jax.grad(lambda w, x: jnp.sum(conv(w, x) ** 2)), (None, 0)))
spread = jax.NamedSharding(jax.sharding.Mesh(jax.devices(), "data"), jax.P("data"))
print(float(jnp.max(jnp.abs(slopes(w, jax.device_put(x, spread)) / slopes(w, x) - 1))))
"""


def test_the_partitioner_still_gets_convolutions_wrong():
    """When this fails, the fault is gone: say so in docs/devices.md, and keep the shard_map."""
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", FAULT]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) > 0.1
