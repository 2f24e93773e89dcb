"""Questions about the geometry of a model: rank, invariance, kernels, distances."""
