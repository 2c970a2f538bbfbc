"""Run the command preprocess in tests, and look at what it made."""

from __future__ import annotations

import numpy as np

from scripts.preprocess import main
from seqpipe.options import VerifyOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.verification import verify


def run(capsys, *argv):
    """Run the command; return exit code, stdout and stderr."""
    code = main([str(argument) for argument in argv])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *argv):
    """Run a command that has to fail: exit code 1, one message of one line on stderr, nothing on stdout."""
    code, out, err = run(capsys, *argv)
    assert (code, out) == (1, ""), (code, out, err)
    assert err.startswith("seqpipe preprocess: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


def contents(out, split=None):
    """Return {id: (sequence, metadata)} of a store, its classes by name; the whole file is verified too."""
    verify(VerifyOptions(store=out))
    dataset = SequenceDataset(out, split)
    records = {}
    for tokens, metadata in dataset:
        sequence = tokens.tolist() if dataset.channels else dataset.decode(tokens)
        if dataset.classes:
            label = metadata["label"]
            metadata["label"] = dataset.classes[label] if np.ndim(label) == 0 else [dataset.classes[k] for k in label]
        records[metadata["id"]] = sequence, {k: v for k, v in metadata.items() if k not in ("id", "index")}
    assert len(records) == len(dataset)
    return records
