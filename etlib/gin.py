"""The baseline of graph classification: GIN (Xu et al. 2019) of PyTorch Geometric.

Four rounds of message passing, 64 wide, with batch normalisation; the representations of all
rounds are concatenated, summed over the nodes, and read linearly under dropout of a half. Adam
at 0.01, halved six times over the run (every 50 of 300 epochs). These are the defaults of the
authors' own program, not tuned here. Features of edges are not used.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from etlib.data.graphset import Graph
from etlib.evaluation import Fold, Part

HIDDEN, N_LAYERS, DROPOUT, PEAK_LR = 64, 4, 0.5, 0.01


class GINLearner:
    """A GIN on one fold; `etlib.graph_training.Learner` says what its methods do."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        fold: Fold,
        n_classes: int,
        *,
        epochs: int,
        batch: int = 64,
        seed: int = 0,
    ):
        import torch

        self.graphs = [_data(graph) for graph in graphs]
        self.fold, self.epochs, self.batch, self.seed = fold, epochs, batch, seed
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        with _seeded(seed):
            self.model = _classifier(graphs[0].x.shape[1], n_classes).to(self.device)

    def fit(self, after_epoch: Callable[[], None]) -> list[float]:
        import torch

        losses = []

        optimiser = torch.optim.Adam(self.model.parameters(), lr=PEAK_LR)
        halving = torch.optim.lr_scheduler.StepLR(optimiser, max(1, self.epochs // 6), 0.5)
        loader = self._loader(self.fold.train, torch.Generator().manual_seed(self.seed))
        with _seeded(self.seed):  # dropout
            for _ in range(self.epochs):
                self.model.train()
                for batch in loader:
                    batch = batch.to(self.device)
                    optimiser.zero_grad()
                    loss = torch.nn.functional.cross_entropy(self.model(batch), batch.y)
                    loss.backward()
                    optimiser.step()
                halving.step()
                losses.append(loss.item())
                after_epoch()
        return losses

    def logits(self, part: Part) -> Float[np.ndarray, "graphs classes"]:
        import torch

        self.model.eval()
        loader = self._loader(getattr(self.fold, part))
        with _seeded(self.seed), torch.no_grad():
            found = [self.model(batch.to(self.device)) for batch in loader]
        return torch.cat(found).cpu().numpy()

    def weights(self) -> Any:
        return copy.deepcopy(self.model.state_dict())

    def restore(self, weights: Any) -> None:
        self.model.load_state_dict(weights)

    def _loader(self, index: np.ndarray, shuffled_by: Any = None):
        from torch_geometric.loader import DataLoader

        return DataLoader(
            [self.graphs[i] for i in index],
            self.batch,
            shuffle=shuffled_by is not None,
            generator=shuffled_by,
        )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch with random numbers of its own, and one thread: on batches this small more threads
    only wait for one another."""
    import torch

    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _data(graph: Graph):
    import torch
    from torch_geometric.data import Data

    return Data(
        x=torch.from_numpy(graph.x),
        edge_index=torch.from_numpy(graph.edges.astype(np.int64)),
        y=torch.tensor(graph.y),
    )


def _classifier(n_features: int, n_classes: int):
    import torch
    from torch_geometric.nn import global_add_pool
    from torch_geometric.nn.models import GIN

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nodes = GIN(n_features, HIDDEN, N_LAYERS, HIDDEN, norm="batch_norm", jk="cat")
            self.read = torch.nn.Sequential(
                torch.nn.Dropout(DROPOUT), torch.nn.Linear(HIDDEN, n_classes)
            )

        def forward(self, batch):
            x = self.nodes(batch.x, batch.edge_index)
            return self.read(global_add_pool(x, batch.batch, batch.num_graphs))

    return Classifier()
