"""Import of TorchScript without changes into the Torch dialect, for humans and passes."""
