"""Programs for GPUs: compiled, inspected and sized on any machine, and how XLA and NCCL are told to overlap them."""
