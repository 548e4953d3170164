"""LONG JOBS: what `run`, `compare`, `sweep`, `radius` and `uncertainty` share.

folder (a job's folder: its settings, its lock), progress (how far the job is), pool (where tasks run: here or on a Dask
cluster), worker (a process that works for us and does not outlive us). The last three commands work in chunks: parts
(finished chunks, as files of the folder), chunks (what does the work).
"""
