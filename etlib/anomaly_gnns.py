"""Graph neural networks to compare with: a GCN, and a network of Beta wavelets.

Both from PyTorch and the graph operators of PyTorch Geometric, on the full graph. There is no
dropout, so that the scores of an epoch and its loss come from one forward pass.
"""

import warnings
from functools import partial
from math import comb

import numpy as np
from numpy.polynomial import Polynomial
from threadpoolctl import threadpool_limits

from etlib.detection import Best, Task


def gcn(task: Task, seed: int, n_epochs: int = 100, width: int = 64, lr: float = 0.01) -> Best:
    """Two layers of graph convolution (Kipf & Welling, ICLR 2017)."""
    return _train(partial(gcn_network, task, width), task, seed, n_epochs, lr)


def beta_wavelets(
    task: Task, seed: int, n_epochs: int = 100, width: int = 64, lr: float = 0.01, order: int = 2
) -> Best:
    """Band-pass filters side by side, joined by a perceptron (Tang et al., ICML 2022): what
    BWGNN does on a graph of one relation."""
    return _train(partial(wavelet_network, task, width, order), task, seed, n_epochs, lr)


def gcn_network(task: Task, width: int):
    """x <- D^-1/2 (A + I) D^-1/2 (x W + b), D the degrees of A + I, twice, with a relu between."""
    import torch
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    spread = _symmetric_product(*gcn_norm(_edges(task), num_nodes=task.graph.n_nodes), task)

    class GCN(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(task.x.shape[1], width)
            self.second = torch.nn.Linear(width, 2)

        def forward(self, x):
            return spread(self.second(torch.relu(spread(self.first(x)))))

    return GCN()


def wavelet_network(task: Task, width: int, order: int):
    """Perceptron, the wavelets 0 to `order` of its output beside each other, perceptron."""
    import torch
    from torch_geometric.utils import get_laplacian

    laplacian = get_laplacian(
        _edges(task), normalization="sym", num_nodes=task.graph.n_nodes, dtype=torch.float32
    )
    times_L = _symmetric_product(*laplacian, task)
    filters = torch.tensor(wavelet_coefficients(order), dtype=torch.float32)

    class BetaWavelets(torch.nn.Module):
        def __init__(self):
            super().__init__()
            relu, linear = torch.nn.ReLU(), torch.nn.Linear
            self.embed = torch.nn.Sequential(
                linear(task.x.shape[1], width), relu, linear(width, width), relu
            )
            self.classify = torch.nn.Sequential(
                linear((order + 1) * width, width), relu, linear(width, 2)
            )

        def forward(self, x):
            powers = [self.embed(x)]
            for _ in range(order):
                powers.append(times_L(powers[-1]))
            bands = torch.einsum("pk,knw->npw", filters, torch.stack(powers))
            return self.classify(bands.flatten(1))

    return BetaWavelets()


def wavelet_coefficients(order: int) -> np.ndarray:
    """Row p holds the coefficients, lowest power of L first, of the Beta wavelet

    W_p(L) = (L/2)^p (I - L/2)^(C-p) / (2 B(p+1, C-p+1)), C = `order`, p = 0 to C.

    Together they are a constant: they sum to (C + 1) / 2.
    """
    low, high = Polynomial([0, 0.5]), Polynomial([1, -0.5])
    rows = [
        low**p * high ** (order - p) * ((order + 1) * comb(order, p) / 2) for p in range(order + 1)
    ]
    return np.array([np.pad(row.coef, (0, order + 1 - len(row.coef))) for row in rows])


def _edges(task: Task):
    import torch

    return torch.from_numpy(task.graph.edges.astype(np.int64))


def _symmetric_product(index, weight, task: Task):
    """x -> S x for a sparse symmetric S, whose derivative is then the same product.

    PyTorch's own derivative transposes S in every backward pass, which takes five times longer.
    """
    import torch
    from torch_geometric.utils import to_torch_csr_tensor

    with warnings.catch_warnings():  # PyTorch calls its sparse rows a beta state
        warnings.simplefilter("ignore", UserWarning)
        S = to_torch_csr_tensor(index, weight, size=(task.graph.n_nodes,) * 2)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return S @ x

        @staticmethod
        def backward(ctx, gradient):
            return S @ gradient

    return Product.apply


def _train(make, task: Task, seed: int, n_epochs: int, lr: float) -> Best:
    """Adam on the weighted cross-entropy of the training nodes, all at once.

    On one thread, as gradient boosting: beside another busy program, threads that wait for one
    another at every product take ten times as long.
    """
    import torch

    best = Best(task.graph.labels, task.parts.validation)
    with threadpool_limits(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        x, train = torch.from_numpy(task.x), torch.from_numpy(task.parts.train)
        y = torch.from_numpy(task.graph.labels.astype(np.int64))[train]
        loss = torch.nn.CrossEntropyLoss(torch.tensor([1.0, task.weight]))
        optimiser = torch.optim.Adam(model.parameters(), lr=lr)
        for epoch in range(n_epochs + 1):
            logits = model(x)
            best.offer(epoch, (logits[:, 1] - logits[:, 0]).detach().numpy())
            if epoch < n_epochs:
                optimiser.zero_grad()
                loss(logits[train], y).backward()
                optimiser.step()
    return best
