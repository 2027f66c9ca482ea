"""Ops written in terms of others, in families; ``registry.py`` says which op is written how."""
