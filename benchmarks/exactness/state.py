"""Keep the sums of all distributions in a file, so that an interrupted run can continue."""

import json
import time

import numpy as np

from benchmarks.files import atomic_file

__all__ = ["State"]

SAVE_SECONDS = 30.0


class State:
    """Sums by the name of the distribution, kept in the file `path` unless it is None.

    `identity` describes the run. ValueError is raised if the file is from another run or is not a state.
    """

    def __init__(self, path, identity):
        self.path, self.identity = path, identity
        self.sums = {}
        self.saved = time.monotonic()
        if path is not None and path.exists():
            self.load()

    def load(self):
        """Read the file."""
        try:
            with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                before = json.loads(str(file["identity"]))
                differs = [name for name in self.identity if before[name] != self.identity[name]]
                for name in [] if differs else set(file.files) - {"identity"}:
                    distribution, _, field = name.rpartition("/")
                    self.sums.setdefault(distribution, {})[field] = file[name][()]
        except Exception as error:  # zipfile, NumPy and zlib raise different exceptions
            message = f"--state {self.path} is not a state of this program: {error}. Name another file."
            raise ValueError(message) from error
        if differs:
            raise ValueError(
                f"--state {self.path} is from another run (different {', '.join(differs)}). Name another file, or give "
                "the options of that run."
            )

    def add(self, name, sums):
        """Add the sums of some blocks, and save if the last save is more than `SAVE_SECONDS` ago."""
        before = self.sums.get(name)
        self.put(name, sums if before is None else {field: before[field] + each for field, each in sums.items()})

    def put(self, name, sums):
        """Replace the sums of a distribution, and save if the last save is more than `SAVE_SECONDS` ago."""
        self.sums[name] = sums
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self.save()

    def save(self):
        """Write the file; an interruption leaves the old file or the new one, never a part."""
        if self.path is None:
            return
        arrays = {f"{name}/{field}": each for name, sums in self.sums.items() for field, each in sums.items()}
        with atomic_file(self.path, "wb", permissions=0o600) as file:
            np.savez(file, identity=np.array(json.dumps(self.identity)), **arrays)
        self.saved = time.monotonic()
