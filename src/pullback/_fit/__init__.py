"""The training loop: batches, progress, history, checkpoints."""
