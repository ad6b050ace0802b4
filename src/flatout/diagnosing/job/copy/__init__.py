"""COPY: copies between host and device."""
