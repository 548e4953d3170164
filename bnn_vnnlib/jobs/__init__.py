"""LONG JOBS: what `run`, `compare`, `sweep`, `radius` and `uncertainty` share.

pool (where tasks run: here or on a Dask cluster), worker (a process that works for us and does not outlive us), folder
(what is finished lies in it, so that a job that was ended goes on where it was).
"""
