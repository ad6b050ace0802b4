"""Reporting: nouns in, words out - on the terminal, as JSON, as one HTML file. It measures nothing.

rich and jinja2 come in through here alone, and only when something is really drawn.
"""
