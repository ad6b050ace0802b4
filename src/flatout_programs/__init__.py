"""Programs that the user's interpreter runs by file, from Python 3.7 on; they answer in JSON."""
