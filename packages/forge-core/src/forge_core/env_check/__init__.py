"""What this machine has, what is wrong with it, and the command that repairs each fault.

    python -m forge_core.env_check [--json]        also: forge-cute doctor, nox -s doctor

``facts`` reads the machine and judges nothing; ``findings`` judges those facts and reads nothing, so that every fault
can be tested on a machine that does not have it; ``doctor`` prints them.  Nothing here needs torch or the CuTe DSL to
be importable: their absence is one of the things to find.
"""
