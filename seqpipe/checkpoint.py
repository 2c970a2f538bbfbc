"""Save and load what a trained network needs: weights, configuration, encoding of its input.

Place in the flow: training -> [checkpoint] -> prediction.

A checkpoint holds tensors and plain values only, so that it loads with ``weights_only=True``:
opening one never runs code. It is a file of ``torch.save``, that is a zip file, whose comment
holds the CRC-32 of all bytes before it. The CRC-32 of the zip entries is not enough: a flipped bit
in what the zip says about an entry can make torch read another piece of the file.
"""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import torch

from seqpipe.errors import CheckpointError, SeqpipeError
from seqpipe.publish import published

FORMAT = "seqpipe-checkpoint"
FORMAT_VERSION = 1
KEYS = {"model_config": dict, "task": dict, "data": dict, "model": dict, "epoch": int, "step": int, "metrics": dict}
COMMENT = b"seqpipe CRC-32 "
COMMENT_BYTES = len(COMMENT) + 8
EXPECTED = "expected best.pt or last.pt of a run directory"
REMEDY = "take another checkpoint of the run, or train again"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` to ``path``, whole or not at all.

    Args:
        path: replaced when it exists.
        state: plain values and tensors; at least ``KEYS``.

    Raises:
        CheckpointError: the disk is full, or the folder cannot be written.
    """
    # Into memory first: the checksum is of all bytes, and a full disk shows as one plain OSError.
    data = io.BytesIO()
    torch.save({"format": FORMAT, "format_version": FORMAT_VERSION, **state}, data)
    length = data.seek(-2, io.SEEK_END)  # a zip file ends with the length of its comment, here 0
    assert data.read() == bytes(2)
    data.seek(length)
    data.write(COMMENT_BYTES.to_bytes(2, "little"))
    data.write(_comment(data.getbuffer()))
    try:
        with published(path) as file:
            file.write(data.getbuffer())
    except SeqpipeError as error:
        raise CheckpointError(f"{error}; the checkpoint takes {data.tell()} bytes", path=path) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state of the checkpoint at ``path``, its tensors on the CPU.

    Raises:
        CheckpointError: it is missing, damaged, no checkpoint of seqpipe, or of a newer version.
    """
    try:
        state = _read(path)
    except CheckpointError:
        raise
    except Exception as error:  # torch raises a dozen types for what a file may hold
        first_line = str(error).split("\n")[0]
        raise CheckpointError(f"{path}: damaged, or not made by seqpipe ({first_line}); {EXPECTED}",
                              path=path) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: a torch file, but no checkpoint of seqpipe; {EXPECTED}", path=path)
    version = state.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: checkpoint of format version {version}, this seqpipe reads up to {FORMAT_VERSION}; "
            "install a newer seqpipe", path=path,
        )
    wrong = [key for key, kind in KEYS.items() if not isinstance(state.get(key), kind)]
    if version != FORMAT_VERSION or wrong:
        raise CheckpointError(f"{path}: damaged: {', '.join(wrong) or 'format_version'} is missing or of another "
                              f"type; {REMEDY}", path=path)
    return state


def _read(path: Path) -> Any:
    """Return what torch finds in a file that ends with the right CRC-32."""
    if not path.exists():
        raise CheckpointError(f"{path}: no such checkpoint; {EXPECTED}", path=path)
    if not path.is_file():  # opening a pipe would block
        raise CheckpointError(f"{path}: a folder, or no regular file; {EXPECTED}", path=path)
    data = memoryview(path.read_bytes())
    body, comment = data[:-COMMENT_BYTES], data[-COMMENT_BYTES:].tobytes()
    if not comment.startswith(COMMENT):
        raise CheckpointError(f"{path}: not a checkpoint of seqpipe, or one cut short; {EXPECTED}", path=path)
    if comment != _comment(body):
        raise CheckpointError(f"{path}: damaged: it fails its CRC-32; {REMEDY}", path=path)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _comment(body: memoryview) -> bytes:
    """Return what follows ``body`` in a checkpoint."""
    return COMMENT + b"%08x" % zlib.crc32(body)
