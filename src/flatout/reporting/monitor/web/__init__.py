"""The monitor as a web page: a server on this machine only, behind a token."""
