"""Exported as screen, JSON, progress and page."""
