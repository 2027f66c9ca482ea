"""Programs in the IR of ``torchmdla.script``, run by PyTorch's operators and groups."""
