"""Checkpoints of a training: the state, and the position of its data iterator."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from etlib.errors import UserError


class CheckpointMismatch(UserError):
    """A checkpoint of another model; the message lists every array that differs."""


class Checkpoints:
    """The checkpoints in one folder, of which the newest two are kept.

    Orbax writes a checkpoint under another name and renames it when complete, so that one
    whose saving was interrupted is never read.
    """

    def __init__(self, folder: Path):
        self.folder = folder.resolve()  # Orbax wants absolute paths
        self.manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=2, cleanup_tmp_directories=True),
            # Named handlers, so that what a checkpoint holds can be asked for before restoring it.
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "data": ocp.JsonCheckpointHandler(),
            },
        )

    def save(self, step: int, state: PyTree, batches: Any) -> None:
        """Write the state after `step` in the background, with the iterator's position."""
        position = batches.get_state() if hasattr(batches, "get_state") else {}
        items = {"state": ocp.args.StandardSave(state), "data": ocp.args.JsonSave(position)}
        self.manager.save(step, args=ocp.args.Composite(**items))

    def restore(self, state: PyTree, batches: Any) -> PyTree:
        """The newest checkpoint, with `batches` moved to its position; or `state` if there is none.

        Raises CheckpointMismatch unless its arrays have the names, shapes and types of `state`.
        """
        step = self.manager.latest_step()
        if step is None:
            return state
        self._check(step, state)
        items = {"state": ocp.args.StandardRestore(state), "data": ocp.args.JsonRestore()}
        found = self.manager.restore(step, args=ocp.args.Composite(**items))
        if hasattr(batches, "set_state"):
            batches.set_state(found["data"])
        return found["state"]

    def close(self) -> None:
        """Wait until everything is written."""
        self.manager.close()

    def _check(self, step: int, state: PyTree) -> None:
        stored = _arrays(self.manager.item_metadata(step)["state"].tree)
        wanted = _arrays(state)
        lines = [
            f"  {name}: stored {stored.get(name, 'nothing')}, wanted {wanted.get(name, 'nothing')}"
            for name in sorted(stored.keys() | wanted.keys())
            if stored.get(name) != wanted.get(name)
        ]
        if lines:
            raise CheckpointMismatch(
                f"the checkpoint of step {step} in {self.folder} is of another model or "
                "configuration:\n" + "\n".join(lines) + "\n"
                "Train in a new folder, or with the configuration that wrote this one."
            )


def array_names(tree: PyTree) -> list[str]:
    """The path of every array in flattening order, as block/Wk; alike in any kind of container."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    # "value" is Flax's own last step into a parameter.
    return ["/".join(_name(key) for key in path).removesuffix("/value") for path in paths]


def _arrays(tree: PyTree) -> dict[str, str]:
    """Type and shape of every array by its path."""
    kinds = [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(tree)]
    return dict(zip(array_names(tree), kinds, strict=True))


def _name(key: Any) -> str:
    """A dictionary's key, a dataclass's field or a list's index."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
