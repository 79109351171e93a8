"""The names of the backends, as manifests and options spell them."""

LITERT = "litert"
ONNXRUNTIME = "onnxruntime"
NPU = "npu"  # graphs of integers for a neural processor, beside those of litert
