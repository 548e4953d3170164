"""What the generators of several benchmark families share: data sources, further inference methods, and files.

Architectures, variational training and the text of properties are modules of benchmarks/digits, which has to be on the
path beside benchmarks.
"""
