"""Knowledge: what flatout knows without looking at this machine, through typed interfaces."""
