"""The laboratory: every claim of the sources run and judged, published problems, and the command
line.
"""
