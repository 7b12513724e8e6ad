"""Write files completely or not at all, and read results."""

import argparse
import contextlib
import json
import os
import re
import tempfile
import time
from pathlib import Path

__all__ = [
    "atomic_file",
    "checked",
    "finish",
    "new_file",
    "read_json",
    "read_result",
    "rounded",
    "write_json",
    "write_text",
]


def new_file(text):
    """Parse the path of an output file; reject a missing folder now rather than after the measurement."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path


@contextlib.contextmanager
def atomic_file(path, mode, permissions=0o644, **options):
    """Open a temporary file that replaces `path` once it is complete."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, permissions)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_text(path, text):
    """Write `text` to `path`, completely or not at all."""
    with atomic_file(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def rounded(value, digits=6):
    """Return `value` with all floats rounded to `digits` significant digits, which halves the size of files."""
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


NUMBERS = re.compile(r"\[\n\s+([^\[\]{}\"]+?)\n\s+\]")


def write_json(path, result):
    """Write `result` to `path` as JSON, completely or not at all, with each list of numbers on one line."""
    text = json.dumps(result, indent=1, allow_nan=False)
    write_text(path, NUMBERS.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n")


def finish(start, path, result):
    """Print the time since `start`, and write `result` to `path` unless that is None."""
    elapsed = time.perf_counter() - start
    print(f"\n{elapsed:.0f} s in total")
    if path is not None:
        write_json(path, result | {"seconds": elapsed})
        print(f"written to {path}")


def read_json(path):
    """Read a JSON file; raise OSError or ValueError if this is impossible."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def checked(result):
    """Return `result` if its `format` is that of `performance_benchmark`; otherwise raise ValueError or KeyError."""
    if result["format"] != 2:
        raise ValueError(f"its format is {result['format']}, not 2")
    return result


def read_result(path):
    """Read a result of `performance_benchmark`.

    Raises
    ------
    ValueError
        The file cannot be read, or is not such a result; the message gives the reason.
    """
    try:
        result = checked(read_json(path))
        # Check the fields that every reader uses.
        for case in result["cases"]:
            for found in case["results"].values():
                int(found["count"]), bool(found["wide"])
                if not (found["rate"] > 0 and found["spread"] >= 0 and found.get("ratio", 1) > 0):
                    raise ValueError(f"a rate, spread or ratio of {case['name']} is invalid")
            str(case["name"]), str(case["group"]), case["concentration"]
        if "machine_state" in result:
            bool(result["machine_state"]["quiet"]), str(result["machine_state"]["reason"])
        dict(result["environment"]["versions"]), str(result["environment"]["device"])
    except KeyError as error:
        raise ValueError(f"{path} is not a result of performance_benchmark: it has no {error}") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{path} is not a result of performance_benchmark: {error}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    return result
