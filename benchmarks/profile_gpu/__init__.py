"""One report of where the time and the memory of ``jax_von_mises`` go on this machine, and how exact the angles are.

``python -m benchmarks.profile_gpu --quick`` takes about two minutes on two cores, without ``--quick`` about ten. It is
made for a GPU, works on a CPU, and says which it was. Everything goes to ``--out``: ``report.html`` holds all of it,
beside the same pictures as PNG files, a trace for TensorBoard and Perfetto, and JAX's log of what it compiled.

`plan` says how much is measured, `measuring` how; `programs`, `roofline` (on `operations`), `sizes`, `variants` and
`exactness` measure and return plain data; `findings` says what the data mean, `tables` and `pictures` show them,
`report` makes the page, and `__main__` is the command line.
"""
