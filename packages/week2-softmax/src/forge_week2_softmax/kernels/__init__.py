"""The kernels of week 2; importing a module of this package imports the CuTe DSL.

program    what is computed of a row: how elements are read, which pair is reduced, the map that is written
chunks     how a thread reads and writes chunks of a row, and where a row begins
held       the row stays on chip: single_pass, cluster
sweep      the row is read two or three times: online, naive
grid       few rows over all multiprocessors, one pass
split      many blocks a row, two passes
column     neighbouring threads have neighbouring rows
"""
