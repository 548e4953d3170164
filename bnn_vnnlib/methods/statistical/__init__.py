"""Bounds with a stated confidence, from networks that are drawn and verified one by one.

Read `sampling` (what is asked, and drawn networks as weight boxes), then `safety` and `decision`.
"""
