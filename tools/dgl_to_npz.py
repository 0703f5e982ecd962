"""Convert T-Finance or T-Social from DGL's binary format to the .npz that etlib reads. Once.

The two sets are shared by the authors of BWGNN as files `tfinance` and `tsocial` that only the
library DGL reads. DGL is not among this project's dependencies (its last release wants an older
PyTorch), so run this file by itself, in an environment of its own, such as:

    python3.10 -m venv dgl-env
    dgl-env/bin/pip install "torch==2.0.1" "dgl==1.1.3" "numpy<2"
    dgl-env/bin/python dgl_to_npz.py dataset/tfinance $ETLIB_DATA/fraud/tfinance/tfinance.npz

T-Social takes about 12 GB of memory. The file holds x float32 (n, F), edge_index int32 (2, m)
and y int8 (n,); edges are written as they are listed, and etlib makes them simple.
"""

import sys
from pathlib import Path

import numpy as np


def convert(source: str, target: str) -> None:
    from dgl.data.utils import load_graphs

    (graph,), _ = load_graphs(source)
    label = graph.ndata["label"].numpy()
    if label.ndim == 2:  # T-Finance: one-hot
        label = label.argmax(axis=1) if label.shape[1] == 2 else label[:, 0]
    senders, receivers = graph.edges()
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        target,
        x=graph.ndata["feature"].numpy().astype(np.float32),
        edge_index=np.stack([senders.numpy(), receivers.numpy()]).astype(np.int32),
        y=label.astype(np.int8),
    )
    print(
        f"{target}: {graph.num_nodes()} nodes, {graph.num_edges()} edges, {label.sum()} anomalies"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(*sys.argv[1:])
