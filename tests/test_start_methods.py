"""Workers that are spawned give the same batches; where they cannot start, the error says what to write."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from seqpipe.dataloader import get_dataloader
from seqpipe.errors import SeqpipeError


@pytest.mark.parametrize("error, words", [
    (RuntimeError("DataLoader worker (pid(s) 1) exited unexpectedly"), 'if __name__ == "__main__":\n    main()'),
    (ConnectionResetError(104, "Connection reset by peer"), 'if __name__ == "__main__":\n    main()'),
    (EOFError(), 'if __name__ == "__main__":\n    main()'),
    (RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed."), "make a new loader and give it"),
    (RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nthe sensor exited unexpectedly"), None),
    (ConnectionResetError("Caught ConnectionResetError in DataLoader worker process 0.\n..."), None),
    (FileNotFoundError("Caught FileNotFoundError in DataLoader worker process 0.\n..."), None),
])
def test_only_a_worker_that_could_not_start_or_was_killed_is_explained(amp_store, error, words):
    """An error of the dataset's own passes as it is."""
    loader = get_dataloader(amp_store, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(SeqpipeError if words else type(error)) as caught:
        loader._explain(error, at_start=True)
        raise error
    assert (words or str(error)) in str(caught.value)


SCRIPT = """
import sys
from seqpipe import SequenceDataset, get_dataloader

def cut(sequence, metadata, rng):
    return sequence[: rng.integers(1, len(sequence) + 1)], metadata

def content(dataset, **options):
    loader = get_dataloader(dataset, 64, shuffle=True, **options)
    loader.set_epoch(1)
    return [(batch.index.tolist(), batch.sequences.numpy().tobytes()) for batch in loader]

def main():
    method = sys.argv[2]
    dataset = SequenceDataset(sys.argv[1], "test", cut)
    dataset[0]
    workers = {"num_workers": 1, "multiprocessing_context": method}
    assert content(dataset, **workers) == content(dataset, num_workers=0)
    print("same batches,", method)

"""
GUARDED = SCRIPT + 'if __name__ == "__main__":\n    main()\n'
UNGUARDED = SCRIPT + "main()\n"
METHODS = [method for method in ("spawn", "forkserver") if method in torch.multiprocessing.get_all_start_methods()]


def start(folder, text, *arguments):
    script = folder / f"{'_'.join(map(str, arguments[1:]))}.py"
    script.write_text(text)
    return subprocess.Popen([sys.executable, script, *map(str, arguments)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_spawn_and_forkserver_give_the_same_batches(amp_store, tmp_path):
    """Two processes at once read one store, each with a worker."""
    started = {method: start(tmp_path, GUARDED, amp_store, method) for method in METHODS}
    for method, process in started.items():
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output) == (0, f"same batches, {method}\n"), errors


def test_without_the_main_guard_the_error_shows_the_two_lines(amp_store, tmp_path):
    """The parent's last message is ours, and it ends with exit code 1 rather than hanging."""
    started = {method: start(tmp_path, UNGUARDED, amp_store, method) for method in METHODS}
    for method, process in started.items():
        _, errors = process.communicate(timeout=120)
        last = errors.split("seqpipe.errors.SeqpipeError: ")[-1]
        assert process.returncode == 1
        assert f"start method '{method}'" in last
        assert 'if __name__ == "__main__":\n    main()\n' in last
        assert "Traceback" not in last
