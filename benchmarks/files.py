"""Files that the benchmarks write, whole or not at all, and the results that they read."""

import argparse
import contextlib
import json
import math
import os
import re
import tempfile
import time
from pathlib import Path

__all__ = ["finish", "new_file", "read_json", "read_result", "rounded", "whole_file", "write_json", "write_text"]

# Bytes that no result reaches.
LARGEST = 2**26


def new_file(text):
    """Read the name of a file that will be written: what takes minutes is not to end with a folder that is missing."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path


@contextlib.contextmanager
def whole_file(path, mode, permissions=0o644, **options):
    """A file to write to, which becomes `path` at the end: that holds the old file or the new one and never a part."""
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
    """Write `text` to `path`, whole or not at all."""
    with whole_file(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def rounded(value, digits=6):
    """`value` with all its floats rounded to so many digits: no clock has more, and files become half as long."""
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


NUMBERS = re.compile(r"\[\n\s+([^\[\]{}\"]+?)\n\s+\]")


def write_json(path, result):
    """Write `result` to `path`, as `write_text` does; each list of numbers on a line."""
    text = json.dumps(result, indent=1, allow_nan=False)
    write_text(path, NUMBERS.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n")


def finish(start, path, result):
    """End a run that began at `start`: tell how long it took, and keep `result` in `path` where one was given."""
    elapsed = time.perf_counter() - start
    print(f"\n{elapsed:.0f} s in all")
    if path is not None:
        write_json(path, result | {"seconds": elapsed})
        print(f"written to {path}")


def finite(text):
    """Read a number of a result, which is finite, and small enough to be computed with."""
    value = float(text)
    if not math.isfinite(value) or abs(value) > 1e100:
        raise ValueError(f"it holds the number {text[:20]}, which no measurement gives")
    return int(text) if text.lstrip("-").isdigit() else value


def read_json(path):
    """Read a JSON object that one of these programs may have written.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, is larger than any result, nested deeper than any, or holds numbers that are none.
    """
    from jax_von_mises.streams.safe_files import read_plain  # not above: `startup` times the import of JAX

    text = read_plain(path, LARGEST).decode("utf-8")
    try:
        found = json.loads(text, parse_int=finite, parse_float=finite, parse_constant=finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def upgraded(result):
    """Make `result` what `performance_benchmark` writes today; format 1 knew draws only."""
    if result["format"] == 1:
        for case in result["cases"]:
            case |= {"task": "sample", "count": case["draws"]}
            for found in case["results"].values():
                found["count"] = found["draws"]
    elif result["format"] != 2:
        raise ValueError(f"format {result['format']} is not 1 or 2")
    return result


def read_result(path):
    """Read what `performance_benchmark` wrote.

    Raises
    ------
    ValueError
        The file cannot be read, or is no such result; the message says why.
    """
    try:
        result = upgraded(read_json(path))
        # What every reader looks at.
        for case in result["cases"]:
            for found in case["results"].values():
                int(found["count"]), bool(found["wide"])
                if not (found["rate"] > 0 and found["spread"] >= 0 and found.get("ratio", 1) > 0):
                    raise ValueError(f"a rate or a ratio of {case['name']} is not positive")
            str(case["name"]), str(case["group"]), case["concentration"]
        dict(result["environment"]["versions"]), str(result["environment"]["device"])
    except KeyError as error:
        raise ValueError(f"{path} is no result of performance_benchmark: it has no {error}") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{path} is no result of performance_benchmark: it is made otherwise") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    return result
