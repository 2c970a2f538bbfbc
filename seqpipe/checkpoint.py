"""Save and load what a trained network needs: weights, configuration, encoding of its input.

Place in the flow: training -> [checkpoint] -> prediction.

A checkpoint holds tensors and plain values only, so that it loads with ``weights_only=True``:
opening one never runs code. It is a zip file whose entries carry a CRC-32, all checked on load.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from seqpipe.errors import CheckpointError
from seqpipe.publish import published

FORMAT = "seqpipe-checkpoint"
FORMAT_VERSION = 1
KEYS = ("model_config", "task", "data", "model", "epoch", "step", "metrics")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` to ``path``, whole or not at all.

    Args:
        path: replaced when it exists.
        state: plain values and tensors; at least ``KEYS``.
    """
    with published(path) as file:
        torch.save({"format": FORMAT, "format_version": FORMAT_VERSION, **state}, file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state of the checkpoint at ``path``, its tensors on the CPU.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint of seqpipe, or of a newer version.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; expected best.pt or last.pt of a run directory", path=path)
    if not zipfile.is_zipfile(path):
        raise CheckpointError(
            f"{path}: not a checkpoint, or one cut short: it is no zip file; expected best.pt or last.pt "
            "of a run directory", path=path,
        )
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        state = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError,
            pickle.UnpicklingError) as error:
        first_line = str(error).split("\n")[0]
        raise CheckpointError(f"{path}: damaged, or not made by seqpipe ({first_line})", path=path) from None
    if damaged:
        raise CheckpointError(f"{path}: damaged: the entry {damaged} fails its CRC-32", path=path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: a torch file, but no checkpoint of seqpipe", path=path)
    if state["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: checkpoint of format version {state['format_version']}, this seqpipe reads up to "
            f"{FORMAT_VERSION}; install a newer seqpipe", path=path,
        )
    if missing := [key for key in KEYS if key not in state]:
        raise CheckpointError(f"{path}: damaged: it lacks {', '.join(missing)}", path=path)
    return state
