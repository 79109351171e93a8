"""The names of the backends, as manifests and options spell them."""

LITERT = "litert"
ONNXRUNTIME = "onnxruntime"
