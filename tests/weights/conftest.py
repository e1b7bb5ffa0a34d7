"""Makes `building` importable from the folders below."""
