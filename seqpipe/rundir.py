"""The folder of one training run: configuration, log, checkpoints.

    config.json     the options of the run, and what was decided from them
    metrics.jsonl   one JSON object a line: event, epoch, step, loss, ...
    last.pt         the network after the last epoch
    best.pt         the network after the epoch with the best validation metric
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from seqpipe.errors import OptionError
from seqpipe.publish import published


class RunDirectory:
    """A new folder that holds one run.

    Args:
        path: the folder; None is ``runs/STEM-NNN``, the first that does not exist.
        stem: names the folder where ``path`` is None.

    Raises:
        OptionError: the folder exists and is not empty, or cannot be made.
    """

    def __init__(self, path: Path | None, stem: str) -> None:
        try:
            self.path = path if path is not None else _new_folder(Path("runs"), stem)
            self.path.mkdir(parents=True, exist_ok=True)
            if path is not None and any(self.path.iterdir()):
                raise OptionError(f"--out {path}: the folder is not empty; choose another run directory")
            (self.path / "metrics.jsonl").open("x").close()  # of two runs that start at once, one gets the folder
        except (FileExistsError, NotADirectoryError):
            raise OptionError(
                f"--out {path or 'runs'}: expected a new folder, found a file there, or another run; choose another"
            ) from None
        except PermissionError:
            raise OptionError(f"--out {path or 'runs'}: the folder cannot be made here; choose another") from None

    def write_config(self, config: dict[str, Any]) -> None:
        """Write ``config.json``; paths in it become text."""
        with published(self.path / "config.json", "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2, default=str)
            file.write("\n")

    def log(self, event: str, **values: Any) -> None:
        """Append one line to ``metrics.jsonl``; a number that is not finite becomes null."""
        finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value
                  for name, value in values.items()}
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **finite}, allow_nan=False) + "\n")


def _new_folder(parent: Path, stem: str) -> Path:
    """Make and return ``parent/stem-NNN`` with the first free number."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1_000_000):
        path = parent / f"{stem}-{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise OptionError(f"{parent}: a million runs of {stem} are there; remove some")
