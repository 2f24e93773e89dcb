"""The exact natural gradient against its floor and its peers, as ratios measured in one run: `make bench`, `python -m bench --help`.

Ships with the repository only. What runs in a peer's environment (`problems`, `worker`, `peers/`) needs NumPy and that peer, nothing else.
"""
