"""MANY INSTANCES: benchmarks in, one results file and record an instance and the tables out.

benchmarks (instances.csv -> Instance), task (one instance -> Outcome, by a process that may crash), pools (where tasks
run: here or on a Dask cluster), store (what is finished), tables (what people read), run (all of it together).
"""
