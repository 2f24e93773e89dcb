"""The problem: model, loss, metric and measure, and the batch it is evaluated on."""
