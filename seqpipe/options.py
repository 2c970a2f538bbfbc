"""What every command can be told: one frozen dataclass a command, its fields the flags.

Light on purpose: the command line is built from this module alone, so that ``--help`` needs
neither torch nor h5py. Each field's docstring is the flag's help text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from seqpipe.errors import OptionError

MOST = {"seed": 2**63 - 1, "workers": 1024, "num_workers": 1024,
        "embedding_dim": 1 << 20, "hidden_dim": 1 << 20, "layers": 1 << 10}

RawFiles = Positional[Annotated[tuple[Path, ...], arg(metavar="RAW...", help_behavior_hint="(required)")]]
StoreFile = Positional[Annotated[Path, arg(metavar="STORE")]]
StoreFiles = Positional[Annotated[tuple[Path, ...], arg(metavar="STORE...", help_behavior_hint="(required)")]]
# Whose help says what happens without them.
MaybeText = Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")]
MaybePath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
MaybeInt = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
MaybeFloat = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]
Switch = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]  # off by default
Format = Literal["auto", "fasta", "fastq", "csv", "tsv", "jsonl", "text", "ts", "h5"]
Padding = Literal["fill", "pad_sequence", "manual"]
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class PreprocessOptions:
    """Turn raw sequence files into one store.

    Strict by default: an unknown symbol, a duplicate id, an empty sequence or a missing label is
    an error that names file and line, and leaves no output behind.

    Example: seqpipe preprocess data/amp/amp.fasta --labels data/amp/labels.tsv
    --label-column label --split column:split --out amp.h5
    """

    raw: RawFiles
    """Raw files, read in this order; quoted patterns ('data/*.fa'), or - for standard input."""
    out: Path
    """Store to write."""
    format: Format = "auto"
    """Format of the raw files; auto looks at the content, then at the name."""
    alphabet: str = "auto"
    """auto, dna, rna, iupac, protein, chars, bytes, ints, or a file with one symbol a line."""
    id_column: MaybeText = None
    """Column or key with the ids (default: id, where there is one; else ids are STEM:n)."""
    sequence_column: MaybeText = None
    """Column or key with the sequence (default: sequence, seq, text, tokens or values)."""
    time_column: MaybeText = None
    """Column of a long table (one row a time step) that orders the rows of an id; kept as the track time."""
    value_columns: MaybeText = None
    """Columns with the numbers of a time step, as v1,v2 (a long table); for JSON rows, names of the channels."""
    label_column: MaybeText = None
    """Column or key with the label (default: label, where there is one)."""
    labels: MaybePath = None
    """CSV or TSV with a column id, joined by it; its other columns become metadata."""
    label_type: Literal["auto", "class", "number", "multilabel", "none"] = "auto"
    """auto: classes, or numbers where a label has a fraction; multilabel: any number of classes a record."""
    label_separator: str = ";"
    """What parts the classes of a multilabel label (a JSON list needs none)."""
    target_column: MaybeText = None
    """Column or key with one class or number for each element: a list, a text of as many symbols, or words."""
    classes: MaybePath = None
    """File with the classes of the labels, one a line, in their order; a label outside is an error."""
    like: MaybePath = None
    """Store whose alphabet, classes and kinds of columns are taken, so that the two can be merged."""
    on_unmatched: Literal["error", "skip"] = "error"
    """What to do with records without a row in LABELS, and with rows without a record."""
    on_duplicate: Literal["error", "skip", "rename"] = "error"
    """What to do where an id was given before: rename makes it ID.2, ID.3 ..., skip keeps the first record."""
    split: str = "0.8,0.1,0.1"
    """Shares of train,valid,test drawn by a hash of the id; or column:NAME, file (_TRAIN, _TEST in names), none."""
    split_by: str = "random"
    """What is drawn: random (records), stratified (records of each class) or group:COLUMN (whole groups)."""
    folds: int = 0
    """Draw FOLDS folds of like size instead of train, valid and test; a training run tests on one of them."""
    encoding: str = "utf-8"
    """Encoding of the raw files and of LABELS."""
    case: Literal["keep", "upper", "lower"] = "keep"
    """Turn the letters of sequences into upper or lower case; predict then does so too."""
    on_unknown: Literal["error", "skip", "unk"] = "error"
    """A symbol that ALPHABET does not hold: an error, or leave the record out, or read it as one more token."""
    on_empty: Literal["error", "skip", "keep"] = "error"
    """An empty sequence: an error, or leave the record out, or keep it."""
    min_length: int = 0
    """Leave out records with fewer elements."""
    max_length: MaybeInt = None
    """Most elements a sequence may have."""
    on_long: Literal["error", "skip", "truncate"] = "error"
    """A sequence of more than MAX_LENGTH elements: an error, or leave the record out, or cut the end off."""
    on_undecodable: Literal["error", "replace"] = "error"
    """Bytes of the raw files that are no text in the encoding; replace: U+FFFD, counted."""
    on_missing: Literal["error", "nan"] = "error"
    """Missing or non-finite numbers of features; nan: kept as NaN, counted."""
    quality: Literal["drop", "keep"] = "drop"
    """Qualities of FASTQ; keep: as the track quality, Phred scores."""
    seed: int = 0
    """Seed of the random split."""
    workers: int = 1
    """Processes that read; the store is the same for any number."""
    executor: MaybeText = None
    """Read on a cluster instead: dask://HOST:PORT of a scheduler whose workers see the same files (extra "dask")."""
    shard: MaybeText = None
    """Import only the I-th of N contiguous shares of the input, I/N from 1/N to N/N; seqpipe merge joins the stores."""
    resume: Switch = False
    """Go on where an import of the same files with the same options was killed."""
    compression: Literal["none", "gzip"] = "none"
    """gzip: values and tracks in compressed chunks, for archives and slow disks; slow to read shuffled."""
    overwrite: Switch = False
    """Replace OUT when it exists."""

    def __post_init__(self) -> None:
        _check_minimum(self, seed=0, workers=1, min_length=0, max_length=1)
        if self.time_column and not self.value_columns:
            raise OptionError(f"--time-column {self.time_column}: a long table needs --value-columns too, the columns "
                              "with the numbers of a time step")
        if self.value_columns and self.sequence_column and self.format != "jsonl":
            raise OptionError("--value-columns and --sequence-column exclude each other: a long table has no column of "
                              "whole sequences; leave one of the two out")
        if not self.label_separator:
            raise OptionError("--label-separator '': expected at least one character")


@dataclass(frozen=True, kw_only=True)
class DescribeOptions:
    """Say what is inside a store: kind, encoding, lengths and classes per split, provenance."""

    store: StoreFile
    """Store or manifest to describe."""
    json: Switch = False
    """Print JSON."""
    head: int = 0
    """Also print the first HEAD sequences."""
    leakage: Switch = False
    """Also list identical sequences, and groups, that stand in more than one split."""
    plot: MaybePath = None
    """Also draw the lengths of each split into this PNG (needs the extra "plot")."""

    def __post_init__(self) -> None:
        _check_minimum(self, head=0)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Check every checksum, offset, token and id of a store; exit 1 and name the place when one is off."""

    store: StoreFile
    """Store or manifest to check."""


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Write many stores into one file, or a manifest of them: NAME.seqpipe.json, which every command takes.

    The rows keep their order. The stores must have one encoding, the same classes and columns, and no
    id in common.

    Example: seqpipe merge part1.h5 part2.h5 --out all.seqpipe.json
    """

    stores: StoreFiles
    """Stores and manifests, in the order of their rows."""
    out: Path
    """Store to write, or manifest (NAME.seqpipe.json) in the folder of the stores."""
    compression: Literal["none", "gzip"] = "none"
    """gzip: values and tracks in compressed chunks, for archives and slow disks; slow to read shuffled."""
    overwrite: Switch = False
    """Replace OUT when it exists."""


@dataclass(frozen=True, kw_only=True)
class AppendOptions:
    """Add stores to a manifest: no shard is changed, the manifest is replaced at once.

    Example: seqpipe append all.seqpipe.json part3.h5
    """

    manifest: Positional[Annotated[Path, arg(metavar="MANIFEST")]]
    """Manifest to add to."""
    stores: StoreFiles
    """Stores to add, in the order of their rows."""
    out: MaybePath = None
    """Manifest to write instead of replacing MANIFEST, in the same folder."""
    overwrite: Switch = False
    """Replace OUT when it exists."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the records of a store as FASTA, CSV or JSON Lines, and say the command that imports them again.

    What a format cannot hold is an error; jsonl holds everything.

    Example: seqpipe export seqs.h5 --format jsonl --out seqs.jsonl.gz
    """

    stores: StoreFiles
    """Store or manifest, or several stores whose records follow each other."""
    format: Literal["fasta", "csv", "jsonl"]
    """Format to write."""
    out: Path
    """File to write, compressed where its name ends with .gz; - is standard output."""
    split: MaybeText = None
    """Only this split."""
    columns: MaybeText = None
    """Only these columns and tracks, separated by commas ("split" among them; the id is always written)."""
    overwrite: Switch = False
    """Replace OUT when it exists."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Train an RNN on a store, on CUDA where there is one, else on the CPU.

    Without --data: on the built-in peptides (data/amp), from raw FASTA to test accuracy.
    """

    data: MaybePath = None
    """Store or manifest to train on."""
    out: MaybePath = None
    """Run directory (default: runs/STEM-NNN, new each time)."""
    task: Literal["auto", "classify", "regress", "lm"] = "auto"
    """auto: classify with classes, regress with numbers, else lm (predict the next token)."""
    model: Literal["rnn", "gru", "lstm"] = "lstm"
    """Kind of recurrent cell."""
    embedding_dim: int = 64
    """Width of the token embedding, or of the projected features."""
    hidden_dim: int = 128
    """Width of the recurrent state, per direction."""
    layers: int = 1
    """Recurrent layers."""
    bidirectional: bool = True
    """Read in both directions (lm reads forward only)."""
    dropout: float = 0.2
    """Share of units dropped between layers and before the output."""
    pooling: Literal["last", "mean", "max", "attention"] = "last"
    """How the states of a sequence become one vector."""
    rnn_path: Literal["auto", "masked", "packed"] = "auto"
    """masked: padded kernels; packed: PackedSequence, many times slower on a CPU; the same numbers; auto: by device."""
    epochs: MaybeInt = None
    """Passes over the train split (default: 12, or as many as make 500 steps; at most 100)."""
    max_steps: MaybeInt = None
    """Stop after this many optimizer steps."""
    max_time: MaybeFloat = None
    """Stop after this many seconds of training."""
    batch_size: MaybeInt = None
    """Sequences a batch at most (default: 64, or without limit with --max-tokens)."""
    max_tokens: MaybeInt = None
    """Elements a batch at most, padding included."""
    sampling: str = "uniform"
    """uniform: each sequence once an epoch; balanced: classes alike; weighted:COLUMN; these draw with replacement."""
    bucket: bool = True
    """Put sequences of like length into one batch: less padding (where the class follows the length: --mixing)."""
    mixing: MaybeFloat = None
    """How much the lengths of a batch may differ: about this share of padding (default: 0.018; 0 is tight)."""
    longest_first: Switch = False
    """Begin each epoch with the largest batch: memory runs out at the first step or never."""
    padding: Padding = "fill"
    """Collate function: all pad alike, fill is the fastest."""
    lr: float = 2e-3
    """Learning rate of AdamW, lowered to 0 over the run along a cosine."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    device: Device = "auto"
    """Where to train."""
    num_workers: int | Literal["auto"] = "auto"
    """Loader processes; auto is 0: a mapped store is faster without."""
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    fold: MaybeInt = None
    """Test on fold FOLD of a store made with --folds, and train on the others."""
    subset: MaybeInt = None
    """Train on the first SUBSET sequences of the train split only."""
    seed: int = 0
    """Seed of the initial weights, the order and the dropout."""

    def __post_init__(self) -> None:
        _check_minimum(self, embedding_dim=1, hidden_dim=1, layers=1, epochs=1, max_steps=1, batch_size=1, max_tokens=1,
                       mixing=0, log_every=1, subset=1, fold=0, seed=0, num_workers=0, weight_decay=0)
        _check_above_zero(self, "lr", "clip", "max_time")
        if not 0 <= self.dropout < 1:
            raise OptionError(f"--dropout {self.dropout}: expected 0 <= dropout < 1")


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict with a trained network: raw input in, one row a record out, in the order of the input."""

    checkpoint: Path
    """best.pt or last.pt of a run directory."""
    input: Annotated[tuple[Path, ...], arg(metavar="RAW...", help_behavior_hint="")] = ()
    """Raw files, patterns or - (standard input), read as the network's training data were."""
    data: MaybePath = None
    """A store or manifest instead of raw files; also prints the metrics where it has labels."""
    split: MaybeText = None
    """With --data: only this split."""
    out: Path
    """Table to write (TSV): id, prediction, and p_CLASS for each class; lm: id, bits_per_token, tokens."""
    format: Annotated[Format | None, arg(metavar="FORMAT", help_behavior_hint="")] = None
    """Format of the raw files (default: that of the training data)."""
    id_column: MaybeText = None
    """Column or key with the ids (default: as in training)."""
    sequence_column: MaybeText = None
    """Column or key with the sequence (default: as in training)."""
    encoding: MaybeText = None
    """Encoding of the raw text (default: as in training)."""
    batch_size: int = 64
    """Sequences a batch."""
    device: Device = "auto"
    """Where to predict."""
    overwrite: Switch = False
    """Replace OUT when it exists."""

    def __post_init__(self) -> None:
        _check_minimum(self, batch_size=1)


@dataclass(frozen=True, kw_only=True)
class ComparePaddingOptions:
    """Measure the padding strategies on your own data, in random, length-sorted and budgeted batches."""

    data: Path
    """Store or manifest to read."""
    out: MaybePath = None
    """Folder for comparison.csv (default: only the table is printed)."""
    split: MaybeText = None
    """Only this split."""
    batch_size: int = 64
    """Sequences a batch."""
    max_batches: int = 200
    """Batches measured per strategy and round, at most."""
    rounds: int = 5
    """Rounds, strategies taking turns; the median is reported."""
    seed: int = 0
    """Seed of the order of the batches."""

    def __post_init__(self) -> None:
        _check_minimum(self, batch_size=1, max_batches=1, rounds=1, seed=0)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Measure seqpipe beside what people use today: the import, the store or the batches.

    Example: seqpipe bench store
    """

    subject: Positional[Annotated[Literal["import", "store", "batches"], arg(metavar="{import,store,batches}")]]
    """What to measure."""
    folder: MaybePath = None
    """Folder for the data made and read (default: a temporary one)."""
    size: float = 1.0
    """Size of the data and of each round; 0.1 is quick and coarse."""
    rounds: int = 3
    """Rounds, loaders taking turns; the median is reported."""
    seed: int = 0
    """Seed of the data and the order of reading."""

    def __post_init__(self) -> None:
        _check_minimum(self, rounds=1, seed=0)
        _check_above_zero(self, "size")


def _check_minimum(options: object, **minimum: int) -> None:
    for name, least in minimum.items():
        value = getattr(options, name)
        most = MOST.get(name, 10**12)
        if isinstance(value, int | float) and not least <= value <= most:
            raise OptionError(f"--{name.replace('_', '-')} {value}: expected {least} or more, up to {most}")


def _check_above_zero(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise OptionError(f"--{name.replace('_', '-')} {value}: expected a finite number above 0")
