"""Parse and join XLA flags, and try them with the installed jaxlib before they can end a process.

XLA reads ``XLA_FLAGS`` when JAX starts. An unknown flag or an invalid value ends the process at once, without an
exception, and the flags differ between releases. `refused` therefore tries them in a child process.
"""

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from jax_von_mises.runtime import child

# Compile a trivial program, so that XLA reads its flags.
START = "import jax; jax.block_until_ready(jax.jit(lambda: 0.0)())"

# One flag, split as XLA splits it; the complete value may be quoted.
WORD = re.compile(r"""--([^\s=]+)(?:(=)("[^"]*"|'[^']*'|\S*))?|(\S+)""")


class Refused(NamedTuple):
    """A flag that the installed jaxlib refuses, and why."""

    flag: str
    reason: str


class Advice(NamedTuple):
    """Advice on a flag: the level of the problem, the problem with its remedy, and the harmless values."""

    level: str
    text: str
    fine: tuple[str, ...] = ()


GONE, HARMFUL, USELESS = "problem", "warning", "note"
OFF = ("false", "0")
ON = ("true", "1", "")

FAST_MIN_MAX = Advice(HARMFUL, "lets XLA lose NaN, which marks invalid parameters; leave it out", OFF)
PRODUCTS = Advice(USELESS, "affects only matrix products, which the sampler does not use; leave it out")

# Flags that some guides recommend but that were gone, harmful or useless in trials with jaxlib 0.10 to 0.12.
ADVICE = {
    "xla_gpu_autotune": Advice(GONE, "does not exist; use --xla_gpu_autotune_level=0 to 4, the nearest flag"),
    "xla_gpu_platform_id": Advice(GONE, "does not exist; use CUDA_VISIBLE_DEVICES or JAX_PLATFORMS=cuda"),
    "xla_gpu_fuse_operations": Advice(GONE, "does not exist, since XLA always fuses; leave it out"),
    "xla_gpu_enable_priority_fusion": Advice(GONE, "was removed, since priority fusion is always on; leave it out"),
    "xla_gpu_kernel_lazy_compilation_threshold": Advice(GONE, "does not exist; leave it out"),
    "xla_gpu_enable_cudnn_frontend": Advice(GONE, "was removed; leave it out"),
    "xla_gpu_enable_async_collectives": Advice(GONE, "was removed, since collectives are asynchronous; leave it out"),
    "xla_gpu_enable_pipelined_collectives": Advice(
        GONE, "does not exist; use --xla_gpu_enable_pipelined_all_reduce or a similar flag"
    ),
    "xla_gpu_enable_llvm_module_compilation_parallelism": Advice(GONE, "was removed after jaxlib 0.10; leave it out"),
    "xla_gpu_enable_fast_min_max": FAST_MIN_MAX,
    "xla_cpu_enable_fast_min_max": FAST_MIN_MAX,
    "xla_cpu_enable_fast_math": Advice(
        HARMFUL, "changes the last digits of angles, and therefore streams; leave it out", OFF
    ),
    "xla_cpu_fast_math_honor_nans": Advice(
        HARMFUL, "gives plausible angles instead of NaN for invalid concentrations if it is false; leave it out", ON
    ),
    "xla_cpu_fast_math_honor_infs": Advice(
        HARMFUL, "gives wrong angles for an infinite concentration if it is false; leave it out", ON
    ),
    "xla_gpu_cuda_data_dir": Advice(USELESS, "is not needed with CUDA from pip; leave it out"),
    "xla_gpu_triton_gemm_any": PRODUCTS,
    "xla_gpu_autotune_level": PRODUCTS,
    "xla_gpu_force_compilation_parallelism": Advice(
        USELESS, "changes only the compile time; leave it out if that does not matter"
    ),
    "xla_gpu_enable_latency_hiding_scheduler": Advice(
        USELESS,
        "overlaps communication with computation, but the sampler does not communicate; leave it out unless your "
        "program communicates",
    ),
}


class Flag(NamedTuple):
    """A flag in ``XLA_FLAGS``; its value is None if the flag has none, which differs from an empty value."""

    name: str
    value: str | None

    def __str__(self) -> str:
        if self.value is None:
            return f"--{self.name}"
        if not re.search(r"""[\s"']""", self.value):
            return f"--{self.name}={self.value}"
        quote = "'" if '"' in self.value else '"'
        return f"--{self.name}={quote}{self.value}{quote}"


def advice(flag: Flag) -> Advice | None:
    """Return the `Advice` on a `Flag`; None if there is none, or if the flag's value is harmless."""
    found = ADVICE.get(flag.name)
    return None if found is None or (flag.value or "").lower() in found.fine else found


def parse(text: str, strict: bool = False) -> list[Flag]:
    """Return, in order, the flags in `text`, or in the file that it names, as in ``XLA_FLAGS``.

    XLA ignores words that are not flags; with `strict`, they raise an error.
    """
    text = text.strip()
    if text and not text.startswith("--"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    found = []
    for name, equals, value, other in WORD.findall(text):
        if name:
            value = value[1:-1] if value[:1] in ("'", '"') else value
            found.append(Flag(name, value if equals else None))
        elif strict:
            raise ValueError(f"{other!r} is not a flag; write --name=value")
    return found


def join(flags: Iterable[Flag]) -> str:
    """Return the value of ``XLA_FLAGS`` with these flags."""
    return " ".join(map(str, flags))


def current() -> list[Flag]:
    """Return the flags in the environment of this process."""
    return parse(os.environ.get("XLA_FLAGS", ""))


def refusals(err: str) -> list[Refused]:
    """Return the flags that XLA refused, from a child's stderr: all unknown ones, or one with an invalid value."""
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", err)
    if unknown:
        names = dict.fromkeys(name for name, *_ in WORD.findall(unknown[1]))
        return [Refused(name, "the installed jaxlib does not know it") for name in names]
    bad = re.search(r"Couldn't interpret value (?P<value>.*) for flag (?P<flag>\S+?)\.\s", err) or re.search(
        r"Illegal value for --(?P<flag>\S+) '(?P<value>[^']*)'", err
    )
    if bad:
        return [Refused(bad["flag"], f"its value {bad['value']!r} is not allowed")]
    other = re.search(r"parse_flags_from_env.*?\] (.*)", err)
    return [Refused("", other[1][:200])] if other else []


def refused(flags: Iterable[Flag], timeout: float = 120.0) -> list[Refused]:
    """Try `flags` in child processes, and return those that the installed jaxlib refuses.

    JAX may fail to start for another reason, such as a missing platform, before XLA reads the flags. The flags are then
    tried in a child on the CPU.
    """
    found: list[Refused] = []
    left = list(flags)
    planned = child.configuration()
    while left:
        ended = child.run("-c", START, timeout=timeout, **{**planned, "XLA_FLAGS": join(left)})
        latest = refusals(ended.err) if ended.code != 0 else []
        names = {item.flag for item in latest}
        rest = [flag for flag in left if flag.name not in names]
        found += latest
        if len(rest) < len(left):
            left = rest
        elif ended.code != 0 and not latest and planned["JAX_PLATFORMS"] != "cpu":
            planned["JAX_PLATFORMS"] = "cpu"
        else:
            break
    return found
