"""Measure rates and memory of long streams to the host and the disk, compared with loops written by hand.

``python -m benchmarks.streaming --quick`` measures, ``python -m benchmarks.streaming.pictures`` draws a result. `cases`
has the timed runs; `process` records the memory of a new process.
"""
