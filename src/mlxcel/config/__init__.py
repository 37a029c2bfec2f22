"""What an operator can set, as frozen dataclasses: one field is one option with its flags, environment names and help.

The dataclasses are the only table: the command line, the environment, ``--help`` and ``docs/options.md`` come from it.
"""
