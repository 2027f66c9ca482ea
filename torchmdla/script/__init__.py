"""Programs of TorchScript, without PyTorch: their graphs, and the reader of the files that store them."""
