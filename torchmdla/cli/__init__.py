"""The commands of ``python -m torchmdla`` that need a file each."""
