"""seqpipe: raw sequences of unequal length to a trained recurrent network, on one HDF5 file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqpipe.batch import Batch
    from seqpipe.errors import SeqpipeError
    from seqpipe.ingest import preprocess
    from seqpipe.loading import get_dataloader
    from seqpipe.sequences import SequenceDataset
    from seqpipe.store import Store

__version__ = "0.1.0"
__all__ = ["Batch", "SequenceDataset", "SeqpipeError", "Store", "get_dataloader", "preprocess"]

_MODULES = {
    "Batch": "batch",
    "SeqpipeError": "errors",
    "SequenceDataset": "sequences",
    "Store": "store",
    "get_dataloader": "loading",
    "preprocess": "ingest",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use: ``import seqpipe`` itself loads neither torch nor h5py."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"seqpipe.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'seqpipe' has no attribute {name!r}")
