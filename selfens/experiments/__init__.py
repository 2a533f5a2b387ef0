"""The paper's experiments: every cell of its tables and figure as data, a pool that runs them, and a report."""
