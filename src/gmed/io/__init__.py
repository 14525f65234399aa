"""Files: written atomically."""
