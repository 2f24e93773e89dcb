"""PyTorch: the structured algorithm written by hand, the same through torch.func's Jacobian, and
three libraries.

- `structured`: X and D of each layer, K = Σ (X Xᵀ + 1) ∘ (D Dᵀ) with the softmax factor of rank C -
  1, Cholesky; for m ≥ P outputs contracted before samples;
- `func`: per-sample Jacobians by torch.func, then A Aᵀ or AᵀA;
- `curvlinops`: its GGN operator, SciPy's conjugate gradients;
- `nngeometry`: its Gram matrix of the whitened outputs, or its dense Fisher matrix for m ≥ P;
- `backpack`: its root of the GGN, V with V Vᵀ = G, formed densely.

Whitening, factorisation and the last pull around the libraries are written here.
"""

import os
import warnings

import numpy as np
import torch
from torch.func import functional_call, jacrev, vmap

from ..problems import IMAGE, WORKLOADS, Workload, flat, make
from ..worker import Approach

PACKAGES = ("torch", "curvlinops-for-pytorch", "nngeometry", "backpack-for-pytorch", "scipy")


class _Same(torch.nn.Module):
    """JAX's SAME padding for a 3×3 kernel of stride 2 on even sides: none before, one after."""

    def forward(self, x):
        return torch.nn.functional.pad(x, (0, 1, 0, 1))


class _Rows(torch.nn.Module):
    """Flatten in the order height, width, channel."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


def network(workload: Workload, params) -> torch.nn.Sequential:
    """The model as a sequence of modules."""
    modules: list[torch.nn.Module] = []
    for i, (w, b) in enumerate(params):
        last = i == len(params) - 1
        if w.ndim == 4:
            module = torch.nn.Conv2d(w.shape[2], w.shape[3], 3, stride=2)
            weight = w.transpose(3, 2, 0, 1)
            modules += [_Same(), module]
        else:
            module = torch.nn.Linear(*w.shape)
            weight = w.T
            modules += ([_Rows()] if workload.kind == "conv" else []) + [module]
        module.weight.data = torch.tensor(np.ascontiguousarray(weight))
        module.bias.data = torch.tensor(b)
        modules += [] if last else [torch.nn.Tanh()]
    return torch.nn.Sequential(*modules)


def inputs(workload: Workload, batch):
    """The batch as tensors, images with the channel first."""
    x, y = batch
    if workload.kind == "conv":
        x = x.reshape(-1, 1, IMAGE, IMAGE)
    return torch.tensor(x), torch.tensor(y).long() if workload.softmax else torch.tensor(y)


def canonical(tensors) -> np.ndarray:
    """A vector on the parameters of the modules as one flat vector in the order and layout of the
    workload.
    """
    back = {4: lambda a: a.transpose(2, 3, 1, 0), 2: lambda a: a.T, 1: lambda a: a}
    return flat([back[t.ndim](t.detach().numpy()) for t in tensors])


def whitening(workload: Workload, z, y):
    """S (N, C, q) with S Sᵀ = M/N, and r (N, q) with S r = c."""
    n, classes = z.shape
    if not workload.softmax:
        return torch.full((n, classes, 1), n**-0.5, dtype=z.dtype), (z - y) / n**0.5
    p = torch.softmax(z, 1)
    root = p.sqrt()
    u = root.clone()
    u[:, -1] += 1
    columns = (
        torch.eye(classes, dtype=z.dtype)[:, :-1]
        - u[:, :, None] * u[:, None, :-1] / u[:, -1, None, None]
    )
    c = p.clone()
    c[torch.arange(n), y] -= 1
    return root[:, :, None] * columns / n**0.5, torch.einsum(
        "ncq,nc->nq", columns, c / root
    ) / n**0.5


def _cholesky_solve(gram, damping, b):
    gram.diagonal().add_(damping)
    return torch.cholesky_solve(b.reshape(-1, 1), torch.linalg.cholesky(gram)).ravel()


def _loss(workload: Workload, z, y):
    return (
        torch.nn.functional.cross_entropy(z, y) if workload.softmax else ((z - y) ** 2).mean() / 2
    )


class _Taps:
    """Inputs X and cotangents D (q, N, width) of each layer of an MLP, by hand."""

    def __init__(self, workload: Workload, model, x, y):
        weights = [m.weight for m in model if isinstance(m, torch.nn.Linear)]
        biases = [m.bias for m in model if isinstance(m, torch.nn.Linear)]
        self.inputs = [x]
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            self.inputs.append(torch.tanh(torch.addmm(b, self.inputs[-1], w.T)))
        z = torch.addmm(biases[-1], self.inputs[-1], weights[-1].T)
        root, self.r = whitening(workload, z, y)
        self.cotangents = [root.permute(2, 0, 1).contiguous()]
        for w, h in zip(weights[:0:-1], self.inputs[:0:-1], strict=True):
            self.cotangents.insert(0, (self.cotangents[0] @ w) * (1 - h**2))

    def pull(self, y):
        """Aᵀy from y (q, N)."""
        out = []
        for x, d in zip(self.inputs, self.cotangents, strict=True):
            total = torch.einsum("qn,qnb->nb", y, d)
            out += [total.T @ x, total.sum(0)]
        return out


def _structured_dual(workload: Workload, model, x, y):
    with torch.no_grad():
        taps = _Taps(workload, model, x, y)
        n, q = taps.r.shape
        kernel = torch.zeros(n * q, n * q, dtype=x.dtype)
        layer = torch.empty(n * q, n * q, dtype=x.dtype)
        for a, d in zip(taps.inputs, taps.cotangents, strict=True):
            rows = d.reshape(n * q, -1)
            torch.mm(rows, rows.T, out=layer)
            kernel.view(q, n, q, n).addcmul_(
                layer.view(q, n, q, n), (a @ a.T + 1)[None, :, None, :]
            )
        return taps.pull(_cholesky_solve(kernel, workload.damping, taps.r.T).view(q, n))


def _structured_primal(workload: Workload, model, x, y, block: int = 1000):
    with torch.no_grad():
        taps = _Taps(workload, model, x, y)
        widths = [
            (a.shape[1] + 1) * d.shape[2] for a, d in zip(taps.inputs, taps.cotangents, strict=True)
        ]
        starts = np.concatenate([[0], np.cumsum(widths)])
        gram = torch.zeros(int(starts[-1]), int(starts[-1]), dtype=x.dtype)
        n = len(x)
        augmented = [torch.cat([a, torch.ones(n, 1, dtype=x.dtype)], 1) for a in taps.inputs]
        for start in range(0, n, block):
            part = slice(start, start + block)
            for i, (a, d) in enumerate(zip(augmented, taps.cotangents, strict=True)):
                for j in range(i + 1):
                    e = taps.cotangents[j]
                    left = (a[part, :, None] * augmented[j][part, None, :]).flatten(1)
                    right = torch.einsum("qna,qnb->nab", d[:, part], e[:, part]).flatten(1)
                    found = (left.T @ right).view(
                        a.shape[1], augmented[j].shape[1], d.shape[2], e.shape[2]
                    )
                    target = gram[starts[i] : starts[i + 1], starts[j] : starts[j + 1]]
                    target += found.permute(2, 0, 3, 1).reshape(target.shape)
        for i in range(len(widths)):
            for j in range(i):
                rows = slice(starts[i], starts[i + 1])
                columns = slice(starts[j], starts[j + 1])
                gram[columns, rows] = gram[rows, columns].T
        pulled = taps.pull(taps.r.T)
        g = torch.cat(
            [
                torch.cat([w, b[:, None]], 1).ravel()
                for w, b in zip(pulled[::2], pulled[1::2], strict=True)
            ]
        )
        v = _cholesky_solve(gram, workload.damping, g)
        out = []
        for i, (a, d) in enumerate(zip(augmented, taps.cotangents, strict=True)):
            layer = v[starts[i] : starts[i + 1]].view(d.shape[2], a.shape[1])
            out += [layer[:, :-1], layer[:, -1]]
        return out


def _unflatten(model, v):
    parameters = list(model.parameters())
    parts = torch.split(v, [p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


def _func(workload: Workload, model, x, y, block: int = 500):
    params = {k: p.detach() for k, p in model.named_parameters()}

    def rows(x, root):
        def one(params, x, root):
            return root.T @ functional_call(model, params, (x[None],))[0]

        found = vmap(jacrev(one), (None, 0, 0))(params, x, root)
        return torch.cat([found[k].flatten(2) for k in params], 2).flatten(0, 1)

    with torch.no_grad():
        root, r = whitening(workload, model(x), y)
        size = sum(p.numel() for p in params.values())
        if workload.rows < size:
            a = rows(x, root)
            return _unflatten(model, a.T @ _cholesky_solve(a @ a.T, workload.damping, r))
        gram = torch.zeros(size, size, dtype=x.dtype)
        g = torch.zeros(size, dtype=x.dtype)
        for start in range(0, len(x), block):
            part = slice(start, start + block)
            a = rows(x[part], root[part])
            gram.addmm_(a.T, a)
            g += a.T @ r[part].ravel()
        return _unflatten(model, _cholesky_solve(gram, workload.damping, g))


def _curvlinops(workload: Workload, model, x, y):
    from curvlinops import GGNLinearOperator
    from scipy.sparse.linalg import LinearOperator, cg

    parameters = list(model.parameters())
    loss = torch.nn.CrossEntropyLoss() if workload.softmax else torch.nn.MSELoss()
    # curvlinops' squared error is not halved: its GGN and its gradient are twice ours.
    scale = 1.0 if workload.softmax else 0.5
    operator = GGNLinearOperator(model, loss, parameters, [(x, y)], check_deterministic=False)
    dtype = np.dtype(workload.dtype)
    export = operator.to_scipy(dtype=dtype)
    g = torch.cat(
        [p.ravel() for p in torch.autograd.grad(_loss(workload, model(x), y), parameters)]
    ).numpy()
    damped = LinearOperator(
        operator.shape,
        lambda v: scale * export.matvec(v.astype(dtype)) + workload.damping * v,
        dtype=dtype,
    )
    rtol = 1e-6 if dtype == np.float32 else 1e-10
    v, _ = cg(damped, g, rtol=rtol, atol=0.0, maxiter=5000)
    return _unflatten(model, torch.tensor(v))


def _nngeometry(workload: Workload, model, x, y):
    from nngeometry.gram import GramMatrix
    from nngeometry.metrics import FIM
    from nngeometry.object import PMatDense
    from torch.utils.data import DataLoader, TensorDataset

    x = x.detach()
    size = sum(p.numel() for p in model.parameters())
    if workload.rows >= size:
        loader = DataLoader(TensorDataset(x, y), batch_size=1000)
        fisher = FIM(model=model, loader=loader, representation=PMatDense, variant="classif_logits")
        g = torch.autograd.grad(_loss(workload, model(x), y), list(model.parameters()))
        flat_g = torch.cat([p.ravel() for p in g])
        with torch.no_grad():
            return _unflatten(model, _cholesky_solve(fisher.to_torch(), workload.damping, flat_g))
    with torch.no_grad():
        root, r = whitening(workload, model(x), y)
    loader = DataLoader(TensorDataset(x, root), batch_size=len(x))
    gram = GramMatrix(
        model, loader, function=lambda x, root: torch.einsum("ncq,nc->nq", root, model(x))
    )
    with torch.no_grad():
        m = workload.rows
        solved = _cholesky_solve(gram.data.view(m, m), workload.damping, r.T).view(r.T.shape).T
    z = model(x)
    return torch.autograd.grad(
        (torch.einsum("ncq,nc->nq", root, z) * solved).sum(), list(model.parameters())
    )


def _backpack(workload: Workload, model, x, y):
    from backpack import backpack, extend
    from backpack.extensions import SqrtGGNExact

    model = extend(model)
    loss = extend(torch.nn.CrossEntropyLoss())
    model.zero_grad()
    with backpack(SqrtGGNExact()):
        loss(model(x), y).backward()
    with torch.no_grad():
        parameters = list(model.parameters())
        v = torch.cat([p.sqrt_ggn_exact.flatten(2) for p in parameters], 2)
        v = v.flatten(0, 1)
        g = torch.cat([p.grad.ravel() for p in parameters])
        # The root gives G = VᵀV without a lift of the loss: (G + λ)⁻¹ g = (g - Vᵀ (V Vᵀ + λ)⁻¹ V
        # g)/λ.
        found = (g - v.T @ _cholesky_solve(v @ v.T, workload.damping, v @ g)) / workload.damping
        return _unflatten(model, found)


def build(name: str, approach: str) -> Approach:
    """An approach of PyTorch on a workload, one of those listed above."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    params, batch = make(workload)
    torch.set_default_dtype(getattr(torch, workload.dtype))
    model = network(workload, params)
    (x, y) = inputs(workload, batch)
    dual = workload.rows < flat(params).size
    route = {
        "structured": _structured_dual if dual else _structured_primal,
        "func": _func,
        "curvlinops": _curvlinops,
        "nngeometry": _nngeometry,
        "backpack": _backpack,
    }[approach]
    return Approach(lambda: route(workload, model, x, y), canonical)
