"""Reuse of computed state across works: who holds which block, what is stored, what is found, what is given up."""
