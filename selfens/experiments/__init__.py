"""The paper's experiments: every cell of its tables and figure as data, a pool that runs them, and a report.

cells     what a cell, a table, a claim and a run are
tables    the paper's tables and claims
data      official data sets, extra images, made-up ones for quick runs
records   what a finished run leaves, and where
worker    from a cell to a record
pool      one process per run, one or more at a time on each device
report    ours beside the paper's: results/README.md and results/report.html
command   `selfens reproduce`
"""
