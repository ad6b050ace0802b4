"""The result of an export as screen, JSON, progress and page."""
