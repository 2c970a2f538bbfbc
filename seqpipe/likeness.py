"""Fix beforehand what an import would choose by its input: ``--classes FILE`` and ``--like STORE``.

Place in the flow: options -> [likeness] -> plan, assembly. Stores that are to be one need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from seqpipe.alphabet import Alphabet
from seqpipe.errors import OptionError
from seqpipe.labels import read_classes
from seqpipe.options import PreprocessOptions
from seqpipe.sharded import open_store
from seqpipe.store import Store
from seqpipe.survey import types_of


@dataclass(frozen=True)
class Given:
    """What is known before the first record is read.

    Attributes:
        path: the store of ``--like``.
        alphabet: of its tokens; None where the input decides, and for features.
        num_channels: of its features; 0 for tokens, None where the input decides.
        label_type: of its labels, and
        classes: their names in their order; None where the input decides.
        target_classes: names of the classes of targets; None where the input decides.
        columns: the kind of each metadata column, ``text`` or a dtype; empty where the input decides.
    """

    path: Path | None = None
    alphabet: Alphabet | None = None
    num_channels: int | None = None
    label_type: str | None = None
    classes: list[str] | None = None
    target_classes: list[str] | None = None
    columns: dict[str, str] = field(default_factory=dict)


def read_given(options: PreprocessOptions) -> Given:
    """Return what the options fix beforehand.

    Raises:
        OptionError: they contradict each other, or a file of classes is wrong.
        StoreError: what ``--like`` names is no store.
    """
    if options.classes is not None and options.label_type in ("number", "none"):
        raise OptionError(f"--classes: --label-type {options.label_type} has no classes; take one of the two out")
    if options.like is None:
        classes = None if options.classes is None else read_classes(options.classes)
        kind = None if classes is None or options.label_type != "auto" else "class"
        return Given(classes=classes, label_type=kind)
    for name, differs in (("--classes", options.classes is not None), ("--alphabet", options.alphabet != "auto"),
                          ("--on-unknown unk", options.on_unknown == "unk")):
        if differs:
            raise OptionError(f"{name}: --like {options.like} fixes this; take one of the two out")
    store = open_store(options.like)
    header, types = store.header, types_of(store) if isinstance(store, Store) else store.manifest.types
    if options.label_type not in ("auto", header["label_type"]):
        raise OptionError(f"--label-type {options.label_type}: the labels of --like {options.like} are "
                          f"{header['label_type']!r}; leave the option out")
    return Given(
        options.like, store.alphabet, len(store.channels), header["label_type"], store.classes or None,
        header.get("target_classes"),
        {name.removeprefix("metadata/"): kind for name, kind in types.items() if name.startswith("metadata/")},
    )
