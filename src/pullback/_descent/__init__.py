"""The optimiser and its Optax interface."""
