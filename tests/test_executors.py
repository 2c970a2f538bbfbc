"""An import on a dask cluster gives the bytes of one process, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seqpipe import slices
from seqpipe.errors import OptionError, RawFormatError
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions
from tests.test_collection import imported, write_fasta

distributed = pytest.importorskip("distributed", reason="dask is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Run a scheduler and two worker processes; return the scheduler's address."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as running:
        yield running.scheduler_address.replace("tcp://", "dask://")


def test_dask_gives_the_bytes_of_one_process(tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of a cluster make the parts; the store is the same."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 2000)
    raw = write_fasta(tmp_path / "a.fa", 300)
    one = imported(raw, tmp_path / "one.h5")
    assert imported(raw, tmp_path / "dask.h5", executor=cluster) == one


def test_errors_of_a_cluster_are_those_of_one_process(
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bad record is named with its line; nothing is left behind."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 500)
    raw = tmp_path / "a.fa"
    raw.write_text("".join(f">r{number}\nAC{'!' * (number > 500)}GT\n" for number in range(1000)), "ascii")
    with pytest.raises(RawFormatError, match=r"a\.fa:1004: record 'r501': symbol '!' at position 2"):
        imported(raw, tmp_path / "x.h5", alphabet="dna", executor=cluster)
    assert [path.name for path in tmp_path.iterdir()] == ["a.fa"]


@pytest.mark.parametrize(("address", "finding"), [
    ("tcp://localhost:1", "expected dask://HOST:PORT"), ("dask://localhost:port", "no dask scheduler answers there")])
def test_a_wrong_address_is_refused(tmp_path: Path, address: str, finding: str) -> None:
    """The message shows what is expected."""
    raw = write_fasta(tmp_path / "a.fa", 3)
    with pytest.raises(OptionError, match=finding):
        preprocess(PreprocessOptions(raw=(raw,), out=tmp_path / "x.h5", executor=address))
    assert [path.name for path in tmp_path.iterdir()] == ["a.fa"]
