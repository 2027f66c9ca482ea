"""Reference interpreter: runs loop programs with NumPy, slowly, to verify passes (``TORCHMDLA_VERIFY=values``)."""
