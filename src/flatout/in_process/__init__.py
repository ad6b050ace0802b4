"""What flatout does within the process that trains: `flatout.live()`, in a script or a notebook."""
