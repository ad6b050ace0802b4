"""The monitor as a page in a browser: a server on this machine alone, behind a token."""
