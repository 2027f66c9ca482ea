"""What loop programs compute, by NumPy, slowly: passes are held to it (``TORCHMDLA_VERIFY=values``)."""
