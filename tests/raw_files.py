"""Read raw files in tests: small helpers that several test modules share."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import zstandard
from hypothesis import HealthCheck, settings

from seqpipe.readers import detect_format, read_records
from seqpipe.readers.raw import RawFile
from seqpipe.records import ColumnChoice

AWKWARD = Path(__file__).parent / "awkward"
FIXTURE_OK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def read(path, format=None, encoding="utf-8", replace=False, **choice):
    """Return all records of a file."""
    with RawFile(path, encoding, replace=replace) as raw:
        return list(read_records(raw, format or detect_format(raw), ColumnChoice(**choice)))


def read_bytes(folder, data, format, name="raw", **choice):
    (folder / name).write_bytes(data)
    return read(folder / name, format, **choice)


def plain(record):
    """Return what a record holds in a form that can be compared."""
    sequence = record.sequence if isinstance(record.sequence, str) else record.sequence.tolist()
    return record.id, sequence, record.columns
