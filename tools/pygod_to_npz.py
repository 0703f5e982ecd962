"""Convert a set of PyGOD's data repository, NAME.pt.zip, to the .npz that etlib reads. Once.

    python tools/pygod_to_npz.py reddit.pt.zip $ETLIB_DATA/fraud/reddit/reddit.npz

The archive holds one graph that PyTorch saved by pickling. PyTorch is told to load weights only:
it then rebuilds tensors and PyTorch Geometric's plain store, and refuses anything else.
"""

import sys
import zipfile
from pathlib import Path

import numpy as np


def convert(source: str, target: str) -> None:
    import torch
    from torch_geometric.data.data import Data, DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    with zipfile.ZipFile(source) as archive, archive.open(archive.namelist()[0]) as file:
        plain = {Data, DataEdgeAttr, DataTensorAttr, GlobalStorage}
        # Those that PyTorch Geometric allows for good must not be withdrawn at the end.
        more = list(plain.difference(torch.serialization.get_safe_globals()))
        with torch.serialization.safe_globals(more):
            graph = torch.load(file, weights_only=True)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        target,
        x=graph.x.numpy().astype(np.float32),
        edge_index=graph.edge_index.numpy(),
        y=graph.y.numpy().astype(np.int64),
    )
    print(f"{target}: {graph.num_nodes} nodes, {graph.num_edges} edges")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
