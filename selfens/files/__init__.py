"""Writing whole files or none, tensor files, tables, locks."""
