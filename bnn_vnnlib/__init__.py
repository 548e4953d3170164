"""Sound verification of Bayesian neural networks: ONNX and VNN-LIB in, guaranteed bounds out."""
