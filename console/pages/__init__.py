"""One module per area of the console."""
