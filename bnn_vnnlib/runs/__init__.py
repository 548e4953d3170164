"""MANY INSTANCES: benchmarks in, one results file and record an instance and the tables out.

task (one instance -> Outcome, by a process that may crash), tools (the same by another tool), records (finished
instances, as files of the run's folder), run (all of it together), tables (what people read), compare (one
run for each tool).
"""
