"""Policies as files that act without a run: safetensors, TorchScript, ONNX."""
