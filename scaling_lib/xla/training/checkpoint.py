"""Checkpoints by Orbax: saved from one mesh, restored onto another. Used in labs/05a-data.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

Tree = Any  # of arrays


def save(folder: str | Path, tree: Tree) -> Path:
    """Write every array of a tree into a folder, which is replaced if it exists; the folder's full path.

    Every device's part is written as it is: nothing is gathered.

    Raises:
        ImportError: without Orbax, with the remedy.
    """
    path = Path(folder).resolve()
    checkpointer = _orbax().StandardCheckpointer()
    checkpointer.save(path, tree, force=True)
    checkpointer.wait_until_finished()
    checkpointer.close()
    return path


def restore(folder: str | Path, like: Tree) -> Tree:
    """The tree that `save` wrote, laid out as `like` says.

    Args:
        folder: that `save` wrote.
        like: shapes, dtypes and shardings: a tree of `jax.ShapeDtypeStruct`, as `llama.specs` gives it, or of arrays. The mesh
            may be another one than it was saved from.

    Raises:
        ImportError: without Orbax, with the remedy.
        ValueError: for a folder without a checkpoint, with the remedy.
    """
    path = Path(folder).resolve()
    orbax = _orbax()
    if not path.is_dir():
        raise ValueError(f"folder={str(folder)!r} holds no checkpoint; run the cell that saves it first")
    spec: Any = jax.ShapeDtypeStruct
    abstract = jax.tree.map(lambda x: spec(x.shape, x.dtype, sharding=x.sharding), like)
    checkpointer = orbax.StandardCheckpointer()
    tree = checkpointer.restore(path, abstract)
    checkpointer.close()
    return tree


def _orbax() -> Any:
    try:
        import orbax.checkpoint
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "orbax":
            raise
        raise ImportError("checkpoints need Orbax: pip install orbax-checkpoint, then run this cell again") from None
    return orbax.checkpoint
