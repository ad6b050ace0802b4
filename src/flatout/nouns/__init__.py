"""The words of flatout, one per file: frozen dataclasses without behaviour beyond arithmetic."""
