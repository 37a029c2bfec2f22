"""The nouns of mlxcel. Standard library only; every other room imports from here."""
