"""Posteriors whose standard deviations are as large as their means."""
