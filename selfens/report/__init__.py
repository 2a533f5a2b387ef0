"""The report: one page to look at, of one run or of several side by side. It needs no other file and no network.

    measures   confusion, calibration: plain functions of labels and probabilities
    figures    the charts, by matplotlib as SVG
    gallery    rows to look at: images with captions, or lines of a table
    details    all that is shown of one run
    comparison several runs in one chart and one table
    page       the files
    render     Jinja2, and names made fit to be shown

`templates/base.html` and `templates/style.css` are the look of every page that selfens writes.
"""
