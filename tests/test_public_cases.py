"""Cases from public reports on batches, resume and workers; each docstring begins with the number of its case."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from seqpipe.batch import Batch
from seqpipe.collate import PADDINGS, fill
from seqpipe.dataloader import get_dataloader, restore_order
from seqpipe.errors import SeqpipeError
from seqpipe.rnn import ModelConfig, SequenceRNN
from seqpipe.samplers import LengthBatchSampler
from seqpipe.sequences import SequenceDataset
from seqpipe.store import Store
from seqpipe.transforms import Compose, MutateTokens, RandomCrop, ReverseComplement

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def content(batches):
    return [(batch.index.tolist(), batch.sequences.numpy().tobytes()) for batch in batches]


def batch_of(*arrays, **options):
    return fill([(np.array(array), {"index": i}) for i, array in enumerate(arrays)], **options)


def draw_ten(sequence, metadata, rng):
    """Stand for an augmentation that draws numbers; they end up in a track."""
    return sequence, {**metadata, "draw": rng.random(len(sequence))}


def slow_at_100(sequence, metadata, rng):
    """One row in a hundred takes a hundred times as long."""
    time.sleep(0.02 if metadata["index"] % 100 == 0 else 0.0002)
    return sequence, metadata


def test_item_0_read_in_the_parent_does_not_harm_forked_workers(amp_store):
    """1: read item 0, then iterate with forked workers: all values are those of a single process."""
    dataset = SequenceDataset(amp_store, "test")
    dataset[0]
    loader = get_dataloader(dataset, 64, num_workers=2, multiprocessing_context="fork")
    assert content(loader) == content(get_dataloader(dataset, 64, num_workers=0))


def test_two_processes_with_workers_read_one_file_at_once(amp_store):
    """2: two separate processes plus two workers each, at the same time."""
    code = ("import sys, hashlib; from seqpipe import get_dataloader; digest = hashlib.sha256()\n"
            "for b in get_dataloader(sys.argv[1], 64, num_workers=2, multiprocessing_context='fork'):\n"
            "    digest.update(b.sequences.numpy().tobytes())\nprint(digest.hexdigest())")
    started = [subprocess.Popen([sys.executable, "-c", code, amp_store], stdout=subprocess.PIPE, text=True)
               for _ in range(2)]
    found = [process.communicate(timeout=120)[0] for process in started]
    digest = hashlib.sha256()
    for batch in get_dataloader(amp_store, 64):
        digest.update(batch.sequences.numpy().tobytes())
    assert found == [digest.hexdigest() + "\n"] * 2


def test_a_dataset_pickles_after_an_item_was_read(amp_store):
    """3: and gives the same where it arrives; spawn and forkserver loaders: test_loading.py."""
    dataset = SequenceDataset(amp_store)
    wanted = dataset[7][0].tolist()
    assert pickle.loads(pickle.dumps(dataset))[7][0].tolist() == wanted


@pytest.mark.parametrize("rows", [40_000, pytest.param(2_500_000, marks=pytest.mark.slow)])
def test_many_shuffled_indices_take_time_in_proportion(tmp_path, rows):
    """5: a fourth of the rows in random order in one call; ten times as many take no more than 40 times as long."""
    from seqpipe.ingest import preprocess
    from seqpipe.options import PreprocessOptions

    raw = tmp_path / "many.txt"
    raw.write_text("".join(f"{'ACGT' * (i % 5 + 1)}\n" for i in range(rows)))
    preprocess(PreprocessOptions(raw=(raw,), out=tmp_path / "many.h5", split="none"))
    dataset = SequenceDataset(tmp_path / "many.h5")
    order = np.random.default_rng(0).permutation(rows)[: rows // 4]
    fill(dataset.__getitems__(order.tolist()))  # each block is checked once
    seconds = {}
    for count in (len(order) // 10, len(order)):
        seconds[count] = np.inf
        for _ in range(5):  # the garbage collector comes now and then
            started = time.process_time()
            batch = fill(dataset.__getitems__(order[:count].tolist()))
            seconds[count] = min(seconds[count], time.process_time() - started)
        assert batch.index.tolist() == order[:count].tolist()
        assert batch.lengths.tolist() == [4 * (i % 5 + 1) for i in order[:count].tolist()]
    assert seconds[len(order)] < 40 * seconds[len(order) // 10]


@cuda
def test_a_batch_on_cuda_packs_with_lengths_on_the_cpu():
    """13: lengths are int64 on the CPU, wherever the sequences are."""
    batch = batch_of([1, 2, 3], [4]).to("cuda", non_blocking=True)
    assert batch.lengths.device.type == "cpu" and batch.lengths.dtype == torch.int64
    assert batch.packed().data.device.type == "cuda"


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=cuda)])
def test_a_default_device_leaves_lengths_on_the_cpu(device):
    """14: also one that was set before the batch is built."""
    torch.set_default_device(device)
    try:
        batch = batch_of([1, 2, 3], [4])
    finally:
        torch.set_default_device("cpu")
    assert batch.lengths.tolist() == [3, 1] and batch.lengths.device.type == batch.sequences.device.type == "cpu"
    assert batch.packed().data.tolist() == [1, 4, 2, 3]


@pytest.mark.parametrize("arrays", [([], [1, 2], [3]), ([1, 2], [], [3]), ([1], [2, 3], []), ([], [])])
def test_a_sequence_of_length_zero_is_a_row_of_padding(arrays):
    """15: first, in the middle, last and alone: its mask is all False, and packing names it."""
    batch = fill([(np.array(array, np.uint8), {"index": i}) for i, array in enumerate(arrays)])
    assert batch.lengths.tolist() == [len(array) for array in arrays]
    assert batch.mask.sum(dim=1).tolist() == batch.lengths.tolist() and batch.sequences.shape[1] >= 1
    assert [row.tolist() for row in batch.unpad()] == [list(array) for array in arrays]
    with pytest.raises(ValueError, match=f"sequence {[len(a) for a in arrays].index(0)} of the batch is empty"):
        batch.packed()


@cuda
def test_every_batch_is_pinned(amp_store):
    """17: type, order and fields survive, and every tensor says that it is pinned."""
    for workers in (0, 2):
        batch = next(iter(get_dataloader(amp_store, pin_memory=True, num_workers=workers)))
        assert isinstance(batch, Batch) and batch.ids and batch.index.tolist() == list(range(32))
        for tensor in (batch.sequences, batch.lengths, batch.index, batch.labels, *batch.tracks.values()):
            assert tensor.is_pinned()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at it while it compiles
@pytest.mark.parametrize("rnn_path", ["packed", "masked"])
def test_a_gru_compiles_packed_and_masked(rnn_path):
    """18: the network compiles on both paths, batch after batch of other shapes; and a batch packs in compiled code."""
    network = SequenceRNN(ModelConfig(
        task="classify", num_tokens=6, num_outputs=2, model="gru", embedding_dim=4, hidden_dim=4, layers=1,
        bidirectional=False, dropout=0.0, pooling="last", rnn_path=rnn_path)).eval()
    compiled = torch.compile(network, backend="eager")  # no backend is needed to see that the graphs are made
    packed = torch.compile(lambda batch: batch.packed().data, backend="eager")
    for arrays in (([1, 2, 3], [4]), ([1], [2, 3, 4, 1, 2], [3, 4])):
        batch = batch_of(*arrays)
        assert torch.allclose(compiled(batch.tokens, batch.lengths), network(batch.tokens, batch.lengths))
        assert torch.equal(packed(batch), batch.packed().data)


@pytest.mark.parametrize("dtype", [np.int32, np.float32, bool])
@pytest.mark.parametrize("padding", PADDINGS)
def test_left_padding_is_right_padding_of_reversed_sequences_reversed(dtype, padding):
    """20: for integers, floats and truth values."""
    rng = np.random.default_rng(0)
    samples = [(rng.integers(0, 2, n).astype(dtype), {"index": n}) for n in (3, 1, 6)]
    left = PADDINGS[padding](samples, padding_side="left")
    right = PADDINGS[padding]([(array[::-1], entry) for array, entry in samples])
    assert torch.equal(left.sequences, right.sequences.flip(1))


def test_a_loader_with_default_settings_pads(amp_store):
    """21: ragged sequences, no collate function named."""
    batch = next(iter(get_dataloader(amp_store)))
    assert batch.sequences.shape == (32, int(batch.lengths.max()))


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_after_a_resume_have_full_length(amp_store, persistent):
    """34: with workers that persist, and without."""
    dataset = SequenceDataset(amp_store, "test")
    loader = get_dataloader(dataset, 32, shuffle=True, num_workers=1, persistent_workers=persistent)
    batches = iter(loader)
    used = sum(len(next(batches)) for _ in range(20))
    resumed = get_dataloader(dataset, 32, shuffle=True, num_workers=1, persistent_workers=persistent)
    resumed.load_state_dict(loader.state_dict())
    assert [sum(len(batch) for batch in resumed) for _ in range(3)] == [669 - used, 669, 669]


class Counted:
    """A thousand million lengths that are computed where they are asked for; counts how many were."""

    def __init__(self):
        self.asked = 0

    def __len__(self):
        return 10**9

    def __getitem__(self, key):
        rows = np.arange(*key.indices(len(self))) if isinstance(key, slice) else np.asarray(key)
        self.asked += rows.size
        return rows % 97 + 1


def test_a_resume_near_the_end_of_a_huge_epoch_plans_one_window():
    """35: at 999 of 1,000 parts of 10^9 sequences; no data are read, few lengths looked at."""
    lengths = Counted()
    sampler = LengthBatchSampler(lengths, batch_size=64, shuffle=True, bucket=True)
    windows = -(-10**9 // sampler.settings.window)
    state = sampler.state_dict((0, windows * 999 // 1000, 17))
    lengths.asked = 0
    sampler.load_state_dict(state)
    batch = next(iter(sampler))
    assert len(batch) == 64 and lengths.asked < 4 * sampler.settings.window


def test_no_draw_is_repeated_between_workers_or_epochs(amp_store):
    """37: four workers over two epochs: all draws differ, and they are those of no workers."""
    dataset = SequenceDataset(amp_store, "test", draw_ten)

    def draws(workers):
        loader = get_dataloader(dataset, 64, shuffle=True, num_workers=workers)
        return [float(number) for _ in range(2) for batch in loader for number in batch.tracks["draw"][:, 0]]

    found = draws(2)
    assert len(set(found)) == len(found) == 2 * 669
    assert found == draws(0)


def test_results_of_a_loader_by_length_return_to_the_order_of_the_input(amp_store):
    """38: ids and numbers as in the file."""
    dataset = SequenceDataset(amp_store, "test")
    batches = list(get_dataloader(dataset, max_tokens=2000, bucket=True))
    index = torch.cat([batch.index for batch in batches])
    ids = restore_order(dataset, index, np.array([name for batch in batches for name in batch.ids]))
    assert index.tolist() != sorted(index.tolist())
    assert ids.tolist() == [dataset[i][1]["id"] for i in range(len(dataset))]


def test_accumulating_two_batches_gives_the_gradient_of_both():
    """41: micro-batches of 11 and 101 tokens: sum of losses over the number of all real elements."""
    embedding, head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 1)
    short, long = np.arange(11) % 4 + 1, np.arange(101) % 4 + 1

    def gradient(batches):
        embedding.zero_grad()
        count = sum(batch.num_elements for batch in batches)
        for batch in batches:
            losses = head(embedding(batch.tokens))[..., 0].square()
            ((losses * batch.mask).sum() / count).backward()
        return embedding.weight.grad.clone()

    one, both = gradient([batch_of(short), batch_of(long)]), gradient([batch_of(short, long)])
    assert float((one - both).norm() / both.norm()) < 2e-6


def test_reverse_complement_of_some_rows_is_that_of_each_row(make_store):
    """49: through a dataset, a slice of it and padding, equal to doing it row by row."""
    texts = ["ACGTTGCA", "AAC", "GGGTTTACAC", "T", "CATCAT"]
    path = make_store("d.txt", "\n".join(texts) + "\n", alphabet="dna")
    alphabet = Store(path).alphabet
    turn = Compose([ReverseComplement(alphabet), RandomCrop(5), MutateTokens(alphabet, 0.2)])
    dataset = SequenceDataset(path, transform=turn, seed=3)
    batch = next(iter(get_dataloader(Subset(dataset, [4, 2, 0]))))
    plain = SequenceDataset(path)
    for row, found in zip([4, 2, 0], batch.unpad(), strict=True):
        sequence, metadata = plain[row]
        assert found.tolist() == turn(sequence, metadata, np.random.default_rng([3, 0, row]))[0].tolist()
    flipped = {row for row in range(5) for seed in [np.random.default_rng([3, 0, row])] if seed.random() < 0.5}
    assert 0 < len(flipped) < 5


def test_a_few_slow_rows_do_not_change_the_order(amp_store):
    """59: rows a hundred times slower than others: order and content are those of no workers."""
    dataset = SequenceDataset(amp_store, "test", slow_at_100)
    loader = get_dataloader(dataset, 16, shuffle=True, num_workers=2)
    assert content(loader) == content(get_dataloader(dataset, 16, shuffle=True, num_workers=0))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_plain_dataloader_without_a_collate_function_says_what_to_do(amp_store, workers):
    """21: torch's own collate function cannot stack ragged sequences; the error names ours, from a worker too."""
    with pytest.raises(SeqpipeError, match="(?s)one length only; found .*collate_fn=seqpipe.collate.fill"):
        next(iter(DataLoader(SequenceDataset(amp_store), batch_size=8, num_workers=workers)))
