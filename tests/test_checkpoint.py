"""Checkpoints: what is saved comes back; a damaged or hostile file is refused and runs nothing."""

from __future__ import annotations

import os
import pickle
import random
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from seqpipe.checkpoint import load_checkpoint, save_checkpoint
from seqpipe.errors import CheckpointError
from tests.test_writer import in_child, limit_file_size, needs_fork


def make_state(seed: int = 0) -> dict[str, Any]:
    """Return a small state of the shape that training saves."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "model_config": {"cell": "gru", "hidden_dim": 3},
        "task": {"name": "classify", "num_outputs": 2},
        "data": {"kind": "tokens", "classes": ["a", "é"], "input": {"id_column": None}},
        "model": {"weight": torch.randn(3, 4, generator=generator), "count": torch.tensor(7)},
        "optimizer": {"state": {0: {"exp_avg": torch.randn(2, generator=generator).half()}}},
        "epoch": 3,
        "step": 41,
        "metrics": {"loss": 0.5, "best": float("nan") if seed else 1e-300},
    }


def same(one: Any, other: Any) -> bool:
    """Compare states, tensors bit by bit."""
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint."""
    save_checkpoint(tmp_path / "best.pt", make_state())
    return tmp_path / "best.pt"


def refused(path: Path) -> str:
    """Return the message with which a checkpoint is refused."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value) and caught.value.path == path
    return str(caught.value)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_saved_comes_back(tmp_path: Path, seed: int) -> None:
    """Tensors bit by bit, plain values with their types; the state given is not changed."""
    state = make_state(seed)
    save_checkpoint(tmp_path / "best.pt", state)
    loaded = load_checkpoint(tmp_path / "best.pt")
    assert (loaded.pop("format"), loaded.pop("format_version")) == ("seqpipe-checkpoint", 1)
    assert same(loaded, state) and same(state, make_state(seed))
    assert [file.name for file in tmp_path.iterdir()] == ["best.pt"]


def test_a_checkpoint_cut_short_is_refused(path: Path) -> None:
    """At many lengths, and within the last bytes at each."""
    data = path.read_bytes()
    for length in [*range(0, len(data), 29), *range(len(data) - 40, len(data))]:
        path.write_bytes(data[:length])
        refused(path)


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_flip_is_found_or_harmless(path: Path, count: int) -> None:
    """One bit changed anywhere: refused, or the state is the same."""
    draws, data, expected, found = random.Random(count), path.read_bytes(), load_checkpoint(path), 0
    for _ in range(count):
        flipped = bytearray(data)
        flipped[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        path.write_bytes(flipped)
        try:
            loaded = load_checkpoint(path)
        except CheckpointError as error:
            found += 1
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert same(loaded, expected)
    assert found == count


def seal(data: bytes) -> bytes:
    """Return a zip file without a comment, or anything else, with the comment of a checkpoint."""
    data = data[:-2] + (23).to_bytes(2, "little")
    return data + b"seqpipe CRC-32 %08x" % zlib.crc32(data)


class Bomb:
    """Runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_with_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    """In the state of a torch file, and as a plain pickle."""
    save_checkpoint(tmp_path / "bomb.pt", make_state() | {"metrics": Bomb(tmp_path / "a")})
    assert "damaged, or not made by seqpipe" in refused(tmp_path / "bomb.pt")
    for data in (pickle.dumps(Bomb(tmp_path / "b")), seal(pickle.dumps(Bomb(tmp_path / "b")))):
        (tmp_path / "plain.pt").write_bytes(data)
        refused(tmp_path / "plain.pt")
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


@pytest.mark.parametrize("program", [b"", b".", b"\x80\x02N.", b"\x80\x02(lp0\n0.", b"\x80\x02K\x01K\x02\x86b.",
                                     b"\x80\x02h\x07.", b"cos\nsystem\n.", b"\x80\xff."])
def test_any_pickle_inside_is_a_checkpoint_error(path: Path, program: bytes) -> None:
    """Programs that torch's reader stumbles over, under the right CRC-32."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, program if name.endswith("data.pkl") else data)
    path.write_bytes(seal(path.read_bytes()))
    assert "CRC-32" not in refused(path)


def test_a_checkpoint_is_also_a_file_of_torch(path: Path) -> None:
    """torch alone loads it, and any zip tool lists it."""
    assert same(torch.load(path, weights_only=True), load_checkpoint(path))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and archive.comment.startswith(b"seqpipe CRC-32")


def test_what_is_no_checkpoint_is_told_apart(tmp_path: Path) -> None:
    """Each has its own sentence."""
    path = tmp_path / "x.pt"
    assert "no such checkpoint; expected best.pt or last.pt" in refused(path)
    assert "a folder, or no regular file; expected best.pt" in refused(tmp_path)
    for data in (b"", b"hello"):
        path.write_bytes(data)
        assert "not a checkpoint of seqpipe, or one cut short; expected best.pt" in refused(path)
    for content in (torch.zeros(3), {"weight": torch.zeros(3)}):
        torch.save(content, path)
        assert "not a checkpoint of seqpipe" in refused(path)
        path.write_bytes(seal(path.read_bytes()))
        assert "a torch file, but no checkpoint of seqpipe" in refused(path)
    torch.save({"weight": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    assert "not a checkpoint of seqpipe" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")
    path.write_bytes(seal(path.read_bytes()))
    assert "damaged, or not made by seqpipe" in refused(path)
    save_checkpoint(path, make_state() | {"format_version": 2})
    assert "format version 2, this seqpipe reads up to 1; install a newer seqpipe" in refused(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "x.pt")
    assert "no regular file" in refused(tmp_path / "x.pt")


@pytest.mark.parametrize("key", ["model_config", "task", "data", "model", "epoch", "step", "metrics",
                                 "format_version"])
def test_a_missing_or_mistyped_key_is_named(tmp_path: Path, key: str) -> None:
    """All keys that prediction and resuming rely on."""
    path = tmp_path / "x.pt"
    for value in (None, "x", 0.5):
        save_checkpoint(path, make_state() | {key: value})
        assert f"{key} is missing or of another type" in refused(path)
    state = {"format": "seqpipe-checkpoint", "format_version": 1, **make_state()}
    torch.save({name: value for name, value in state.items() if name != key}, path)
    path.write_bytes(seal(path.read_bytes()))
    assert f"{key} is missing or of another type" in refused(path)


@needs_fork
def test_a_full_disk_leaves_the_old_checkpoint(path: Path) -> None:
    """An error with path and bytes; the old checkpoint loads, and no temporary file stays."""
    old = path.read_bytes()

    def work() -> None:
        for limit in (0, 100, len(old) // 2):
            limit_file_size(limit)
            expected = r"best\.pt: could not be written .* the checkpoint takes \d+ bytes"
            with pytest.raises(CheckpointError, match=expected):
                save_checkpoint(path, make_state(1))

    assert in_child(work) == 0
    assert path.read_bytes() == old and list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_gone_is_a_checkpoint_error(tmp_path: Path) -> None:
    """The run directory disappears while it trains."""
    with pytest.raises(CheckpointError, match="choose another place"):
        save_checkpoint(tmp_path / "gone" / "last.pt", make_state())
