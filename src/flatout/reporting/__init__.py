"""Reporting: nouns in, words out - on the terminal, as JSON, as one HTML file. It measures nothing.

Only this package imports rich and jinja2, and only when it draws something.
"""
