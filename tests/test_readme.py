"""The README's examples run, and what a torch user learns first holds for every case of its kind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from seqpipe.collate import PADDINGS, fill
from seqpipe.sequences import SequenceDataset

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run(amp_store, tmp_path, monkeypatch):
    """One after another, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    os.symlink(amp_store, tmp_path / "amp.h5")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S))
    assert code.count("assert") >= 5
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


KNOWN = {"bool": torch.bool, "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
         "int64": torch.int64, "uint16": torch.uint16, "uint32": torch.uint32, "uint64": torch.uint64,
         "float16": torch.float16, "float32": torch.float32, "float64": torch.float64, "complex64": torch.complex64,
         "complex128": torch.complex128}


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("code", "?bBhHiIlLqQefdgFDG")
def test_every_numeric_type_becomes_torchs_or_is_refused_by_name(code, padding):
    """From samples to a batch, by each collate function."""
    dtype = np.dtype(code)
    samples = [(np.ones(n, dtype), {"index": n}) for n in (2, 3)]
    if dtype.name in KNOWN:
        assert PADDINGS[padding](samples).sequences.dtype == KNOWN[dtype.name]
    else:
        with pytest.raises((TypeError, ValueError), match=dtype.name):
            PADDINGS[padding](samples)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("make", [
    lambda a: a[::-1].copy()[::-1], lambda a: np.asfortranarray(a), lambda a: a.astype(a.dtype.newbyteorder(">")),
    lambda a: np.lib.stride_tricks.as_strided(a, writeable=False), lambda a: np.repeat(a, 2, axis=0)[::2],
], ids=["reversed", "fortran", "big-endian", "read-only", "strided"])
def test_arrays_of_any_layout_collate_to_the_same(make, padding):
    """What a transform may return, with features and with tokens."""
    rng = np.random.default_rng(0)
    for arrays in ([rng.normal(size=(n, 3)).astype(np.float32) for n in (4, 2)], [np.arange(n) for n in (4, 2)]):
        plain = PADDINGS[padding]([(array, {"index": 0}) for array in arrays])
        found = PADDINGS[padding]([(make(array), {"index": 0}) for array in arrays])
        assert torch.equal(plain.sequences, found.sequences) and plain.sequences.dtype == found.sequences.dtype


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_what_pinning_leaves_unpinned(amp_store):
    """As the README says: tensors in containers and Batches are pinned, arrays and objects stay as they are."""
    class Pair:
        def __init__(self, samples):
            self.lengths = torch.tensor([len(sequence) for sequence, _ in samples])

    def collate(samples):
        sequence = samples[0][0]
        return {"tensor": torch.from_numpy(sequence), "list": [torch.ones(2)], "array": sequence,
                "batch": fill(samples), "object": Pair(samples)}

    found = next(iter(DataLoader(SequenceDataset(amp_store), 2, collate_fn=collate, pin_memory=True)))
    assert found["tensor"].is_pinned() and found["list"][0].is_pinned() and found["batch"].sequences.is_pinned()
    assert isinstance(found["array"], np.ndarray) and not torch.from_numpy(found["array"]).is_pinned()
    assert not found["object"].lengths.is_pinned()
