"""The benchmark of the import runs, and compares what it says."""

from __future__ import annotations

from seqpipe import slices
from seqpipe.bench_import import PEERS, make_files, run
from seqpipe.options import BenchOptions


def test_every_reader_there_is_has_a_line(tmp_path, monkeypatch):
    """Each file has our figure first and a ratio for every other reader; absent ones are named."""
    monkeypatch.setattr(slices, "SLICE_BYTES", 100_000)  # below the file's size: two workers have something to share
    table = run(BenchOptions(subject="import", size=0.001, rounds=1, folder=tmp_path))
    text = str(table)
    assert list(table.speeds) == [
        "fa", "fa.gz", "csv", "quoted.csv", "long.csv", "jsonl", "integers.jsonl", "rows.jsonl"]
    assert all(list(speeds)[0] == "seqpipe" and min(speeds.values()) > 0 for speeds in table.speeds.values())
    assert {"csv.reader"} < table.speeds["csv"].keys() and {"json.loads"} < table.speeds["jsonl"].keys()
    assert {"seqpipe --workers 2", "bare NumPy look-up", "bare bytes.translate"} < table.speeds["fa"].keys()
    assert all(name in table.speeds["fa.gz"] or f"not installed (extra bench): {name}" in text for name in PEERS)


def test_the_files_hold_the_same_records(tmp_path):
    """The same seed makes the same files; another one does not."""
    first = make_files(tmp_path, 10, 0)["fa"][0].read_bytes()
    assert make_files(tmp_path, 10, 0)["fa"][0].read_bytes() == first
    assert make_files(tmp_path, 10, 1)["fa"][0].read_bytes() != first
