"""The report: one HTML page about a run, or about several compared. It needs no other file and no network.

    measures   confusion and calibration, as plain functions of labels and probabilities
    figures    the charts, drawn by matplotlib as SVG
    gallery    rows to look at: images with captions, or lines of a table
    details    all that is shown of one run
    comparison several runs in one chart and one table
    page       the files
    render     Jinja2, and names made safe to show

`templates/base.html` and `templates/style.css` give every page of selfens its look.
"""
