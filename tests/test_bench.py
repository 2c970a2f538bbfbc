"""``seqpipe bench store`` prints seqpipe's figures beside those of other loaders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from seqpipe.bench_peers import BinIdx, Hdf5Slices, Hdf5Vlen, InMemory, by_hand, torch_loader
from seqpipe.cli import main

LENGTHS = [3, 1, 4, 1, 5]


def peers(folder: Path, values: np.ndarray, offsets: np.ndarray, labels: np.ndarray) -> dict[str, object]:
    """Return every loader, over files made of the arrays."""
    import h5py

    BinIdx.write(folder / "a", values, offsets)
    Hdf5Vlen.write(folder / "vlen.h5", values, offsets)
    with h5py.File(folder / "flat.h5", "w") as file:
        file["values"], file["offsets"] = values, offsets
    channels = values.shape[1:]
    return {
        "hand": by_hand(values, offsets, labels),
        "list": torch_loader(InMemory(values, offsets, labels)),
        "bin/idx": torch_loader(BinIdx(folder / "a", values.dtype, channels, labels)),
        "slices": torch_loader(Hdf5Slices(folder / "flat.h5", labels)),
        "vlen": torch_loader(Hdf5Vlen(folder / "vlen.h5", channels, labels)),
    }


@pytest.mark.parametrize("channels", [(), (3,)])
def test_all_loaders_give_the_same_batches(tmp_path: Path, channels: tuple[int, ...]) -> None:
    """Else their speeds could not be compared."""
    rng = np.random.default_rng(0)
    values = rng.integers(1, 9, (sum(LENGTHS), *channels)).astype("f4" if channels else "u1")
    offsets = np.cumsum([0, *LENGTHS]).astype("<u8")
    batches = [[4, 0], [1, 2, 3]]

    found = {name: list(load(batches, 0))  # type: ignore[operator]
             for name, load in peers(tmp_path, values, offsets, np.arange(5)).items()}

    for name, loaded in found.items():
        for one, other in zip(loaded, found["hand"], strict=True):
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True)), name


def test_the_store_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each loader in each setting has its figure, and seqpipe's ratio to it."""
    assert main(["bench", "store", "--size", "0.005", "--rounds", "1", "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "seqpipe is" in lines[0]
    for loader in ("seqpipe", "loop by hand", "bin/idx", "list in memory", "h5py slice an item", "h5py vlen"):
        assert any("uint8, batch 64, 0 workers" in line and loader in line for line in lines)
