"""The same training jobs, each written five ways: see `jobs.py` for what they have in common."""
