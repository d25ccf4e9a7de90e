"""Checks a machine, and names the command that repairs each fault.

    forge-cute doctor [--json]        also: nox -s doctor

``facts`` reads the machine; ``findings`` judges the facts by pure functions, so that every fault can be tested on a
machine that does not have it; the command prints them.  Neither torch nor the CuTe DSL has to be importable.
"""
