"""A fuzzer: random natural gradients, compared with a reference in arbitrary precision.

`python -m tests.fuzz --help`; what is compared with what is in `judge.py`.
"""
