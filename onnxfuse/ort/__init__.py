"""What ONNX Runtime does itself: its operators, its fusions, its layouts, its kernels."""
