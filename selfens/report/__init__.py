"""The report: one HTML page about a run, or about several compared. It needs no other file and no network."""
