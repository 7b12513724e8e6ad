"""Measure rates and memory of long streams to the host and the disk, and compare them with hand-written loops.

``python -m benchmarks.streaming --quick`` runs the measurements, and ``python -m benchmarks.streaming.pictures`` draws
their result. The module `cases` defines the timed runs; `process` records the memory of a new process.
"""
