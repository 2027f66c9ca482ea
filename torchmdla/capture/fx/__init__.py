"""FX graphs: how they are normalised, partitioned and run as groups."""
