"""seqpipe: raw sequences of unequal length to a trained recurrent network, on one HDF5 file.

The flow, and the module of each stage; a module imports only modules of lower layers:

    raw files ──slices, readers──> Record ──intake, encoding──> parts ──assembly──> writer ──> seqs.h5
    seqs.h5 ──locate, store, sharded──> SequenceDataset ──> (encoded_sequence, metadata)
        ──batching, samplers──> DataLoader ──collate──> Batch ──device──> rnn ──tasks──> training

Layer 0
    errors              errors a user can mend
    permutation         a permutation of range(n) that needs no memory
Layer 1
    world               the place of this process among those that train together
    publish             one writer of a name, which it gives to whole files only
    options             the flags of every command
    records             one raw entry of any format
    alphabet            symbols and their token ids
    layout              names, types and checksums of a store
    header              the shape of a store's JSON header
    labels              label and column texts to numbers
    spool               temporary files that become arrays
    joined              arrays end to end, read as one
    hashing             hash many strings, find those that stand twice
    bench_peers         the loaders people have today
    weights             draw sequences by weight
    windows             the order in which an epoch visits the sequences
    reading_order       the order in which a recurrent layer reads a batch
    batch               one padded batch
Layer 2
    inputs              which raw files a command line names
    cutting             sort by length, cut into batches
    rundir              the folder of one training run
    executors           processes that share the work of an import
    splits              which split a record belongs to
    transforms          augmentation of samples as they are read
    readers             raw file to records, one file a format
    checking            check blocks of bytes where they are touched first
    described           what the header of a store says its sequences are
    columns             numbers, texts and lists of the metadata
    soundness           what in the arrays of a store does not fit together
    locate              find the arrays of an HDF5 file, believing nothing it says
    mapping             which bytes of a mapped file are in memory, and how they will be read
    targets             target texts to one number per element
    packing             what goes into a dataset, as it is or in compressed chunks
    chunks              arrays in compressed chunks, inflated where they are read
    manifest            the JSON file that names the shards of a store
    checkpoint          save and load a trained network
    rnn                 recurrent networks over padded batches
    tasks               what a network is trained for: outputs, loss, metrics
    device              choose the device, bring batches to it
    transport           carry a batch from a loader process to its parent
Layer 3
    writer              write a store whole, checked and durable
    batch_settings      what a plan of batches depends on, and its budget
    store               read a store through one memory map
    throughput          sums over training steps: loss, rates, memory
    summary             numbers that describe many sequences
    agreement           what stores must have in common to be one
    parts               read the closed parts of an import as arrays
    slices              cut raw files into slices
    encoding            encode the sequences of one part of an import
Layer 4
    batching            plan batches from lengths alone
    survey              look at stores to say what they are together
    pieces              find and read pieces of the flat arrays of a store
    selection           decide which records stay, and under which ids
    plan                what the options and the first record fix for all slices
    values              the sequences of all parts as one flat array
Layer 5
    sharded             many stores read as one
    states              the state of a batch sampler: where it stands, and of which plan
    reading             read samples and batches of rows
Layer 6
    sequences           the store as a torch dataset
    samplers            batch plans for a DataLoader
    verification        check every byte of a store
    intake              collect one slice, or small files, in one part
    export_layout       how the parts of a store are called in a raw file
    leakage             find what stands on both sides of a split
    likeness            fix beforehand what an import would choose
Layer 7
    collection          make the parts of all slices
    merging             many stores into one file, or under one manifest
    assembly            decide what the store holds, with all parts seen
    collate             pad the samples of a batch, three ways
    iteration           a DataLoader that knows where each batch stands
    description         say what is inside a store
    exporting           a store's records as a raw file
Layer 8
    ingest              raw files to one store
    dataloader          from a store to a DataLoader of batches
    padding_comparison  measure padding strategies on one's own data
    bench_costs         measure opening, checking and a cold disk
Layer 9
    split_sets          the train, valid and test set of a run
    networks            the task and the network that fit a store
    prediction          predict from raw input or a store
    bench_import        measure the import beside what reads raw files alone
    bench_store         measure reading beside other loaders
Layer 10
    training            train an RNN on a store
    bench_batches       measure batch plans beside other samplers
    bench               run one of the benchmarks
Layer 11
    cli                 the commands
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqpipe import collate, transforms
    from seqpipe.batch import Batch
    from seqpipe.dataloader import get_dataloader
    from seqpipe.errors import SeqpipeError
    from seqpipe.ingest import preprocess
    from seqpipe.sequences import SequenceDataset
    from seqpipe.sharded import open_store
    from seqpipe.store import Store

__version__ = "0.1.0"
__all__ = ["Batch", "SequenceDataset", "SeqpipeError", "Store", "collate", "get_dataloader", "open_store",
           "preprocess", "transforms"]

_MODULES = {
    "Batch": "batch",
    "SeqpipeError": "errors",
    "SequenceDataset": "sequences",
    "Store": "store",
    "get_dataloader": "dataloader",
    "open_store": "sharded",
    "preprocess": "ingest",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use: ``import seqpipe`` itself loads neither torch nor h5py."""
    from importlib import import_module

    if name in ("collate", "transforms"):
        return import_module(f"seqpipe.{name}")
    if name in _MODULES:
        return getattr(import_module(f"seqpipe.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'seqpipe' has no attribute {name!r}")
