"""A convolutional network in Equinox on handwritten digits, without and with batch normalisation.

`python examples/digits_cnn.py` prints how each does on held-out digits and what a step costs.
"""

import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # CPU time counts threads that wait

import equinox as eqx
import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

import pullback as pb

STEPS = 25
images, labels = load_digits(return_X_y=True)
images, labels = jnp.asarray(images.reshape(-1, 1, 8, 8) / 16, jnp.float32), jnp.asarray(labels)
training, held_out = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


class Net(eqx.Module):
    """Two convolutions, each normalised if asked for, and a linear layer: one image."""

    convolutions: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    last: eqx.nn.Linear

    def __init__(self, key, normalised):
        """Build a network of 8 and 16 channels."""
        one, two, three = jax.random.split(key, 3)
        shapes = ((1, 8, one), (8, 16, two))
        self.convolutions = [eqx.nn.Conv2d(i, o, 3, padding=1, key=key) for i, o, key in shapes]
        norm = lambda size: eqx.nn.BatchNorm(size, "batch", momentum=0.9, mode="batch")
        self.norms = [norm(8), norm(16)] if normalised else []
        self.last = eqx.nn.Linear(16 * 64, 10, key=three)

    def __call__(self, x, state):
        """Return the logits and the new running statistics."""
        for k, convolution in enumerate(self.convolutions):
            x = convolution(x)
            if self.norms:
                x, state = self.norms[k](x, state)
            x = jax.nn.relu(x)
        return self.last(x.ravel()), state


def model(net, state, x):
    """The whole batch: one state goes in, one comes out."""
    return jax.vmap(net, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)


def train(normalised):
    """Train; batch normalisation mixes samples (`coupled`), and has a state."""
    net, state = eqx.nn.make_with_state(Net)(jax.random.key(0), normalised)
    problem = pb.Composite(model, metric=pb.metric.Categorical(), coupled=normalised, stateful=True)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.Fixed(0.3), inverse=pb.Tikhonov(0.1))
    point, batches = pb.Stateful(net, state), pb.minibatches(training, 64)
    pb.fit(opt, point, batches, steps=1)  # compiles
    start = time.process_time()
    fit = pb.fit(opt, point, batches, steps=STEPS)
    return fit.params, fit.history, (time.process_time() - start) / STEPS


def accuracy(point):
    """The fraction of held-out digits that are right, with the running statistics."""
    logits, _ = model(eqx.nn.inference_mode(point.params), point.state, held_out[0])
    return float(jnp.mean(jnp.argmax(logits, axis=1) == held_out[1]))


seconds = {}
for normalised in (False, True):
    point, h, seconds[normalised] = train(normalised)
    right, losses = accuracy(point), f"loss {h['loss'][0]:.2f} -> {h['loss'][-1]:.2f}"
    name = f"{'with' if normalised else 'without'} batch normalisation"
    print(f"{name}: {losses} in {STEPS} steps, {right:.1%} of held-out digits")
    assert right > 0.8
print(f"batch normalisation costs {seconds[True] / seconds[False]:.1f} times as much per step")
