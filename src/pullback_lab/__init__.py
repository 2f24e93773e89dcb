"""The laboratory of `pullback`: the claims of its sources, published problems, the command line."""
