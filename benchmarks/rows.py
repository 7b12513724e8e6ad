"""A result as a table with a line for each case and peer, for programs that read CSV."""

import csv
import io

from benchmarks.cases import Case
from benchmarks.environment import LIBRARIES
from benchmarks.peers import OURS
from benchmarks.timing import Timing

__all__ = ["COLUMNS", "csv_text", "rows"]

DEFAULTS = Case._field_defaults

COLUMNS = (
    *("case", "group", "task", "concentration", "concentration_high", "asked", "size", "case_dtype", "key_impl"),
    *("peer", "count", "dtype", "device", "missing"),
    *("seconds", "seconds_low", "seconds_high", "first_call_seconds"),
    *("rate", "rate_low", "rate_high", "spread", "wide", "ratio"),
    *("dispatch_seconds", "compute_seconds", "transfer_seconds"),
    *("platform", "device_kind", "device_count", "cpu", "cores", "system", "python", "x64", "commit"),
    *LIBRARIES,
)


def rows(result):
    """Make a dict of some of `COLUMNS` for each case and peer, also for the peers that are missing."""
    about = result["environment"]
    machine = {
        "device_kind": about["device"],
        **{name: about.get(name) for name in ("platform", "device_count", "cpu", "cores", "system", "python", "x64")},
        "commit": about.get("commit"),
        **{name: version for name, version in about["versions"].items() if name in LIBRARIES},
    }
    made = []
    for case in result["cases"]:
        law = case["concentration"]
        asked = {
            "case": case["name"],
            "group": case["group"],
            "task": case["task"],
            "concentration": law["low"] if isinstance(law, dict) else law,
            "concentration_high": law["high"] if isinstance(law, dict) else law,
            "asked": case["count"],
            "size": case.get("size", DEFAULTS["size"]),
            "case_dtype": case.get("dtype", DEFAULTS["dtype"]),
            "key_impl": case.get("key_impl", DEFAULTS["key_impl"]),
        }
        for peer, found in case["results"].items():
            measured = Timing(found["first_call_seconds"], tuple(found["seconds"]))
            told = case.get("stages", {}).get(peer, {"wide": True})
            stages = {} if told["wide"] else told["seconds"]
            noisy = found["wide"] or case["results"].get(OURS, found)["wide"]
            made.append(
                asked
                | {
                    "peer": peer,
                    "count": found["count"],
                    "dtype": found.get("dtype"),
                    "device": found.get("device"),
                    "seconds": measured.median,
                    "seconds_low": measured.quartiles[0],
                    "seconds_high": measured.quartiles[1],
                    "first_call_seconds": measured.first,
                    "rate": found["rate"],
                    "rate_low": found["rate_quartiles"][0],
                    "rate_high": found["rate_quartiles"][1],
                    "spread": found["spread"],
                    "wide": found["wide"],
                    "ratio": None if noisy else found.get("ratio"),
                    **{f"{stage}_seconds": seconds for stage, seconds in stages.items()},
                }
                | machine
            )
        for peer, reason in case.get("missing", {}).items():
            made.append(asked | {"peer": peer, "missing": reason} | machine)
    return made


def csv_text(result):
    """The whole table, with its header."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(result))
    return file.getvalue()
