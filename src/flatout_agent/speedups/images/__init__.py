"""JPEGs decoded later, smaller, or only once."""
