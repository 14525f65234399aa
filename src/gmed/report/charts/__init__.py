"""The charts of the report, one module each."""
