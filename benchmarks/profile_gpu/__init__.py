"""A report on where time and memory go on this machine: tables, pictures and a few findings.

``python -m benchmarks.profile_gpu --quick`` writes ``profile/report.html``. `sections` lists what is measured and how
it is shown; `calls`, `programs`, `roofline` and `accuracy` measure and return plain data; `findings`, `pictures` and
`report` show them.
"""
