"""The paper's experiments: every cell of its tables and figure as data, a runner that fills them, and a report.

    cells      what a cell is; the rows that three of the tables have in common
    cifar10 … claims     one file per result of the paper
    tables     all of them by name
    records    what a finished run leaves, and where
    quick      the same experiments shrunk to seconds, on made-up images
    worker     one process: does the runs nobody else is doing
    runner     one worker per device, a time limit, a view of the progress
    summary    ours against the paper's
    report     results/README.md and results/report.html

A run is a pair (cell, seed). Everything else about it follows from the cell.
"""
