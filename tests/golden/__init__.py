"""Golden runs: histories and final weights kept from the first edition, to which every later one is held."""
