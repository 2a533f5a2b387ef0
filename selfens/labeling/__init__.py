"""Labeling: from data without labels to a model, on a page in the browser."""
