"""The paper's experiments: every cell of its tables and figure as data, a pool that runs them, and a report.

tables    what a cell, a table and a run are; the paper's tables
data      official data sets, extra images, digits for quick runs
records   what a finished run leaves, and where
worker    from a cell to a record
pool      does a list of runs; one process per run, one or more at a time on each device
cluster   the same on a Ray cluster, one task per run
report    ours beside the paper's: results/README.md
command   `selfens reproduce`
"""
