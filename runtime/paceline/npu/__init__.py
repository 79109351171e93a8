"""The pair's graphs for neural processors: integers of fixed sizes, whose KV rows are written outside the graphs."""
