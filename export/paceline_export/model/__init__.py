"""The pair, written once in the vocabulary of `ops.Ops`; every format lowers these same functions."""
