"""Checks a machine, and names the command that repairs each fault.

    python -m forge_core.env_check [--json]        also: forge-cute doctor, nox -s doctor

``facts`` reads the machine; ``findings`` judges the facts by pure functions, so that every fault can be tested on a
machine that does not have it; ``__main__`` prints them.  Neither torch nor the CuTe DSL has to be importable.
"""
