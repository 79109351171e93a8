"""The pair for neural processors: graphs of integers, their calibration, compilers of chips, and what NNAPI allows."""
