"""The course's kernels of week 2; importing a module of this package imports the CuTe DSL.

naive          three reads of each element
online         two: the maximum and the sum merge in pairs
single_pass    one: the row stays in registers
"""
