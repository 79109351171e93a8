"""The names of the backends, as manifests and options spell them."""

LITERT = "litert"
ONNXRUNTIME = "onnxruntime"
# Graphs of fixed sizes for neural processors, beside those of litert: of integers, and within what NNAPI can run.
NPU, NNAPI = "npu", "nnapi"
NPU_ONNX = "npu-onnx"  # the same graphs as NPU, for onnxruntime
