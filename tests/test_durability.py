"""Imports that are killed, or meet a full disk: the old store or the new one is there, and nothing else for long."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions, VerifyOptions
from seqpipe.verification import verify

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, limited and killed here")

# Each test runs in one fresh process that forks a child an import: no thread or lock of ours is in it.
START = """
import json, os, random, resource, signal, sys, time
from pathlib import Path
from seqpipe.cli import main
from seqpipe.ingest import preprocess
from seqpipe.options import PreprocessOptions

def options(raw, out, compression):
    return PreprocessOptions(raw=(Path(raw),), out=Path(out), overwrite=True, compression=compression)

def in_child(work):
    child = os.fork()
    if not child:
        try:
            code = work()
        except BaseException as error:
            os.write(2, repr(error).encode())
            code = 99
        os._exit(code or 0)
    return child
"""

KILLS = START + """
out, raws, compression, count = sys.argv[1], sys.argv[2:4], sys.argv[4], int(sys.argv[5])
EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "mmap.__new__"}
draws = random.Random(count)

def import_(raw, die_at=None):
    seen = [0]
    def hook(event, _):
        if event in EVENTS:
            seen[0] += 1
            if seen[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    preprocess(options(raw, out, compression))
    return seen[0]

def count_events(write):
    os.write(write, str(import_(raws[0])).encode())

read, write = os.pipe()
started = time.perf_counter()
os.waitpid(in_child(lambda: count_events(write)), 0)
seconds, total = time.perf_counter() - started, int(os.read(read, 20))
allowed = []
for raw in raws:
    os.waitpid(in_child(lambda: import_(raw) and 0), 0)
    allowed.append(Path(out).read_bytes())
results = {"events": total, "wrong": 0, "killed": 0, "new": 0, "left": 0}
for k in range(count):
    raw = raws[k % 2]
    before = Path(out).read_bytes()
    if k % 3:
        child = in_child(lambda: import_(raw, die_at=draws.randint(1, total)) and 0)
    else:
        child = in_child(lambda: import_(raw) and 0)
        time.sleep(draws.uniform(0, 1.2 * seconds))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    after = Path(out).read_bytes()
    results["killed"] += os.WIFSIGNALED(status)
    results["wrong"] += after not in allowed
    results["new"] += after != before
    results["left"] += len(os.listdir(Path(out).parent)) > 1
print(json.dumps(results))
"""

FULL = START + """
out, raw, compression, limits = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])

def limited(limit):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    read, write = os.pipe()
    os.dup2(write, 2)
    code = main(["preprocess", raw, "--out", out, "--overwrite", "--compression", compression])
    os.write(1, (json.dumps([limit, code, os.read(read, 5000).decode()]) + "\\n").encode())

for limit in limits:
    os.waitpid(in_child(lambda: limited(limit)), 0)
"""


def run(script: str, *arguments: object) -> str:
    """Run a script in a process of its own; return what it prints."""
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True,
                          check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def raw_files(folder: Path, count: int) -> list[Path]:
    """Write two FASTA files of ``count`` records that make stores of different bytes."""
    paths = [folder / f"{name}.fasta" for name in "ab"]
    for path in paths:
        path.write_text("".join(f">{path.stem}{i}\n{'ACGTTGCA' * (i % 50 + 1)}\n" for i in range(count)))
    return paths


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("kills", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_the_old_store_or_the_new_one(tmp_path: Path, kills: int, compression: str) -> None:
    """SIGKILL at random moments, and just before a file is opened, renamed, linked, mapped or removed.

    Nothing that a killed import leaves outlives the next import.
    """
    out = tmp_path / "out" / "a.h5"
    out.parent.mkdir()
    raws = raw_files(tmp_path, 300)
    results = json.loads(run(KILLS, out, *raws, compression, kills))
    assert results["wrong"] == 0 and results["events"] > 20
    assert results["killed"] > kills / 3 and results["left"] > 0, f"the kills came too late: {results}"
    preprocess(PreprocessOptions(raw=(raws[0],), out=out, overwrite=True))
    assert list(out.parent.iterdir()) == [out]
    verify(VerifyOptions(store=out))


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("points", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_a_full_disk_leaves_the_old_store(tmp_path: Path, points: int, compression: str) -> None:
    """At each size a file may reach: exit 1 with the path and bytes, the old store, no other file, and no crash."""
    out = tmp_path / "out" / "a.h5"
    out.parent.mkdir()
    small, large = raw_files(tmp_path, 1500)
    small.write_text(">a\nACGT\n")
    preprocess(PreprocessOptions(raw=(large,), out=out, compression=compression))  # type: ignore[arg-type]
    size = out.stat().st_size
    preprocess(PreprocessOptions(raw=(small,), out=out, overwrite=True))
    old = out.read_bytes()
    limits = [size * k // points for k in range(points)]
    answers = [json.loads(line) for line in run(FULL, out, large, compression, json.dumps(limits)).splitlines()]
    assert [answer[0] for answer in answers] == limits, "an import ended its process"
    for limit, code, message in answers:
        assert code == 1 and "out" in message and any(letter.isdigit() for letter in message), (limit, code, message)
        assert "bytes" in message and "free some space" in message and "Traceback" not in message, message
    assert out.read_bytes() == old and list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_small_disk_that_is_full_leaves_the_old_store(tmp_path: Path, compression: str) -> None:
    """A file system of 1 MB: exit 1 with the path and bytes, and the old store."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False,
                                       capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        small, large = raw_files(tmp_path, 8000)
        small.write_text(">a\nACGT\n")
        out = disk / "a.h5"
        preprocess(PreprocessOptions(raw=(small,), out=out))
        old = out.read_bytes()
        done: Any = subprocess.run([sys.executable, "-m", "seqpipe.cli", "preprocess", str(large), "--out", str(out),
                                    "--overwrite", "--compression", compression], capture_output=True, text=True,
                                   check=False)
        assert done.returncode == 1 and "bytes" in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert out.read_bytes() == old and list(disk.iterdir()) == [out]
    finally:
        subprocess.run(["umount", str(disk)], check=False)
