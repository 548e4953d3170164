"""Bounds over boxes of inputs on means and exponential moments of a `DenseChain`."""
