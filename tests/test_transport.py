"""A batch crosses from a loader process as one buffer, whole, and leaves nothing behind."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from seqpipe import transport
from seqpipe.batch import Batch
from seqpipe.collate import fill
from seqpipe.errors import SeqpipeError, StoreError
from seqpipe.sequences import SequenceDataset

Sample = tuple[np.ndarray, dict[str, Any]]


def make_samples(count: int, length: int, dtype: str = "u1", channels: tuple[int, ...] = ()) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [(rng.integers(1, 100, (length - i, *channels)).astype(dtype),
             {"index": 3 * i, "id": f"s{i} é", "label": np.int64(i), "quality": rng.random(length - i).astype("f4")})
            for i in range(count)]


def same(one: Batch, other: Batch) -> bool:
    """Compare all tensors of two batches, bit for bit, and the rest."""
    def parts(batch: Batch) -> dict[str, torch.Tensor | None]:
        return {"sequences": batch.sequences, "lengths": batch.lengths, "index": batch.index, "labels": batch.labels,
                **batch.tracks}

    left, right = parts(one), parts(other)
    return left.keys() == right.keys() and tuple(one.ids) == tuple(other.ids) and all(
        a is b if a is None or b is None else a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(left.values(), right.values(), strict=True)
    ) and (one.padding_side, one.weight, one.position) == (other.padding_side, other.weight, other.position)


def blocks_of(process: int | str) -> int:
    """Return how many blocks of shared memory of ours a process holds, as descriptors or mapped."""
    links = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            links.append(os.readlink(link))
    return sum("memfd:seqpipe" in link for link in links) + Path(f"/proc/{process}/maps").read_text().count(
        "memfd:seqpipe")


needs_blocks = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs anonymous shared memory")


@pytest.mark.parametrize("large", [1, 1 << 40], ids=["block", "bytes"])
@pytest.mark.parametrize(("dtype", "channels"), [("u1", ()), ("f4", (3,)), ("i8", ()), ("f8", (1,))])
def test_a_batch_arrives_as_it_was_sent(monkeypatch: pytest.MonkeyPatch, large: int, dtype: str,
                                        channels: tuple[int, ...]) -> None:
    """Through a worker, by either way: every tensor, ids, tracks, side, weight and position; rows of length 0 too."""
    monkeypatch.setattr(transport, "LARGE", large)
    samples = make_samples(5, 5, dtype, channels)

    arrived = next(iter(DataLoader(samples, batch_size=5, collate_fn=fill, num_workers=1)))  # type: ignore[arg-type]

    assert same(arrived, fill(samples))
    arrived.sequences.fill_(7)  # its own memory
    assert arrived.sequences.min() == 7


def test_what_the_loader_adds_arrives_too() -> None:
    """Weight, position and padding side."""
    batch = Batch(torch.ones(2, 3), torch.tensor([3, 1]), torch.arange(2), padding_side="left", weight=0.0,
                  position=(1, 2, 3))
    function, arguments = transport._reduce(batch)
    assert same(function(*pickle.loads(pickle.dumps(arguments))), batch)


def test_a_type_that_numpy_has_not_goes_the_usual_way() -> None:
    """bfloat16, say."""
    batch = Batch(torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([3, 1]), torch.arange(2))
    arrived = next(iter(DataLoader([batch], batch_size=None, num_workers=1)))  # type: ignore[arg-type]
    assert same(arrived, batch)


@needs_blocks
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_blocks_are_let_go_of(amp_store: Path, method: str) -> None:
    """Worker and parent hold no more blocks than are on their way, under each start method; none at the end."""
    loader = DataLoader(SequenceDataset(amp_store), batch_size=256, collate_fn=fill, num_workers=1,
                        multiprocessing_context=method, worker_init_fn=always_blocks)
    iterator = iter(loader)
    worker = iterator._workers[0].pid  # type: ignore[attr-defined]
    rows, most = 0, 0
    for batch in iterator:
        rows += len(batch)
        most = max(most, blocks_of(worker))
        assert blocks_of("self") <= 2
    del batch
    assert rows == 4620 and 0 < most <= 8
    assert blocks_of("self") == 0


def always_blocks(number: int) -> None:
    transport.LARGE = 1


@needs_blocks
def test_an_iterator_that_is_dropped_leaves_nothing(amp_store: Path) -> None:
    """Batches on their way go with the worker."""
    loader = DataLoader(SequenceDataset(amp_store), batch_size=64, collate_fn=fill, num_workers=2,
                        worker_init_fn=always_blocks)
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert blocks_of("self") == 0


@needs_blocks
def test_a_parent_that_is_killed_leaves_nothing(amp_store: Path) -> None:
    """No segment in /dev/shm, no worker that stays, no warning of a resource tracker."""
    code = f"""
import sys
from torch.utils.data import DataLoader
from seqpipe.collate import fill
from seqpipe.sequences import SequenceDataset
from tests.test_transport import always_blocks
iterator = iter(DataLoader(SequenceDataset({str(amp_store)!r}), batch_size=64, collate_fn=fill, num_workers=2,
                           worker_init_fn=always_blocks))
next(iterator)
print(*[worker.pid for worker in iterator._workers], flush=True)
sys.stdin.read()
"""
    before = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert parent.stdout is not None
    workers = [int(number) for number in parent.stdout.readline().split()]
    assert len(workers) == 2
    parent.send_signal(signal.SIGKILL)
    _, errors = parent.communicate()
    limit = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split()[2]
              for worker in workers if Path(f"/proc/{worker}").exists()):
        assert time.monotonic() < limit, "a worker stays"
        time.sleep(0.1)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "seqpipe" in name]
    assert "resource_tracker" not in errors and "leaked" not in errors


@needs_blocks
def test_a_block_that_cannot_be_opened_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has ended, say; or its batch was taken before, and the block may hold another."""
    with pytest.raises(SeqpipeError, match="from loader process 0 cannot be opened .*; use num_workers=0"):
        transport._open_block(0, 0, 1, 10, [], ((None, ()), "right", 1.0, None))
    monkeypatch.setattr(transport, "LARGE", 1)
    monkeypatch.setattr(transport, "get_worker_info", lambda: True)
    batch = fill(make_samples(5, 5))
    function, arguments = transport._reduce(batch)
    assert same(function(*arguments), batch)
    with pytest.raises(SeqpipeError, match="cannot be opened .it was opened before.; use num_workers=0"):
        function(*arguments)


def small_blocks(number: int) -> None:
    transport.LARGE = transport.IN_PLACE = 1


def no_descriptor(number: int) -> None:
    small_blocks(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 1024))


def no_memory(number: int) -> None:
    small_blocks(number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # of files, which shared memory is to the system


@needs_blocks
@pytest.mark.parametrize("start", [always_blocks, small_blocks, no_descriptor, no_memory])
def test_batches_that_are_kept_stay_as_they_are(amp_store: Path, start: Callable[[int], None]) -> None:
    """All batches of an epoch at once are those without workers: copied to blocks, made in them, or in the pipe."""
    dataset = SequenceDataset(amp_store)
    kept = list(DataLoader(dataset, batch_size=64, collate_fn=fill, num_workers=2, worker_init_fn=start))
    wanted = list(DataLoader(dataset, batch_size=64, collate_fn=fill))
    assert len(kept) == len(wanted) and all(map(same, kept, wanted))


class Keeping:
    """Collate, keep all batches, and send each again after the next; refuse to go on where one has changed."""

    def __init__(self) -> None:
        self.kept: list[tuple[Batch, torch.Tensor]] = []

    def __call__(self, samples: Any) -> Batch:
        assert all(torch.equal(batch.sequences, sequences) for batch, sequences in self.kept)
        if len(self.kept) % 2 or not self.kept:
            batch = fill(samples)
            self.kept.append((batch, batch.sequences.clone()))
        else:
            batch = self.kept[-2][0]
            self.kept.append(self.kept[-2])
        return batch


@needs_blocks
@pytest.mark.parametrize("start", [always_blocks, small_blocks])
def test_batches_that_a_worker_keeps_stay_as_they_are(amp_store: Path, start: Callable[[int], None]) -> None:
    """What is written to a batch that arrived is not seen there; one that is sent again arrives as at first."""
    dataset, keeping = SequenceDataset(amp_store), Keeping()
    wanted = [keeping(dataset.__getitems__(range(first, first + 8))) for first in range(0, 400, 8)]
    rows = [list(range(first, first + 8)) for first in range(0, 400, 8)]
    loader = DataLoader(dataset, batch_sampler=rows, collate_fn=Keeping(), num_workers=1, worker_init_fn=start)
    for batch, expected in zip(loader, wanted, strict=True):
        assert same(batch, expected)
        batch.sequences.fill_(1)


@needs_blocks
def test_a_batch_that_is_sent_twice_at_once_arrives_twice(amp_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block that it was made in is sent once."""
    monkeypatch.setattr(transport, "get_worker_info", lambda: True)
    monkeypatch.setattr(transport, "IN_PLACE", 1)
    monkeypatch.setattr(transport, "LARGE", 1)
    batch = fill(SequenceDataset(amp_store).__getitems__([5, 3, 8]))
    sent = [transport._reduce(batch) for _ in range(2)]
    assert all(same(function(*arguments), batch) for function, arguments in sent)


@needs_blocks
def test_batches_that_are_never_sent_leave_nothing(amp_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block does for all of them, and no other array is taken for one that lay in it."""
    monkeypatch.setattr(transport, "get_worker_info", lambda: True)
    monkeypatch.setattr(transport, "IN_PLACE", 1)
    transport._blocks.clear()
    dataset = SequenceDataset(amp_store)
    for count in (5, 300, 1, 40, 2):
        fill(dataset.__getitems__(range(count)))
        assert len(transport._blocks) == len(transport._rooms) == 1
    transport._take(1)
    assert not transport._rooms


@needs_blocks
def test_a_rare_large_batch_does_not_keep_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block shrinks when the next batch in it is small."""
    monkeypatch.setattr(transport, "LARGE", 1)
    monkeypatch.setattr(transport, "get_worker_info", lambda: True)
    for count, most in ((1 << 20, 2 << 20), (1000, 1 << 14)):
        function, arguments = transport._reduce(Batch(torch.ones(1, count), torch.ones(1).long(), torch.ones(1).long()))
        assert function(*arguments).sequences.sum() == count
        assert os.fstat(arguments[1]).st_blocks * 512 <= most * 4


@pytest.mark.parametrize("ids", [(), ("",), ("", ""), ("a", "", "é"), ("a\0b", "c"), ("\0",)])
def test_ids_arrive_whatever_is_in_them(ids: tuple[str, ...]) -> None:
    """Also none, empty ones, and the character between them on the way."""
    count = max(1, len(ids))
    function, arguments = transport._reduce(Batch(torch.ones(count, 3), torch.ones(count), torch.ones(count), ids=ids))
    arrived = function(*pickle.loads(pickle.dumps(arguments))).ids
    assert len(arrived) == len(ids) and tuple(arrived) == ids


def test_an_id_that_is_damaged_is_said_where_it_is_looked_at(amp_store: Path, tmp_path: Path) -> None:
    """As without workers; the loader does not wait for ever for a batch that cannot be sent."""
    path = tmp_path / "damaged.h5"
    data = bytearray(amp_store.read_bytes())
    ids = SequenceDataset(amp_store).store.metadata["id"]
    at = data.index("".join(ids[i] for i in range(20)).encode())
    data[at + 3] ^= 1
    path.write_bytes(data)
    batch = next(iter(DataLoader(SequenceDataset(path), batch_size=8, collate_fn=fill, num_workers=1)))
    assert len(batch.ids) == len(batch) == 8
    with pytest.raises(StoreError, match="damaged"):
        batch.ids[0]
