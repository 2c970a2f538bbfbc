"""Every hostile file is refused, in one sentence of its own, by every way in; nothing it points to is touched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attacks.hostile import ATTACKS, make_all

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the bait is a pipe with a name")
LIMIT = 120  # seconds: a pipe would be waited for for ever
WAYS = ("Store", "describe", "verify", "train")

# In a process of its own: what hangs or crashes it is told from what is refused.
CHILD = """
import json, sys
from pathlib import Path
import torch
from seqpipe.description import describe
from seqpipe.errors import SeqpipeError
from seqpipe.options import DescribeOptions, TrainOptions, VerifyOptions
from seqpipe.sequences import SequenceDataset
from seqpipe.training import train
from seqpipe.verification import verify

def read(path):
    dataset = SequenceDataset(path)
    dataset.lengths[:]
    for sequence, metadata in (dataset[i] for i in range(len(dataset))):
        dataset.decode(sequence)
        dataset.classes[metadata["label"]]

ways = {
    "Store": read,
    "describe": lambda path: describe(DescribeOptions(store=path, head=4)),
    "verify": lambda path: verify(VerifyOptions(store=path)),
    "train": lambda path: train(TrainOptions(data=path, out=path.with_name("run"), max_steps=1, device="cpu",
                                             batch_size=4)),
}
for line in sys.stdin:
    name, path = json.loads(line)
    for way, open_it in ways.items():
        print(json.dumps([name, way, None, None]), flush=True)
        try:
            open_it(Path(path))
            kind, message = None, "accepted"
        except SeqpipeError as error:
            kind, message = "refused", str(error)
        except Exception as error:
            kind, message = "crashed", repr(error)
        print(json.dumps([name, way, kind, message]), flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, small: Path) -> dict[tuple[str, str], tuple[str, str, Path]]:
    """What each way in says to each attack, the good store among them."""
    folder = tmp_path_factory.mktemp("attacks")
    paths = {"good": small} | make_all(folder, small)
    lines = "".join(json.dumps([name, str(path)]) + "\n" for name, path in paths.items())
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as child:
        try:
            output = child.communicate(lines, timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            output = child.communicate()[0]
    found: dict[tuple[str, str], tuple[str, str, Path]] = {}
    for line in output.splitlines():
        if line.startswith("["):
            name, way, kind, message = json.loads(line)
            found[name, way] = (kind, message, paths[name])
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_by_every_way_in(
    answers: dict[tuple[str, str], tuple[str, str, Path]], name: str
) -> None:
    """By reading, describe, verify and train; the message names the file and what is wrong with it."""
    for way in WAYS:
        kind, message, path = answers.get((name, way), (None, "never asked: an attack before it ended the process", ""))
        assert kind == "refused", f"{way}: {message or 'hangs or kills the process'}"
        assert str(path) in message and re.search(ATTACKS[name][1], message), f"{way}: {message}"
        assert "Traceback" not in message and message.count("\n") <= 3


def test_the_good_store_is_accepted(answers: dict[tuple[str, str], tuple[str, str, Path]]) -> None:
    """By every way: it is the attack that is refused."""
    assert [answers["good", way][0] for way in WAYS] == [None] * 4


@pytest.mark.parametrize("name", ["external link", "external storage", "virtual dataset"])
def test_the_bait_catches_a_reader_that_follows(tmp_path: Path, small: Path, name: str) -> None:
    """h5py, asked for /values in the usual way, waits at the pipe: that it is not waited for proves something."""
    path = make_all(tmp_path, small)[name]
    code = "import sys, h5py; print('ready', flush=True); h5py.File(sys.argv[1])['values'][()]; print('read')"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        with open(tmp_path / "bait", "wb"):  # opens only when the child has the other end open
            pass
        assert child.communicate()[0] == "" and child.returncode
