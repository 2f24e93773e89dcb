"""What is run on each workload. Peers are left out where they cannot (scalar outputs, no attention)
or would take minutes per run.
"""

from .measure import Entry
from .problems import DEPTHS, REPEATS

OURS = Entry("pullback", "ours", "ours", "default")
GENERIC = Entry("pullback, generic route (J formed)", "ours", "ours", "generic")
SMALL = Entry("pullback, without huge pages", "ours", "ours", "default", huge=False)
WHOLE = Entry("pullback, with certificate and statistics", "ours", "ours", "whole")
KRYLOV = Entry("pullback, Krylov", "ours", "ours", "krylov")
FLOOR = Entry("floor", "ours", "floor", "floor")
TORCH = Entry("torch, the structured algorithm by hand", "torch", "torch_libraries", "structured")
FUNC = Entry("torch.func Jacobian", "torch", "torch_libraries", "func")
CURVLINOPS = Entry("curvlinops GGN + SciPy CG", "torch", "torch_libraries", "curvlinops")
NNGEOMETRY = Entry("nngeometry", "torch", "torch_libraries", "nngeometry")
BACKPACK = Entry("backpack SqrtGGN", "torch", "torch_libraries", "backpack")
TANGENTS = Entry(
    "neural-tangents, structured derivatives", "neural-tangents", "neural_tangents", "structured"
)
CONTRACTION = Entry(
    "neural-tangents, Jacobian contraction", "neural-tangents", "neural_tangents", "jacobian"
)
MINSR = Entry("netket minSR", "netket", "netket", "minsr")
SR = Entry("netket SR", "netket", "netket", "sr")
VMC_SR = Entry("netket VMC_SR, its default", "netket", "netket", "vmc_sr")
UNDECLARED = Entry("pullback, holomorphic=False", "ours", "ours", "undeclared")

ENTRIES = {
    "W1": [
        OURS,
        SMALL,
        FLOOR,
        TORCH,
        TANGENTS,
        NNGEOMETRY,
        CURVLINOPS,
        KRYLOV,
        GENERIC,
        FUNC,
        BACKPACK,
        CONTRACTION,
        MINSR,
    ],
    "W2": [OURS, FLOOR, TORCH, NNGEOMETRY, TANGENTS, GENERIC, FUNC, MINSR, CONTRACTION, CURVLINOPS],
    "W2p": [OURS, WHOLE, FLOOR, GENERIC],
    "P5": [OURS, WHOLE, FLOOR, GENERIC],
    "P10": [OURS, WHOLE, FLOOR, GENERIC],
    "W3": [OURS, FLOOR, TORCH, GENERIC, FUNC, NNGEOMETRY, SR],
    "W4": [OURS, SMALL, FLOOR, TORCH, NNGEOMETRY, KRYLOV, CURVLINOPS],
    "W5": [
        entry
        for depth in DEPTHS
        for entry in (
            Entry(f"plain gradient, L = {depth}", "ours", "ours", f"gradient-{depth}"),
            Entry(f"pullback.linear.MatrixProduct, L = {depth}", "ours", "ours", f"closed-{depth}"),
            Entry(f"LU recursion in SciPy, L = {depth}", "ours", "floor", f"recursion-{depth}"),
        )
    ],
    "R1": [OURS, FLOOR, GENERIC, TANGENTS, NNGEOMETRY, CURVLINOPS],
    "R2": [OURS, FLOOR, GENERIC, TANGENTS],
    "V1": [OURS, GENERIC, VMC_SR, MINSR],
    "V2": [OURS, GENERIC, VMC_SR, MINSR, SR],
    "V3": [OURS, UNDECLARED],
}
PRODUCTS = [
    Entry("one gradient of the loss", "ours", "ours", "gradients", REPEATS),
    Entry("one product G v", "ours", "ours", "metric-products", REPEATS),
    Entry("one product K y", "ours", "ours", "kernel-products", REPEATS),
]
"""On W4, after the linearisation; K is the kernel, m × m."""
COMPILED = ("W1", "W4", "W2p", "P5", "P10")
"""The workloads whose time to trace and compile has a goal."""
