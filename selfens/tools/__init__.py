"""Tools for finished runs: predict, audit, cross-validate, compare, export."""
