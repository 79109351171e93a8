"""The LiteRT backend, on the C interface of the library in the ai-edge-litert wheel."""
