"""What Prometheus scrapes from a monitor, made from one table of figures."""
